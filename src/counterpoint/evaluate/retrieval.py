"""Retrieval: pictures by caption and captions by picture, the protocol `matching` between two towers.

A picture with several captions counts as found where any of them is; each caption has its one picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from counterpoint.data.samples import Labels, Samples
from counterpoint.evaluate.features import Features
from counterpoint.evaluate.matching import matching
from counterpoint.evaluate.record import Result

COLUMN = "caption"
LARGEST_ASSIGNMENT = 5000  # pictures; scipy's solver takes a minute or two for so many


def caption_sides(
    pictures: Features, samples: Samples, embed: Callable[[list[str]], Tensor]
) -> tuple[Features, Features]:
    """The pictures, and a row for every caption of theirs; who is who stands in the label column "caption".

    pictures: features of layer "z" of some of the samples, found there by key.
    embed: texts to `(n, d)`, the text tower.

    Raises ValueError for features of another layer, and samples without captions.
    """
    if pictures.layer != "z":
        raise ValueError(f"captions are embedded in layer 'z', got features of {pictures.layer!r}")
    place = {key: i for i, key in enumerate(samples.keys)}
    texts = [list(samples.texts(place[key])) for key in pictures.keys]
    owner = torch.tensor([row for row, own in enumerate(texts) for _ in own], dtype=torch.int64)
    z = embed([text for own in texts for text in own]).float().cpu()
    names = list(pictures.keys)
    return (
        Features(
            pictures.h,
            names,
            {COLUMN: Labels(torch.arange(len(names)), names)},
            f"{pictures.name}, pictures",
            "z",
        ),
        Features(
            z,
            [f"{names[row]}#{number}" for row, own in enumerate(texts) for number in range(len(own))],
            {COLUMN: Labels(owner, names)},
            f"{pictures.name}, captions",
            "z",
        ),
    )


def retrieval(
    pictures: Features,
    samples: Samples,
    embed: Callable[[list[str]], Tensor],
    k: int | Sequence[int] | None = None,
) -> list[Result]:
    """Recall@k and mAP from picture to caption and back, and the share that assignment matches.

    From pictures to captions, recall@k is the share of pictures with any of their captions among the k
    nearest. From captions to pictures it is the share of captions, all of them, whose picture is. Assignment
    is one to one, a picture against the mean direction of its captions; beyond 5,000 pictures it is left out.

    Arguments and errors as of `caption_sides`; results as of `matching`.

    >>> from PIL import Image
    >>> two = [["a dot", "a point"], ["a line"]]
    >>> samples = Samples("two", ["x", "y"], lambda i: Image.new("RGB", (1, 1)), all_captions=two)
    >>> pictures = Features(torch.eye(2), ["x", "y"], name="two", layer="z")
    >>> embed = lambda texts: torch.tensor([[0.0, 1.0] if text == "a line" else [1.0, 0.0] for text in texts])
    >>> [(r.metric, r.settings["direction"], r.n, r.value) for r in retrieval(pictures, samples, embed)][:2]
    [('recall', 'picture to caption', 2, 1.0), ('mAP', 'picture to caption', 2, 1.0)]
    """
    sides = caption_sides(pictures, samples, embed)
    return matching(
        *sides,
        column=COLUMN,
        k=k,
        assignment=len(pictures) <= LARGEST_ASSIGNMENT,
        sides=("picture", "caption"),
    )
