"""Pixels of generated scenes: a background, small things that lie about, the object, light and noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.shapes_backgrounds import PAINTERS, blend, wave
from counterpoint.data.shapes_scenes import (
    BACKGROUNDS,
    COLOURS,
    OBJECTS,
    TEXTURES,
    Floats,
    Scenes,
    uniform,
)

# Half a megabyte of float32 per array of a chunk: what stays in a core's cache.
_PIXELS_PER_CHUNK = 32 * 64 * 64
_FINE_BELOW = 48
_NOISE = 1 << 18


def render(scenes: Scenes, size: int, camera: int, chunk_size: int | None = None) -> NDArray[np.uint8]:
    """`(n, 3, size, size)` pictures of the scenes.

    The chunk size changes speed and memory only: every operation is element by element.
    """
    chunk_size = chunk_size or max(1, _PIXELS_PER_CHUNK // size**2)
    out = np.empty((len(scenes), 3, size, size), dtype=np.uint8)
    for start in range(0, len(scenes), chunk_size):
        rows = slice(start, start + chunk_size)
        out[rows] = _render_chunk(scenes.rows(rows), size, camera)
    return out


def _render_chunk(scenes: Scenes, size: int, camera: int) -> NDArray[np.uint8]:
    # Thin joints and stripes fall between the pixels of a very small picture: those get 2 x 2 samples each.
    fine = 2 if size < _FINE_BELOW else 1
    x, y, footprint = view(scenes, fine * size, camera)
    image = _backgrounds(scenes, x, y)
    _clutter(scenes, image, x, y, footprint)
    _objects(scenes, image, x, y, footprint)
    if fine == 2:
        image = image[..., ::2] + image[..., 1::2]
        image = (image[..., ::2, :] + image[..., 1::2, :]) * 0.25
    _light_and_noise(scenes, image, size, camera)
    image *= 255.0
    image += 0.5
    np.clip(image, 0.0, 255.0, out=image)
    return image.astype(np.uint8)


def view(scenes: Scenes, size: int, camera: int) -> tuple[Floats, Floats, Floats]:
    """What place each pixel shows: x and y in the scene `(n, size, size)`, and a pixel's width `(n, 1, 1)`.

    Camera 0 looks straight on. Camera 1 stands to the side: it turns, tilts, shifts and zooms, by a
    fixed amount plus a little that differs from scene to scene.
    """
    n = len(scenes)
    axis = (np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0
    u, v = np.meshgrid(axis, axis)
    if camera == 0:
        shape = (n, size, size)
        footprint = np.full((n, 1, 1), 2.0 / size, dtype=np.float32)
        return np.broadcast_to(u, shape), np.broadcast_to(v, shape), footprint
    d = (2.0 * uniform(scenes.ids, "viewpoint", 6) - 1.0).T[..., None, None]
    turn = 0.32 + 0.18 * d[0]
    zoom = 1.05 + 0.10 * d[1]
    # The second camera is aimed a little towards the object, so that it stays in the picture.
    aim = 0.35 * scenes.centre.T[..., None, None] + 0.06 * d[2:4]
    cos, sin = (f(turn.astype(np.float64)).astype(np.float32) for f in (np.cos, np.sin))
    depth = zoom / (1.0 + (0.18 + 0.08 * d[4]) * u + 0.08 * d[5] * v)
    x = (cos * u - sin * v) * depth + aim[0]
    y = (sin * u + cos * v) * depth + aim[1]
    return x, y, zoom * np.float32(2.0 / size)


def _backgrounds(scenes: Scenes, x: Floats, y: Floats) -> Floats:
    image = np.empty((len(scenes), 3, *x.shape[1:]), dtype=np.float32)
    draws = uniform(scenes.ids, "background look", 8).T[..., None, None]
    for k in np.unique(scenes.background).tolist():
        rows = np.flatnonzero(scenes.background == k)
        image[rows] = PAINTERS[BACKGROUNDS[k]](x[rows], y[rows], draws[:, rows])
    d = uniform(scenes.ids, "background tint", 4)
    tint = (0.96 + 0.08 * d[:, :3]) * (0.88 + 0.2 * d[:, 3:])
    image *= tint[..., None, None]
    return image


def _clutter(scenes: Scenes, image: Floats, x: Floats, y: Floats, footprint: Floats) -> None:
    """Up to two pebbles or sticks of any colour beside the object, in place."""
    palette = _tones()[0]
    for slot in range(2):
        d = uniform(scenes.ids, f"clutter {slot}", 7)
        turn = d[:, 0].astype(np.float64) * (2 * np.pi)
        out = np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32)
        place = scenes.centre + out * (scenes.radius + 0.16 + 0.5 * d[:, 1])[:, None]
        rows = np.flatnonzero((np.abs(place).max(axis=1) < 0.92) & (d[:, 2] < 0.6))
        if not len(rows):
            continue
        half = (0.13 * np.maximum(d[rows, 3] - 0.4, 0.0))[:, None, None]
        tilt = d[rows, 4].astype(np.float64) * np.pi
        cos, sin = (f(tilt).astype(np.float32)[:, None, None] for f in (np.cos, np.sin))
        dx, dy = x[rows] - place[rows, 0, None, None], y[rows] - place[rows, 1, None, None]
        along = np.abs(cos * dx + sin * dy) - half
        across = cos * dy - sin * dx
        along = np.maximum(along, 0.0)
        distance = np.sqrt(along * along + across * across) - (0.04 + 0.03 * d[rows, 5])[:, None, None]
        cover = np.clip(0.5 - distance / footprint[rows], 0.0, 1.0)
        colour = palette[(d[rows, 6] * len(palette)).astype(np.int64)] * 0.85
        part = image[rows]
        blend(part, colour.T[..., None, None], cover)
        image[rows] = part


def _objects(scenes: Scenes, image: Floats, x: Floats, y: Floats, footprint: Floats) -> None:
    """The main objects with a soft shadow round them and a rim of the contrary tone, in place."""
    p, q = _own_coordinates(scenes, x, y)
    distance = np.empty_like(p)
    for k in np.unique(scenes.object).tolist():
        rows = np.flatnonzero(scenes.object == k)
        distance[rows] = OUTLINES[OBJECTS[k]](p[rows], q[rows])
    # Half-planes meet far beyond a sharp tip; the unit circle ends the shadow there.
    distance = np.maximum(distance, np.sqrt(p * p + q * q) - 1.0)
    distance *= scenes.radius[:, None, None] / footprint
    pixel = 1.0 / footprint
    shadow = np.clip(1.0 - distance / (0.12 * pixel), 0.0, 1.0)
    image *= (1.0 - 0.45 * shadow * shadow)[:, None]

    colour, second, edge = (tones[scenes.colour].T[..., None, None] for tones in _tones())
    pattern = _textures(scenes, p, q, footprint)
    shade = 1.0 - 0.10 * (p + q) * scenes.mirror[:, None, None]
    rim = np.clip(0.5 + distance + 0.024 * pixel, 0.0, 1.0) * 0.75
    cover = np.clip(0.5 - distance, 0.0, 1.0)
    keep = 1.0 - cover
    for c in range(3):
        tone = pattern * (second[c] - colour[c])
        tone += colour[c]
        tone *= shade
        tone += rim * (edge[c] - tone)
        tone *= cover
        image[:, c] *= keep
        image[:, c] += tone


def _own_coordinates(scenes: Scenes, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Scene to object coordinates: the object stands upright, y up, within the unit circle."""
    angle = scenes.angle.astype(np.float64)
    cos = (np.cos(angle) / scenes.radius).astype(np.float32)[:, None, None]
    sin = (np.sin(angle) / scenes.radius).astype(np.float32)[:, None, None]
    stretch = (0.92 + 0.16 * uniform(scenes.ids, "stretch", 1))[..., None]
    dx, dy = x - scenes.centre[:, 0, None, None], y - scenes.centre[:, 1, None, None]
    p = (cos * dx + sin * dy) * (stretch * scenes.mirror[:, None, None])
    q = (sin * dx - cos * dy) / stretch
    return p, q


