"""The similarity of a batch a tile at a time, so that an objective never needs the whole of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from counterpoint.objectives.tiles import Features

Bounds = tuple[float, float]


class GraphTiles:
    """The similarity of the n samples of a batch, of which any tile can be had: `Tiles` for an objective.

    Symmetric up to rounding. What its tiles are made of was looked up once, for the n samples alone, and is
    on the device of their ids.

    between: the similarity `(a, b)` of the places `rows` to the places `columns`, both slices of the batch.
    bounds: numbers that no entry lies outside of; None where they are not known.
    features: what a kernel can compute the same similarity from; None where there is nothing so simple.

    >>> from counterpoint.similarity import InstanceGraph
    >>> tiles = InstanceGraph(5).tiles(torch.tensor([4, 0, 4]))
    >>> tiles.tile(slice(0, 1), slice(0, 3)), tiles.bounds
    (tensor([[1., 0., 1.]]), (0.0, 1.0))
    """

    symmetric = True

    def __init__(
        self,
        n: int,
        between: Callable[[slice, slice], Tensor],
        bounds: Bounds | None,
        features: Features | None = None,
    ) -> None:
        self.n, self.between, self.bounds, self.features = n, between, bounds, features

    def __len__(self) -> int:
        return self.n

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Those samples against these, `(a, b)` float32; both slices have a start and a stop."""
        with torch.no_grad():
            tile = self.between(rows, columns)
        if rows != columns:
            return tile
        # A matrix product may round (i, j) and (j, i) differently; their mean is the same both ways.
        return (tile + tile.T) / 2


class UnitTiles:
    """Cosines of unit vectors `(n, d)`, places that hold the same `row` (an integer each) with exactly 1."""

    def __init__(self, unit: Tensor, row: Tensor) -> None:
        self.unit, self.row = unit, row
        self.repeats = len(torch.unique(row)) < len(row)

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        # Autocast would take this product in half precision, and round the cosines to about 0.004.
        with torch.autocast(self.unit.device.type, enabled=False):
            value = (self.unit[rows] @ self.unit[columns].T).clamp_(-1, 1)
        if self.repeats:
            return value.masked_fill_(self.row[rows, None] == self.row[columns], 1.0)
        if max(rows.start, columns.start) < min(rows.stop, columns.stop):
            value.diagonal(rows.start - columns.start).fill_(1.0)
        return value
