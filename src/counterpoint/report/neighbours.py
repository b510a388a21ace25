"""Nearest test pictures: a gallery of a few queries, and how often neighbours share a label over many."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from counterpoint.evaluate.features import Features
from counterpoint.evaluate.similarity_map import neighbours

MOST_QUERIES = 2000
SIDES = (120, 96, 72, 56, 40)

Picture = Callable[[str], Image.Image]


@dataclass(frozen=True)
class Neighbour:
    """One test picture beside a query.

    label: its name in the first column, or an empty text. same: for each column whether it has the query's
    label; None where either has none.
    """

    key: str
    label: str
    same: tuple[bool | None, ...]


@dataclass(frozen=True)
class Query:
    """A test picture and, by index of the recipe, its nearest other test pictures, the nearest first."""

    key: str
    labels: tuple[str, ...]
    caption: str
    near: Mapping[int, tuple[Neighbour, ...]]


def shared_columns(features: Features, first: str | None) -> list[str]:
    """The label columns in which samples can agree, that of `first` leading.

    A column that numbers the samples (all labels different) says nothing about neighbours.
    """
    columns = []
    for name, labels in features.labels.items():
        known = labels.values[labels.known]
        if len(known) and len(np.unique(known.numpy())) <= len(known) / 2:
            columns.append(name)
    return sorted(columns, key=lambda name: name != first)


def pick_queries(features: Features, column: str | None, count: int) -> list[int]:
    """Positions of a few samples, drawn with a fixed seed, of different classes where there are enough.

    They are drawn without a look at any result.
    """
    order = np.random.default_rng(0).permutation(len(features))
    if column is None:
        return [int(i) for i in order[:count]]
    values = features.labels[column].values.numpy()
    seen: dict[int, int] = {}
    # Round by round through the classes: the first of each, then the second of each, ...
    rounds = []
    for place, i in enumerate(order):
        label = int(values[i])
        seen[label] = seen.get(label, -1) + 1
        rounds.append((label < 0, seen[label], place))
    ranked = [int(order[place]) for *_, place in sorted(rounds)]
    return ranked[:count]


def near(features: Features, queries: Sequence[int], k: int) -> NDArray[np.int64]:
    """Positions of the k nearest other samples by cosine, or of all where there are fewer: `(queries, k)`."""
    most = min(k, len(features) - 1)
    if not queries or most < 1:
        return np.empty((len(queries), 0), np.int64)
    found: NDArray[np.int64] = neighbours(features, queries, most)[0].numpy()
    return found


def sharing(features: Features, columns: Sequence[str], k: int) -> dict[str, float]:
    """By column, how many of the k nearest pictures share the query's label, mean over up to 2000 queries."""
    order = np.random.default_rng(1).permutation(len(features))[:MOST_QUERIES]
    found = near(features, order.tolist(), k)
    shares = {}
    for column in columns:
        values = features.labels[column].values.numpy()
        known = values[order] >= 0
        if known.any() and found.shape[1]:
            same = values[found[known]] == values[order[known]][:, None]
            shares[column] = float(same.mean() * found.shape[1])
    return shares


def describe(
    features: Features,
    queries: Sequence[int],
    found: Mapping[int, NDArray[np.int64]],
    columns: Sequence[str],
    captions: Sequence[str],
) -> list[Query]:
    """The gallery without its pictures.

    features: of any recipe; only keys and labels are read. found: `(len(queries), k)` positions by recipe.
    captions: one per sample, or empty.
    """
    return [
        Query(
            key=features.keys[query],
            labels=tuple(_label(features, column, query) for column in columns),
            caption=captions[query] if captions else "",
            near={
                index: tuple(_neighbour(features, query, int(other), columns) for other in rows[position])
                for index, rows in found.items()
            },
        )
        for position, query in enumerate(queries)
    ]


def thumbnails(queries: Sequence[Query], picture: Picture, budget: int) -> dict[str, str]:
    """A data URI for each picture of the gallery, made smaller until all, repeats counted, fit the budget.

    budget: bytes of HTML.
    """
    uses: dict[str, int] = {}
    for query in queries:
        for key in (query.key, *(n.key for row in query.near.values() for n in row)):
            uses[key] = uses.get(key, 0) + 1
    return small_pictures(uses, picture, budget)


def small_pictures(uses: Mapping[str, int], picture: Picture, budget: int) -> dict[str, str]:
    """A data URI for each key, made smaller until all, repeats counted, fit the budget of bytes."""
    originals = {key: picture(key).convert("RGB") for key in uses}
    made: dict[str, str] = {}
    for side in SIDES:
        made = {key: _data_uri(image, side) for key, image in originals.items()}
        if sum(len(made[key]) * count for key, count in uses.items()) <= budget:
            break
    return made


def _data_uri(image: Image.Image, side: int) -> str:
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    # Flat drawings are smaller as PNG, photographs as JPEG.
    kinds: dict[str, dict[str, Any]] = {"jpeg": {"quality": 82, "optimize": True}, "png": {"optimize": True}}
    encoded = {kind: _encoded(small, kind, options) for kind, options in kinds.items()}
    kind = min(encoded, key=lambda kind: len(encoded[kind]))
    return f"data:image/{kind};base64,{base64.b64encode(encoded[kind]).decode()}"


def _encoded(image: Image.Image, kind: str, options: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind.upper(), **options)
    return file.getvalue()


def _neighbour(features: Features, query: int, other: int, columns: Sequence[str]) -> Neighbour:
    same: list[bool | None] = []
    for column in columns:
        values = features.labels[column].values
        pair = int(values[query]), int(values[other])
        same.append(None if min(pair) < 0 else pair[0] == pair[1])
    return Neighbour(
        features.keys[other], _label(features, columns[0], other) if columns else "", tuple(same)
    )


def _label(features: Features, column: str, row: int) -> str:
    labels = features.labels[column]
    value = int(labels.values[row])
    return str(labels.names[value]) if value >= 0 else "no label"
