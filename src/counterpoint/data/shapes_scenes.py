"""What is in each generated picture: the classes, and the draws that fix one scene."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

# float32 at run time; numpy's own types promise that of few operations with Python numbers.
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

OBJECTS = (
    "circle",
    "square",
    "triangle",
    "star",
    "cross",
    "ring",
    "heart",
    "crescent",
    "hexagon",
    "arrow",
    "drop",
    "bolt",
)
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (208, 32, 36),
    "orange": (245, 130, 20),
    "yellow": (250, 218, 45),
    "green": (38, 150, 58),
    "turquoise": (52, 205, 200),
    "blue": (32, 78, 214),
    "purple": (128, 44, 168),
    "pink": (248, 134, 190),
    "white": (244, 244, 244),
    "black": (26, 26, 28),
}
# The radius of the object, where the picture reaches from -1 to 1. The gaps keep the names apart.
SIZES: dict[str, tuple[float, float]] = {"small": (0.46, 0.52), "medium": (0.60, 0.68), "large": (0.78, 0.87)}
TEXTURES = ("plain", "striped", "dotted", "checked")
BACKGROUNDS = (
    "sky",
    "grass",
    "sand",
    "water",
    "brick",
    "night",
    "wood",
    "snow",
    "stone",
    "tiles",
    "lava",
    "forest",
)
TIED: dict[str, str] = {
    "circle": "grass",
    "square": "brick",
    "triangle": "snow",
    "star": "night",
    "cross": "stone",
    "ring": "water",
    "heart": "tiles",
    "crescent": "sky",
    "hexagon": "wood",
    "arrow": "forest",
    "drop": "sand",
    "bolt": "lava",
}
SPLITS = ("train", "test")
MAX_TURN = 20.0 / 180.0 * np.pi

_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 finaliser: a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def scene_ids(split: str, count: int, seed: int) -> NDArray[np.uint64]:
    """`(count,)` one word per scene; distinct within a seed, over both splits."""
    first = (seed * _GOLDEN + (SPLITS.index(split) << 48)) & _WORD
    return _scramble(np.arange(count, dtype=np.uint64) + np.uint64(first))


def uniform(ids: NDArray[np.uint64], stream: str, k: int) -> Floats:
    """`(n, k)` draws in [0, 1) that depend on the scene's id, the stream's name and the column only.

    A counter-based generator in place of a generator with state, so that scene i is the same
    whatever is drawn before it.
    """
    steps = [(zlib.crc32(stream.encode()) * _GOLDEN + (j + 1) * 0xD1342543DE82EF95) & _WORD for j in range(k)]
    words = _scramble(_scramble(ids[:, None] ^ np.array(steps, dtype=np.uint64)))
    # 24 bits are what a float32 holds exactly, so that no draw rounds up to 1.
    return (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def choose(ids: NDArray[np.uint64], stream: str, k: int) -> Ints:
    """`(n,)` whole numbers below k, uniform."""
    return np.floor(uniform(ids, stream, 1)[:, 0] * k).astype(np.int64)


@dataclass(frozen=True)
class Scenes:
    """n scenes, one row each.

    object, colour, size, texture, background: `(n,)` class numbers.
    centre: `(n, 2)` x to the right and y down, in a picture that reaches from -1 to 1.
    radius, angle: `(n,)`; mirror: `(n,)` -1 or 1.
    """

    ids: NDArray[np.uint64]
    object: Ints
    colour: Ints
    size: Ints
    texture: Ints
    background: Ints
    centre: Floats
    radius: Floats
    angle: Floats
    mirror: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, chosen: slice | Ints) -> Scenes:
        """The scenes of these rows."""
        return Scenes(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


def draw_scenes(
    split: str, count: int, seed: int, background_correlation: float = 0.0, recombine: bool = False
) -> Scenes:
    """The scenes 0 to count - 1 of a split."""
    ids = scene_ids(split, count, seed)
    objects = choose(ids, "object", len(OBJECTS))
    sizes = choose(ids, "size", len(SIZES))
    pose = uniform(ids, "pose", 5)
    low, high = np.array(list(SIZES.values()), dtype=np.float32)[sizes].T
    radius = low + (high - low) * pose[:, 0]
    return Scenes(
        ids=ids,
        object=objects,
        colour=choose(ids, "colour", len(COLOURS)),
        size=sizes,
        texture=choose(ids, "texture", len(TEXTURES)),
        background=_draw_backgrounds(ids, objects, background_correlation, recombine),
        centre=(2 * pose[:, 1:3] - 1) * (0.97 - radius)[:, None],
        radius=radius,
        angle=((2 * pose[:, 3] - 1) * MAX_TURN).astype(np.float32),
        mirror=np.where(pose[:, 4] < 0.5, -1, 1).astype(np.float32),
    )


def _draw_backgrounds(
    ids: NDArray[np.uint64], objects: Ints, background_correlation: float, recombine: bool
) -> Ints:
    k = len(BACKGROUNDS)
    tied = np.array([BACKGROUNDS.index(TIED[name]) for name in OBJECTS])[objects]
    if recombine:
        return (tied + 1 + choose(ids, "other background", k - 1)) % k
    is_tied = uniform(ids, "tie", 1)[:, 0] < background_correlation
    return np.where(is_tied, tied, choose(ids, "background", k))
