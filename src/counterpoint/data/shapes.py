"""A generated data set of captioned pictures: named shapes on named backgrounds, no files needed."""

from __future__ import annotations

from typing import Literal

import torch
from PIL import Image

from counterpoint.data.cameras import side_by_side
from counterpoint.data.samples import Labels, Samples
from counterpoint.data.shapes_captions import captions
from counterpoint.data.shapes_render import render
from counterpoint.data.shapes_scenes import (
    BACKGROUNDS,
    COLOURS,
    OBJECTS,
    SIZES,
    SPLITS,
    TEXTURES,
    draw_scenes,
)

CAMERAS = (0, 1)
MIN_SIZE = 16


def shapes(
    split: str = "train",
    count: int = 4000,
    seed: int = 0,
    size: int = 64,
    background_correlation: float = 0.0,
    recombine: bool = False,
    camera: int | Literal["both"] = 0,
) -> Samples:
    """Pictures of one main object on a background, with captions and six label columns.

    Use when: an objective, a recipe or an installation is to be tried without a download; and when a
    question needs data whose cause is known: does the encoder read the object or its background
    (`background_correlation`, `recombine`), does it match one scene over two cameras (`camera`).

    split: "train" or "test"; no scene is in both.
    count: how many. Sample i depends on the seed, the split and i, not on the count.
    seed: a whole number from 0; another seed gives other scenes.
    size: height and width in pixels, at least 16.
    background_correlation: the chance in [0, 1] that the background is the one tied to the object
        (`counterpoint.data.shapes_scenes.TIED`); otherwise it is drawn evenly from all 12. So 0 means no
        relation, and 1 that the background gives the object away.
    recombine: every background is drawn evenly from the 11 that are tied to other objects, whatever the
        correlation. All else in the scene stays as it is. An encoder that reads the background falls
        below chance here, as on the Mixed-Rand pictures of Xiao et al. (2021, arXiv:2006.09994).
    camera: 0 looks straight on; 1 shows the same scenes from the side, in other light and with more noise.
        "both" gives all scenes from 0, then all from 1: `count` of each, with a label column camera.

    Label columns: object (the default), colour, size, texture, background, identity. The identity of a
    sample is its number in the split, so it agrees between the cameras; so does its key up to the camera.

    Raises ValueError for an unknown split or camera, a count, size or seed that is too small, and a
    correlation outside [0, 1].

    >>> samples = shapes("test", count=3, size=32)
    >>> samples.tensor.shape, samples.picture(0).size
    (torch.Size([3, 3, 32, 32]), (32, 32))
    >>> samples.captions[0]
    'a picture of an emerald crescent moon with dots in a cloudy sky, small in size'
    >>> [labels.names[labels.values[0]] for labels in samples.labels.values()]
    ['crescent', 'green', 'small', 'dotted', 'sky', 'shapes-0/test/000000']
    """
    if camera == "both":
        return side_by_side(
            {
                str(one): shapes(split, count, seed, size, background_correlation, recombine, one)
                for one in CAMERAS
            }
        )
    _check(split, count, seed, size, background_correlation, camera)
    scenes = draw_scenes(split, count, seed, background_correlation, recombine)
    tensor = torch.from_numpy(render(scenes, size, camera))
    names = [f"shapes-{seed}/{split}/{i:06d}" for i in range(count)]

    def picture(i: int) -> Image.Image:
        return Image.fromarray(tensor[i].permute(1, 2, 0).numpy())

    return Samples(
        name="shapes",
        keys=[f"{name}/camera-{camera}" for name in names],
        picture=picture,
        labels={
            "object": Labels(torch.from_numpy(scenes.object), OBJECTS),
            "colour": Labels(torch.from_numpy(scenes.colour), tuple(COLOURS)),
            "size": Labels(torch.from_numpy(scenes.size), tuple(SIZES)),
            "texture": Labels(torch.from_numpy(scenes.texture), TEXTURES),
            "background": Labels(torch.from_numpy(scenes.background), BACKGROUNDS),
            "identity": Labels(torch.arange(count), names),
        },
        captions=captions(scenes),
        tensor=tensor,
    )


def _check(split: str, count: int, seed: int, size: int, background_correlation: float, camera: int) -> None:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    for name, value, least in (("count", count, 1), ("size", size, MIN_SIZE), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if not isinstance(background_correlation, int | float) or not 0 <= background_correlation <= 1:
        raise ValueError(f"background_correlation must lie in [0, 1], got {background_correlation!r}")
    if isinstance(camera, bool) or camera not in CAMERAS:
        raise ValueError(f"camera must be one of {', '.join(map(str, CAMERAS))} or both, got {camera!r}")
