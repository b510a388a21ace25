"""The twelve backgrounds of the generated pictures, as functions of the place in the scene.

Every function takes `x`, `y` `(n, h, w)` (x to the right, y down, the picture about -1 to 1) and
`u` `(8, n, 1, 1)` draws in [0, 1), and gives `(n, 3, h, w)` float32 colours of about 0 to 1.

Pixels are made by addition, multiplication, division, roots and table look-ups only: these round the
same way in every batch and on every machine, where vectorised sines and matrix products do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from counterpoint.data.shapes_scenes import Floats, uniform

_SIDE = 512
_CELLS = 16


def wave(t: Floats) -> Floats:
    """A smooth wave of period 1 between -1 and 1: a sine made of two parabolas."""
    t = t - np.floor(t)
    t -= 0.5
    return 16.0 * t * (0.5 - np.abs(t))


def mix(low: Sequence[float], high: Sequence[float], t: Floats) -> Floats:
    """`(n, 3, h, w)`: from one colour at t = 0 to another at t = 1."""
    out = np.empty((len(t), 3, *t.shape[1:]), dtype=np.float32)
    for c in range(3):
        np.multiply(t, high[c] - low[c], out=out[:, c])
        out[:, c] += low[c]
    return out


def blend(image: Floats, colour: Sequence[float], t: Floats) -> None:
    """Paint a colour over an image with opacity t `(n, h, w)`, in place."""
    keep = 1.0 - t
    for c in range(3):
        image[:, c] *= keep
        image[:, c] += t * colour[c]


def step(t: Floats, edge: float, width: float) -> Floats:
    """0 below the edge, 1 above, a straight ramp of that width between."""
    ramp: Floats = np.clip((t - edge) * (1.0 / width) + 0.5, 0.0, 1.0)
    return ramp


def _look_up(table: Floats, x: Floats, y: Floats) -> Floats:
    column = x.astype(np.int32)
    row = y.astype(np.int32)
    column &= _SIDE - 1
    row &= _SIDE - 1
    row *= _SIDE
    row += column
    return table.take(row)


def _random_grid(name: str, side: int) -> Floats:
    return uniform(np.arange(side * side, dtype=np.uint64), name, 1).reshape(side, side)


@lru_cache(maxsize=1)
def _grain() -> Floats:
    """Independent uniform values."""
    return _random_grid("grain", _SIDE)


@lru_cache(maxsize=1)
def _clouds() -> Floats:
    """Fractal noise, its values spread evenly over 0 to 1; the largest blobs are 64 texels wide."""
    total = np.zeros((_SIDE, _SIDE), dtype=np.float32)
    for octave in range(5):
        cells = 8 << octave
        at = np.arange(_SIDE, dtype=np.float32) * (cells / _SIDE)
        cell = at.astype(np.int64)
        t = at - cell
        t = t * t * (3.0 - 2.0 * t)
        grid = _random_grid(f"octave {octave}", cells)
        beyond = (cell + 1) % cells
        rows = grid[cell] * (1 - t)[:, None] + grid[beyond] * t[:, None]
        total += (rows[:, cell] * (1 - t) + rows[:, beyond] * t) * 0.55**octave
    spread = np.empty(_SIDE * _SIDE, dtype=np.float32)
    spread[np.argsort(total.ravel(), kind="stable")] = np.linspace(0, 1, _SIDE * _SIDE, dtype=np.float32)
    return spread.reshape(_SIDE, _SIDE)


@lru_cache(maxsize=1)
def _cells() -> tuple[Floats, Floats]:
    """Round cells of 32 texels: how far from the border (0 on it), and one uniform value per cell."""
    scale = _CELLS / _SIDE
    y, x = np.meshgrid(*[(np.arange(_SIDE, dtype=np.float32) + 0.5) * scale] * 2, indexing="ij")
    seeds = [_random_grid(f"cell {axis}", _CELLS) for axis in "xy"]
    values = _random_grid("cell value", _CELLS)
    first = np.full_like(x, np.inf)
    second, value = first.copy(), np.zeros_like(x)
    for j in (-1, 0, 1):
        for i in (-1, 0, 1):
            column, row = np.floor(x) + i, np.floor(y) + j
            index = (row.astype(np.int64) % _CELLS, column.astype(np.int64) % _CELLS)
            dx = column + 0.15 + 0.7 * seeds[0][index] - x
            dy = row + 0.15 + 0.7 * seeds[1][index] - y
            distance = np.sqrt(dx * dx + dy * dy)
            second = np.minimum(second, np.maximum(first, distance))
            value = np.where(distance < first, values[index], value)
            first = np.minimum(first, distance)
    return second - first, value


def _scatter(x: Floats, y: Floats, u: Floats, rate: float) -> tuple[Floats, Floats, Floats]:
    """Where the pixel lies from the one speck of its cell, and a draw per speck in [0, 1)."""
    column, row = x * rate + 16 + u[0], y * rate + 16 + u[1]
    i, j = np.floor(column), np.floor(row)
    across, down, draw = (_look_up(_grain(), i * 5 + u[5 + k] * 512, j * 3 + u[4] * 512) for k in range(3))
    return column - i - 0.12 - 0.76 * across, row - j - 0.12 - 0.76 * down, draw


def _sky(x: Floats, y: Floats, u: Floats) -> Floats:
    image = mix((0.24, 0.50, 0.90), (0.72, 0.87, 0.99), np.clip(0.55 + 0.45 * y, 0, 1))
    puff = _look_up(_clouds(), x * 52 + u[0] * 512 + 512, y * 95 + u[1] * 512 + 512)
    blend(image, (0.98, 0.98, 1.0), 0.88 * step(puff, 0.62, 0.3))
    return image


def _grass(x: Floats, y: Floats, u: Floats) -> Floats:
    lean = 0.15 * wave(0.7 * x + u[2])
    blades = _look_up(_clouds(), (x + lean * y) * 480 + u[0] * 512 + 1024, y * 120 + u[1] * 512 + 512)
    patches = _look_up(_clouds(), x * 60 + u[1] * 512 + 512, y * 60 + u[3] * 512 + 512)
    return mix((0.15, 0.38, 0.08), (0.40, 0.66, 0.17), 0.72 * blades + 0.28 * patches)


def _sand(x: Floats, y: Floats, u: Floats) -> Floats:
    bend = _look_up(_clouds(), x * 45 + u[0] * 512 + 512, y * 45 + u[1] * 512 + 512)
    ripple = wave((3.2 + u[2]) * y + (u[3] - 0.5) * 1.5 * x + 1.6 * bend + u[4])
    grain = _look_up(_grain(), x * 90 + u[0] * 512 + 512, y * 90 + u[1] * 512 + 512)
    return mix((0.71, 0.57, 0.37), (0.95, 0.84, 0.61), 0.55 + 0.28 * ripple + 0.34 * (grain - 0.5))


def _water(x: Floats, y: Floats, u: Floats) -> Floats:
    far = 3.0 / np.maximum(y + 2.2, 0.3)
    bend = _look_up(_clouds(), x * far * 26 + u[0] * 512 + 2048, far * 110 + u[1] * 512 + 512)
    swell = wave((2.6 + u[3]) * far + 0.9 * bend + u[2])
    image = mix((0.04, 0.25, 0.48), (0.12, 0.46, 0.66), 0.5 + 0.35 * swell + 0.3 * (bend - 0.5))
    sparkle = _look_up(_clouds(), x * far * 90 + u[4] * 512 + 2048, far * 420 + u[1] * 512 + 512)
    blend(image, (0.80, 0.95, 0.99), 0.55 * step(swell * (0.25 + sparkle), 0.80, 0.3))
    return image


def _brick(x: Floats, y: Floats, u: Floats) -> Floats:
    row = y * (4.6 + u[2]) + 8 + u[0]
    course = np.floor(row)
    along = x * (2.1 + 0.5 * u[2]) + 8 + u[1] + 0.5 * (course - 2 * np.floor(course * 0.5))
    brick = np.floor(along)
    tone = _look_up(_grain(), brick * 7 + u[3] * 512, course * 3 + u[4] * 512)
    rough = _look_up(_clouds(), x * 250 + u[0] * 512 + 512, y * 250 + u[1] * 512 + 512)
    image = mix((0.49, 0.20, 0.13), (0.69, 0.33, 0.23), 0.65 * tone + 0.35 * rough)
    joint = np.maximum(np.abs(row - course - 0.5), 0.5 - 2.1 * (0.5 - np.abs(along - brick - 0.5)))
    blend(image, (0.80, 0.77, 0.72), 0.62 * step(joint, 0.42, 0.08))
    return image


def _night(x: Floats, y: Floats, u: Floats) -> Floats:
    image = mix((0.01, 0.01, 0.07), (0.09, 0.08, 0.26), np.clip(0.5 + 0.5 * y, 0, 1))
    haze = _look_up(_clouds(), x * 40 + u[2] * 512 + 512, y * 40 + u[3] * 512 + 512)
    image *= (0.6 + 0.9 * haze)[:, None]
    dx, dy, draw = _scatter(x, y, u, 5.0)
    light = (0.045 * draw * draw) / (dx * dx + dy * dy + 0.012) - 0.35
    blend(image, (1.0, 0.98, 0.88), np.clip(light, 0, 0.8))
    return image


def _wood(x: Floats, y: Floats, u: Floats) -> Floats:
    across = y * (1.3 + 0.5 * u[2]) + 8 + u[0]
    plank = np.floor(across)
    tone = _look_up(_grain(), plank * 11 + u[3] * 512, plank * 5 + u[4] * 512)
    slide = tone * 977 + u[1] * 512 + 512
    bend = _look_up(_clouds(), x * 16 + slide, y * 100 + slide)
    fibre = _look_up(_clouds(), x * 30 + slide, y * 400 + slide)
    rings = wave(5.0 * bend + 1.5 * y)
    t = 0.5 + 0.2 * rings + 0.35 * (fibre - 0.5) + 0.35 * (tone - 0.5)
    image = mix((0.43, 0.25, 0.12), (0.72, 0.49, 0.27), t)
    seam = np.abs(across - plank - 0.5)
    blend(image, (0.14, 0.07, 0.03), 0.65 * step(seam, 0.475, 0.04))
    return image


def _snow(x: Floats, y: Floats, u: Floats) -> Floats:
    drift = y - 0.35 + 0.5 * u[2] - 0.12 * wave(0.35 * x + u[3]) - 0.05 * wave(0.9 * x + u[4])
    image = mix((0.50, 0.58, 0.68), (0.72, 0.78, 0.86), np.clip(0.5 + 0.5 * y, 0, 1))
    shade = _look_up(_clouds(), x * 40 + u[0] * 512 + 512, y * 100 + u[1] * 512 + 512)
    ground = mix((0.78, 0.85, 0.96), (0.98, 0.99, 1.0), shade)
    on = step(drift, 0.0, 0.05)
    for c in range(3):
        image[:, c] += on * (ground[:, c] - image[:, c])
    dx, dy, draw = _scatter(x, y, u, 3.8)
    blend(image, (1.0, 1.0, 1.0), 0.8 * step(0.03 * draw - dx * dx - dy * dy, 0.0, 0.014))
    return image


def _stone(x: Floats, y: Floats, u: Floats) -> Floats:
    scale = 70 + 25 * u[2]
    column, row = x * scale + u[0] * 512 + 512, y * scale + u[1] * 512 + 512
    border, tone = (_look_up(table, column, row) for table in _cells())
    rough = _look_up(_clouds(), x * 200 + u[3] * 512 + 512, y * 200 + u[4] * 512 + 512)
    t = 0.25 + 0.45 * tone + 0.3 * (rough - 0.5) + 0.35 * np.minimum(border, 0.5)
    image = mix((0.37, 0.36, 0.36), (0.67, 0.66, 0.63), t)
    blend(image, (0.12, 0.11, 0.10), 0.6 - 0.6 * step(border, 0.12, 0.12))
    return image


def _tiles(x: Floats, y: Floats, u: Floats) -> Floats:
    scale = 2.3 + 0.9 * u[2]
    column, row = x * scale + 8 + u[0], y * scale + 8 + u[1]
    i, j = np.floor(column), np.floor(row)
    tone = _look_up(_grain(), i * 5 + u[3] * 512, j * 3 + u[4] * 512)
    across, down = column - i - 0.5, row - j - 0.5
    gloss = 0.5 - 0.5 * (across + down) + 0.25 * (tone - 0.5)
    image = mix((0.62, 0.80, 0.78), (0.90, 0.97, 0.95), gloss)
    joint = np.maximum(np.abs(across), np.abs(down))
    blend(image, (0.40, 0.46, 0.48), 0.6 * step(joint, 0.46, 0.05))
    return image


def _lava(x: Floats, y: Floats, u: Floats) -> Floats:
    bend = _look_up(_clouds(), x * 60 + u[3] * 512 + 512, y * 60 + u[4] * 512 + 512)
    scale = 45 + 20 * u[2]
    warp = 14 * bend
    border = _look_up(_cells()[0], x * scale + warp + u[0] * 512 + 512, y * scale - warp + u[1] * 512 + 512)
    image = mix((0.12, 0.06, 0.05), (0.28, 0.13, 0.11), bend)
    blend(image, (0.80, 0.12, 0.02), 0.65 - 0.65 * step(border, 0.24, 0.3))
    blend(image, (1.0, 0.66, 0.12), 0.6 - 0.6 * step(border, 0.09, 0.12))
    return image


def _forest(x: Floats, y: Floats, u: Floats) -> Floats:
    leaves = _look_up(_clouds(), x * 130 + u[0] * 512 + 512, y * 130 + u[1] * 512 + 512)
    image = mix((0.09, 0.21, 0.10), (0.33, 0.48, 0.24), leaves * np.clip(0.75 - 0.35 * y, 0, 1))
    for layer, (count, dark) in enumerate(((3.1, 0.19), (1.9, 0.11))):
        sway = 0.03 * wave(0.4 * y + u[2 + layer])
        column = (x + sway) * count + 8 + u[4 + layer] + 0.5 * layer
        i = np.floor(column)
        place, girth = (_look_up(_grain(), i * 7 + u[6 + k] * 512, i * 3 + u[0] * 512) for k in range(2))
        offset = column - i - 0.35 - 0.3 * place
        trunk = 0.10 + 0.10 * girth - np.abs(offset)
        shade = np.clip(1.0 - 3.0 * offset, 0.5, 1.6)
        on = step(trunk, 0.0, 0.05)
        keep = 1.0 - on
        for c, tint in enumerate((1.5, 1.1, 0.8)):
            image[:, c] *= keep
            image[:, c] += on * shade * (dark * tint)
    return image


PAINTERS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "sky": _sky,
    "grass": _grass,
    "sand": _sand,
    "water": _water,
    "brick": _brick,
    "night": _night,
    "wood": _wood,
    "snow": _snow,
    "stone": _stone,
    "tiles": _tiles,
    "lava": _lava,
    "forest": _forest,
}