def _textures(scenes: Scenes, p: Floats, q: Floats, footprint: Floats) -> Floats:
    """`(n, h, w)`: 0 where the object has its colour, 1 where it has its second tone."""
    out = np.zeros_like(p)
    d = uniform(scenes.ids, "texture look", 4)
    turn = ((2.0 * d[:, 0] - 1.0) * 0.5).astype(np.float64)
    cos, sin = (f(turn).astype(np.float32)[:, None, None] for f in (np.cos, np.sin))
    for k in np.unique(scenes.texture).tolist():
        if TEXTURES[k] == "plain":
            continue
        rows = np.flatnonzero(scenes.texture == k)
        rate = (1.45 + 0.35 * d[rows, 1])[:, None, None]
        s = (cos[rows] * p[rows] + sin[rows] * q[rows]) * rate + d[rows, 2, None, None]
        t = (cos[rows] * q[rows] - sin[rows] * p[rows]) * rate + d[rows, 3, None, None]
        sharp = 0.14 * scenes.radius[rows, None, None] / footprint[rows]
        if TEXTURES[k] == "striped":
            level = wave(t) - 0.2
        elif TEXTURES[k] == "checked":
            level = 1.6 * wave(0.75 * s) * wave(0.75 * t)
        else:
            s, t = s - np.floor(s) - 0.5, t - np.floor(t) - 0.5
            level = 4.0 * (0.30 - np.sqrt(s * s + t * t))
        out[rows] = np.clip(0.5 + sharp * level, 0.0, 1.0)
    return out


