"""Zero-shot accuracy: the class whose name, put into sentences, is embedded nearest to the picture.

As in Radford et al., "Learning transferable visual models from natural language supervision" (ICML 2021): a
class is the mean direction of its sentences, one per template; nothing is trained on the classes.

A tie goes against the encoder: a class that is as near as the right one, to 1e-9, stands before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from pydantic import JsonValue
from torch import Tensor

from counterpoint.evaluate.features import Features
from counterpoint.evaluate.knn import unit_rows
from counterpoint.evaluate.matching import TIE
from counterpoint.evaluate.record import Result
from counterpoint.extras import need
from counterpoint.names import hint

PROTOCOL = "zero_shot"
VERSION = 1
TILE = 4096  # pictures per product

SEVEN = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
IMAGENET_ENDS = ("n01440764", "n15075141")  # tench, the first class, and toilet tissue, the last one
SETS = ("photo", "clip7", "imagenet80")

Embed = Callable[[list[str]], Tensor]


def templates(given: str | Sequence[str] = "photo") -> list[str]:
    """Sentences with `{}` in the place of the name.

    given: "photo" is `a photo of a {}`; "clip7" the seven that CLIP's notebook on prompts ends with;
        "imagenet80" its eighty for ImageNet, from open_clip (extra `clip`); or sentences of your own.

    Raises ValueError for a set that is not known, and a sentence without exactly one `{}`.

    >>> templates("photo"), len(templates("clip7"))
    (['a photo of a {}'], 7)
    """
    if isinstance(given, str):
        if given not in SETS:
            raise ValueError(
                f"no set of templates {given!r}: {hint(given, SETS)}; or give a list of sentences"
            )
        if given == "imagenet80":
            made = need("open_clip.zero_shot_metadata", extra="clip").OPENAI_IMAGENET_TEMPLATES
            return [template("{}") for template in made]
        return list(SEVEN) if given == "clip7" else ["a photo of a {}"]
    sentences = list(given)
    if not sentences:
        raise ValueError("templates has no entry: at least one sentence is needed")
    for sentence in sentences:
        if not isinstance(sentence, str) or sentence.count("{}") != 1:
            raise ValueError(f"template {sentence!r} must have one {{}}, the place of the class name")
    return sentences


def imagenet_names(ids: Sequence[str]) -> list[str]:
    """CLIP's names of the 1,000 classes of ImageNet, from open_clip (extra `clip`), in their order.

    They were chosen by hand to be told apart: by the first words of the synsets two classes are `crane`.

    ids: the WordNet ids of the classes that are asked for.

    Raises ValueError where they are not those of ImageNet in ascending order.
    """
    names: list[str] = list(need("open_clip.zero_shot_metadata", extra="clip").IMAGENET_CLASSNAMES)
    given = list(ids)
    if len(given) != len(names) or given != sorted(given) or (given[0], given[-1]) != IMAGENET_ENDS:
        raise ValueError(
            "names='imagenet' are those of ImageNet's 1,000 classes in the order of their WordNet ids, which "
            "this data does not have: leave it out, and the names are the data's own"
        )
    return names


def class_vectors(embed: Embed, names: Sequence[str], sentences: Sequence[str]) -> Tensor:
    """One unit vector per class, `(classes, d)` float64: the mean direction of its sentences.

    embed: texts to `(n, d)`. Underscores in names become spaces.
    """
    clean = [" ".join(name.replace("_", " ").split()) for name in names]
    for number, name in enumerate(clean):
        if not name:
            raise ValueError(f"class {number} has the name {names[number]!r}: it must have letters")
    texts = [sentence.replace("{}", name) for name in clean for sentence in sentences]
    vectors = unit_rows(embed(texts).double()).reshape(len(clean), len(sentences), -1)
    return unit_rows(vectors.mean(1))


def zero_shot(
    pictures: Features,
    embed: Embed,
    column: str | None = None,
    sentences: str | Sequence[str] = "photo",
    k: int | Sequence[int] = (1, 5),
    names: Sequence[str] | None = None,
) -> list[Result]:
    """The share of pictures whose class is among the k nearest, one result per k.

    Use when pictures and texts are embedded in one space, and you want a number without any training.
    Relations: with one template and k=1 it is the accuracy of a linear classifier whose weights are the
    embedded names; with as many classes as k it is 1.

    pictures: of layer "z", the space that texts are embedded in.
    embed: texts to `(n, d)`, the text tower.
    column: the label column whose class names are used; the first one if not given. Rows without a label are
        left out and counted in the settings. All names are candidates, also those of no picture.
    sentences: see `templates`.
    k: at most the number of classes.
    names: one for each class; those of the column if not given.

    Raises ValueError for features of another layer or width, no labelled row, a k out of range, and too many
    or too few names.

    >>> from counterpoint.data.samples import Labels
    >>> animals = Labels(torch.tensor([0, 1, 1]), ["cat", "dog"])
    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.2]])
    >>> pictures = Features(h, keys=["a", "b", "c"], labels={"animal": animals}, layer="z")
    >>> embed = lambda texts: torch.tensor([[1.0, 0.0] if "cat" in text else [0.0, 1.0] for text in texts])
    >>> [round(result.value, 2) for result in zero_shot(pictures, embed, k=(1, 2))]
    [0.67, 1.0]
    """
    if pictures.layer != "z":
        raise ValueError(f"zero_shot compares with texts in layer 'z', got features of {pictures.layer!r}")
    column, labels = pictures.column(column)
    chosen = templates(sentences)
    ks = [k] if isinstance(k, int) else list(k)
    for one in ks:
        if type(one) is not int or not 1 <= one <= len(labels.names):
            raise ValueError(f"k must be between 1 and the {len(labels.names)} classes, got {one!r}")
    known = labels.known
    if not ks or not bool(known.any()):
        raise ValueError(f"zero_shot needs a k and a labelled row in {column!r} of {pictures.name!r}")
    called = list(labels.names if names is None else names)
    if len(called) != len(labels.names):
        raise ValueError(f"{len(called)} names for the {len(labels.names)} classes of {column!r}")
    classes = class_vectors(embed, called, chosen)
    if classes.shape[1] != pictures.width:
        raise ValueError(f"pictures are embedded in {pictures.width} dimensions, texts in {classes.shape[1]}")
    before = ranks_of_classes(pictures.h[known], labels.values[known], classes)
    settings: dict[str, JsonValue] = {
        "layer": pictures.layer,
        "column": column,
        "test": pictures.name,
        "test_unlabelled": len(pictures) - int(known.sum()),
        "classes": len(labels.names),
        "templates": sentences if isinstance(sentences, str) else f"{len(chosen)} of one's own",
        "templates_sha256": _digest(chosen),
        "names_sha256": _digest(called),
    }
    return [
        Result(
            protocol=PROTOCOL,
            version=VERSION,
            value=float((before < one).double().mean()),
            n=len(before),
            settings={"k": one, **settings},
        )
        for one in ks
    ]


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def ranks_of_classes(h: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """How many other classes are as near to each picture as its own, `(n,)` int64.

    >>> ranks_of_classes(torch.eye(2), torch.tensor([0, 0]), torch.eye(2).double())
    tensor([0, 1])
    """
    found = []
    for start in range(0, len(h), TILE):
        block = unit_rows(h[start : start + TILE].double())
        cosine = block @ classes.double().T
        own = cosine.gather(1, labels[start : start + TILE, None])
        found.append((cosine >= own - TIE).sum(1) - 1)
    return torch.cat(found)
