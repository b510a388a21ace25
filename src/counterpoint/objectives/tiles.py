"""Targets that are given a tile at a time, so that n x n of them never exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Cosines:
    """A similarity that is the cosine of unit vectors `(n, d)`, and 1 where numbers `row` `(n,)` agree."""

    vectors: Tensor
    row: Tensor


@dataclass(frozen=True)
class ClassTable:
    """A similarity that a table `(C, C)` has by labels `(n,)`, and 1 where numbers `row` `(n,)` agree.

    Label -1 has 0 with all others. Labels and rows are int64.
    """

    labels: Tensor
    table: Tensor
    row: Tensor


Features = Cosines | ClassTable
"""What a kernel can compute a similarity from by itself."""


@runtime_checkable
class Tiles(Protocol):
    """A similarity of n samples to each other, of which any tile can be had.

    Three more attributes make it faster, where it has them:

    symmetric: True where `tile(a, b)` is `tile(b, a).T` up to rounding; half of the tiles are enough then.
    bounds: a pair of numbers that no entry lies outside of.
    features: `Features` that say the same as `tile`, for kernels that take no tiles; or None.

    >>> import torch
    >>> class Near:
    ...     def __init__(self, position):
    ...         self.position = position
    ...     def __len__(self):
    ...         return len(self.position)
    ...     def tile(self, rows, columns):
    ...         return -(self.position[rows, None] - self.position[columns]).abs()
    >>> from counterpoint.objectives import xclr
    >>> z, near = torch.eye(4), Near(torch.arange(4.0))
    >>> xclr(z, z, target=near, chunk_size=2), xclr(z, z, target=near.tile(slice(0, 4), slice(0, 4)))
    (tensor(0.0016), tensor(0.0016))
    """

    def __len__(self) -> int:
        """The number of samples."""

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """The similarity `(a, b)` of those samples to these, floating; the slices have a start and a stop."""


class TensorTiles:
    """The tiles of a similarity that is held as a whole, or by the rows of some anchors.

    >>> import torch
    >>> TensorTiles(torch.eye(3)).tile(slice(0, 2), slice(1, 3))
    tensor([[0., 0.],
            [1., 0.]])
    """

    def __init__(self, values: Tensor, first: int = 0) -> None:
        self.values, self.first = values, first

    def __len__(self) -> int:
        return self.values.shape[1]

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return self.values[rows.start - self.first : rows.stop - self.first, columns]


def checked_tile(tiles: Tiles, rows: slice, columns: slice, like: Tensor) -> Tensor:
    """A tile in the type and on the device of `like`, without a gradient; ValueError where it is none."""
    tile = tiles.tile(rows, columns)
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    if not isinstance(tile, Tensor) or not tile.is_floating_point() or tile.shape != shape:
        got = f"{tuple(tile.shape)} and {tile.dtype}" if isinstance(tile, Tensor) else type(tile).__name__
        raise ValueError(
            f"target: tile({rows}, {columns}) must be a floating tensor of shape {shape}, got {got}"
        )
    return tile.detach().to(like)