def _light_and_noise(scenes: Scenes, image: Floats, size: int, camera: int) -> None:
    """Brightness, a colour cast, light that falls from one side, and sensor noise, in place."""
    d = uniform(scenes.ids, f"light {camera}", 8)
    cast = 1.0 + 0.05 * (2.0 * d[:, :3] - 1.0)
    if camera == 1:
        cast = cast * np.array([1.06, 0.98, 0.86], dtype=np.float32)
    gain = cast * (0.86 + 0.24 * d[:, 3:4])
    axis = (np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0
    slope = 0.30 * d[:, 4:6, None] - 0.15
    light = 1.0 + (slope[:, 0] * axis)[:, None, :] + (slope[:, 1] * axis)[:, :, None]
    if camera == 1:
        light *= 1.0 - 0.10 * (axis * axis + (axis * axis)[:, None])
    image *= light[:, None]
    image *= gain[..., None, None]
    sigma = (0.015, 0.03)[camera] + 0.025 * d[:, 6]
    length = 3 * size * size
    noise = _noise(length + _NOISE)
    for picture, offset, strength in zip(image, (d[:, 7] * _NOISE).astype(np.int64), sigma, strict=True):
        picture += (noise[offset : offset + length] * strength).reshape(picture.shape)


@lru_cache(maxsize=4)
def _noise(length: int) -> Floats:
    """Noise of deviation 1, each value the sum of four uniform draws, repeated up to the length."""
    draws = uniform(np.arange(_NOISE, dtype=np.uint64), "noise", 4)
    noise = (draws[:, 0] + draws[:, 1] + draws[:, 2] + draws[:, 3] - 2.0) * np.float32(3.0**0.5)
    return np.resize(noise, length)


@lru_cache(maxsize=1)
def _tones() -> tuple[Floats, Floats, Floats]:
    """`(colours, 3)` each: the colours, the second tone of their patterns, and the rim round the object."""
    colour = np.array(list(COLOURS.values()), dtype=np.float32) / 255.0
    bright = 0.3 * colour[:, :1] + 0.6 * colour[:, 1:2] + 0.1 * colour[:, 2:]
    second = np.where(bright > 0.5, 0.58 * colour, 0.55 * colour + 0.38)
    # Grey stripes must leave black and white what they are.
    second = np.where(bright < 0.12, 0.6 * colour + 0.24, np.where(bright > 0.9, 0.68 * colour, second))
    edge = np.where(bright < 0.12, np.float32(0.55), 0.22 * colour)
    return colour, second, edge


def _circle(p: Floats, q: Floats) -> Floats:
    return np.sqrt(p * p + q * q) - 0.9


def _square(p: Floats, q: Floats) -> Floats:
    return np.maximum(np.abs(p), np.abs(q)) - 0.70


def _triangle(p: Floats, q: Floats) -> Floats:
    return np.maximum(0.866 * np.abs(p) + 0.5 * q, -q) - 0.50


def _star(p: Floats, q: Floats) -> Floats:
    # Two reflections fold the ten half-points of the star onto one straight edge.
    p = np.abs(p)
    for side in (1.0, -1.0):
        fold = 2.0 * np.maximum(side * 0.809017 * p - 0.587785 * q, 0.0)
        p, q = p - fold * (side * 0.809017), q + fold * 0.587785
    return (np.abs(p) * (1.0 - 0.42 * 0.809017) + (q - 1.0) * (0.42 * 0.587785)) * 1.42


def _cross(p: Floats, q: Floats) -> Floats:
    p, q = np.abs(p), np.abs(q)
    return np.maximum(np.minimum(p, q) - 0.29, np.maximum(p, q) - 0.92)


def _ring(p: Floats, q: Floats) -> Floats:
    return np.abs(np.sqrt(p * p + q * q) - 0.68) - 0.24


def _heart(p: Floats, q: Floats) -> Floats:
    p, q = np.abs(p) * 0.69, q * 0.69 + 0.53
    lobe = np.sqrt((p - 0.25) ** 2 + (q - 0.75) ** 2) - 0.353553
    half = 0.5 * np.maximum(p + q, 0.0)
    inner = np.sqrt(np.minimum(p * p + (q - 1.0) ** 2, (p - half) ** 2 + (q - half) ** 2))
    return np.where(p + q > 1.0, lobe, np.where(p > q, inner, -inner)) * 1.45


def _crescent(p: Floats, q: Floats) -> Floats:
    p = p + 0.12
    outer = np.sqrt(p * p + q * q) - 0.87
    return np.maximum(outer, 0.70 - np.sqrt((p - 0.53) ** 2 + q * q))


def _hexagon(p: Floats, q: Floats) -> Floats:
    p, q = np.abs(p), np.abs(q)
    return np.maximum(0.866 * p + 0.5 * q, q) - 0.80


def _arrow(p: Floats, q: Floats) -> Floats:
    q = np.abs(q)
    shaft = np.maximum(q - 0.20, np.abs(p + 0.40) - 0.56)
    head = np.maximum(0.02 - p, 0.62 * (p - 0.98) + 0.785 * q)
    distance: Floats = np.minimum(shaft, head)
    return distance


def _drop(p: Floats, q: Floats) -> Floats:
    p, q = np.abs(p), q + 0.32
    # The line from the tip at (0, 1.3) touches the circle of radius 0.62 where the two pieces meet.
    sine = 0.62 / 1.3
    cosine = (1.0 - sine * sine) ** 0.5
    return np.where(cosine * q < sine * p, np.sqrt(p * p + q * q), cosine * p + sine * q) - 0.62


def _bolt(p: Floats, q: Floats) -> Floats:
    # One spike, and the same one turned by half a circle.
    def spike(p: Floats, q: Floats) -> Floats:
        left = -0.78 * (p - 0.31) + 0.62 * (q - 0.82) - 0.05
        right = 0.98 * (p - 0.31) - 0.20 * (q - 0.82) - 0.01
        distance: Floats = np.maximum(np.maximum(left, right), -q - 0.16)
        return distance

    return np.minimum(spike(p, q), spike(-p, -q))


OUTLINES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "heart": _heart,
    "crescent": _crescent,
    "hexagon": _hexagon,
    "arrow": _arrow,
    "drop": _drop,
    "bolt": _bolt,
}
