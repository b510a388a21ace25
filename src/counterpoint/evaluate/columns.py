"""The labelled rows of a train and a test split, checked: where every probe starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from counterpoint.evaluate.features import Features


@dataclass(frozen=True)
class Rows:
    """Labelled rows of both splits.

    train, test: features `(n, d)`; train_labels, test_labels: `(n,)` int64.
    classes: the number of class names of the column.
    settings: what a result must say about its data.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int
    settings: dict[str, JsonValue]


def labelled_rows(train: Features, test: Features, column: str | None = None) -> Rows:
    """Drop and count the unlabelled rows of both splits, and check that the splits belong together.

    Raises ValueError for splits of different layer, width or class names, for a split without a labelled
    row, and for training labels of one class only, where any probe would be right by default.

    >>> import torch
    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 1, -1]), ["x", "y"])
    >>> split = Features(torch.eye(3), keys=["a", "b", "c"], labels={"kind": kinds})
    >>> labelled_rows(split, split).settings["train_unlabelled"]
    1
    """
    column, train_labels = train.column(column)
    _, test_labels = test.column(column)
    if train.layer != test.layer:
        raise ValueError(f"train has features of layer {train.layer!r}, test of layer {test.layer!r}")
    if train.width != test.width:
        raise ValueError(f"train features are {train.width} wide, test features {test.width}")
    if list(train_labels.names) != list(test_labels.names):
        raise ValueError(
            f"column {column!r} names other classes in train ({_start(train_labels.names)}) "
            f"than in test ({_start(test_labels.names)}): equal numbers would mean different classes"
        )
    for split, labels in ((train, train_labels), (test, test_labels)):
        if not bool(labels.known.any()):
            raise ValueError(f"column {column!r} labels none of the {len(split)} samples of {split.name!r}")
    y = train_labels.values[train_labels.known]
    found = torch.unique(y)
    if len(found) == 1:
        raise ValueError(
            f"column {column!r} has one class ({train_labels.names[int(found[0])]!r}) among the labelled "
            f"samples of {train.name!r}; a probe needs two"
        )
    test_y = test_labels.values[test_labels.known]
    settings: dict[str, JsonValue] = {
        "layer": train.layer,
        "column": column,
        "train": train.name,
        "test": test.name,
        "train_n": len(y),
        "train_unlabelled": len(train) - len(y),
        "test_unlabelled": len(test) - len(test_y),
        "train_classes": len(found),
        # A probe cannot name a class it never saw, so these count as errors.
        "test_n_unseen": int((~torch.isin(test_y, found)).sum()),
    }
    return Rows(
        _rows(train.h, train_labels.known),
        y,
        _rows(test.h, test_labels.known),
        test_y,
        len(train_labels.names),
        settings,
    )


def _rows(h: Tensor, known: Tensor) -> Tensor:
    # Selecting copies, and features may fill much of the memory.
    return h if bool(known.all()) else h[known]


def _start(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)}: {shown}{', ...' if len(names) > 3 else ''}"
