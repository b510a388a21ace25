"""What every data source gives: pictures by index, and what is known of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from PIL import Image
from torch import Tensor

UNLABELLED = -1


@dataclass(frozen=True)
class Labels:
    """One integer label per sample and the names of the classes.

    values: `(n,)` int64, `UNLABELLED` (-1) where a sample has none.
    names: one name per class, in label order.
    ids: what a taxonomy calls each class, where the source knows: WordNet's ids, say.
    """

    values: Tensor
    names: Sequence[str]
    ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.values.is_floating_point() or self.values.dtype == torch.bool:
            raise ValueError(f"label values must be integers, got {self.values.dtype}")
        if self.values.ndim != 1:
            raise ValueError(f"label values must have shape (n,), got {tuple(self.values.shape)}")
        if len(self.values) and int(self.values.max()) >= len(self.names):
            raise ValueError(
                f"label {int(self.values.max())} has no class name: {len(self.names)} names are given, "
                "and labels count from 0"
            )
        if self.ids is not None and len(self.ids) != len(self.names):
            raise ValueError(f"{len(self.ids)} ids for {len(self.names)} names of classes")
        if len(self.values) and int(self.values.min()) < UNLABELLED:
            raise ValueError(f"label {int(self.values.min())} is not allowed: use {UNLABELLED} for no label")

    @property
    def known(self) -> Tensor:
        """`(n,)` bool: which samples have a label."""
        return self.values != UNLABELLED


@dataclass(frozen=True)
class Samples:
    """A split of a data set: pictures by index, and what is known of each.

    keys: one string per sample that stays the same from run to run (a path, a shard key, a row number).
    picture: `picture(i)` decodes sample i to an RGB `PIL.Image`.
    labels: named label columns; the first one is the default of probes and graphs.
    captions: one text per sample, or None.
    all_captions: every text of each sample, where some have several; `captions` has the first of each.
    tensor: where all pictures have one size and fit in memory, all of them as `(n, 3, h, w)` uint8;
        `picture` then shows the same pixels.
    """

    name: str
    keys: Sequence[str]
    picture: Callable[[int], Image.Image]
    labels: Mapping[str, Labels] = field(default_factory=dict)
    captions: Sequence[str] | None = None
    tensor: Tensor | None = None
    all_captions: Sequence[Sequence[str]] | None = None

    def __post_init__(self) -> None:
        n = len(self.keys)
        for column, labels in self.labels.items():
            if len(labels.values) != n:
                raise ValueError(f"label column {column!r} has {len(labels.values)} values for {n} samples")
        if self.captions is not None and len(self.captions) != n:
            raise ValueError(f"{len(self.captions)} captions for {n} samples")
        if self.all_captions is not None and len(self.all_captions) != n:
            raise ValueError(f"{len(self.all_captions)} lists of captions for {n} samples")
        if self.tensor is not None and len(self.tensor) != n:
            raise ValueError(f"the picture tensor has {len(self.tensor)} rows for {n} samples")

    def __len__(self) -> int:
        return len(self.keys)

    def texts(self, i: int) -> Sequence[str]:
        """Every caption of sample i; ValueError where the data has none.

        >>> Samples("one", ["a"], lambda i: Image.new("RGB", (1, 1)), captions=["a dot"]).texts(0)
        ['a dot']
        """
        if self.all_captions is not None:
            return self.all_captions[i]
        if self.captions is None:
            raise ValueError(f"data {self.name!r} has no captions")
        return [self.captions[i]]

    def column(self, name: str | None = None) -> Labels:
        """The label column of that name, or the first one."""
        if not self.labels:
            raise ValueError(f"data {self.name!r} has no labels")
        if name is None:
            return next(iter(self.labels.values()))
        if name not in self.labels:
            raise ValueError(
                f"data {self.name!r} has no label column {name!r}; it has {', '.join(self.labels)}"
            )
        return self.labels[name]

    def subset(self, indices: Sequence[int] | Tensor) -> Samples:
        """The samples at these indices, in this order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64).tolist()
        return Samples(
            name=self.name,
            keys=[self.keys[i] for i in chosen],
            picture=lambda i: self.picture(chosen[i]),
            labels={k: replace(v, values=v.values[chosen]) for k, v in self.labels.items()},
            captions=None if self.captions is None else [self.captions[i] for i in chosen],
            tensor=None if self.tensor is None else self.tensor[chosen],
            all_captions=None if self.all_captions is None else [self.all_captions[i] for i in chosen],
        )
