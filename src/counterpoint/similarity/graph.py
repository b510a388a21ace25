"""How alike the samples of a data set are, looked up batch by batch.

A graph never holds or builds the matrix of all samples, unless that matrix is what the user gave.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.samples import UNLABELLED
from counterpoint.similarity.checks import check_count, check_ids, check_labels, check_symmetric
from counterpoint.similarity.tiles import GraphTiles


class SimilarityGraph(ABC):
    """The similarity of any samples of a data set to each other.

    A graph of your own sets `name` and writes `__len__` and `_between`.

    name: short words for reports, such as "class names (all-MiniLM-L6-v2)".
    bounds: two numbers that no similarity lies outside of, or None; tiles are quicker where they are known.

    >>> class Years(SimilarityGraph):
    ...     def __init__(self, year):
    ...         self.year, self.name = year, "years"
    ...     def __len__(self):
    ...         return len(self.year)
    ...     def _between(self, rows, columns):
    ...         return torch.exp2(-(self.year[rows, None] - self.year[columns]).abs())
    >>> Years(torch.tensor([1999.0, 2000.0, 2002.0])).batch(torch.tensor([0, 1, 2]))
    tensor([[1.0000, 0.5000, 0.1250],
            [0.5000, 1.0000, 0.2500],
            [0.1250, 0.2500, 1.0000]])
    """

    name: str
    bounds: tuple[float, float] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self)} samples)"

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Similarity `(a, b)` of the samples `rows` `(a,)` to `columns` `(b,)`: ids already checked."""

    def batch(self, ids: Tensor) -> Tensor:
        """The similarity `(n, n)` float32 of the samples `ids` `(n,)` int64 to each other.

        Symmetric, on the device of the ids. Ids may repeat: two places that hold the same sample have the
        similarity of its diagonal.

        Raises ValueError for ids of another type or shape, or outside 0..len-1.

        >>> InstanceGraph(5).batch(torch.tensor([4, 0, 4]))
        tensor([[1., 0., 1.],
                [0., 1., 0.],
                [1., 0., 1.]])
        """
        check_ids(ids, len(self))
        target = self._float32(ids, ids)
        # A matrix product may round (i, j) and (j, i) differently; their mean is the same both ways.
        return (target + target.T) / 2

    def between(self, rows: Tensor, columns: Tensor) -> Tensor:
        """One tile `(a, b)` float32: the samples `rows` `(a,)` against `columns` `(b,)`, both int64.

        Raises ValueError as `batch` does.

        >>> InstanceGraph(5).between(torch.tensor([4]), torch.tensor([0, 4]))
        tensor([[0., 1.]])
        """
        check_ids(rows, len(self), "rows")
        check_ids(columns, len(self), "columns")
        return self._float32(rows, columns)

    def tiles(self, ids: Tensor) -> GraphTiles:
        """The similarity of the samples `ids` `(n,)` to each other a tile at a time; `batch` gives it whole.

        Takes O(n) memory and what a graph holds of each sample, such as a vector. Raises ValueError as
        `batch` does.

        >>> tiles = InstanceGraph(5).tiles(torch.tensor([4, 0, 4]))
        >>> tiles.tile(slice(1, 3), slice(0, 3))
        tensor([[0., 1., 0.],
                [1., 0., 1.]])
        """
        check_ids(ids, len(self))
        return self._tiles(ids)

    def _tiles(self, ids: Tensor) -> GraphTiles:
        """As `tiles`, for ids already checked: by `_between`, where a graph has nothing quicker."""
        return GraphTiles(len(ids), lambda rows, columns: self._float32(ids[rows], ids[columns]), self.bounds)

    def __add__(self, other: SimilarityGraph) -> SimilarityGraph:
        """The sum, pair by pair."""
        from counterpoint.similarity.algebra import SumGraph, terms

        if not isinstance(other, SimilarityGraph):
            return NotImplemented
        (left, v), (right, w) = terms(self), terms(other)
        return SumGraph(left + right, v + w)

    def __mul__(self, other: SimilarityGraph | float) -> SimilarityGraph:
        """The product with another graph, pair by pair, or with a number."""
        from counterpoint.similarity.algebra import ProductGraph, SumGraph, terms

        if isinstance(other, SimilarityGraph):
            return ProductGraph([self, other])
        if isinstance(other, bool) or not isinstance(other, int | float):
            return NotImplemented
        graphs, weights = terms(self)
        return SumGraph(graphs, [other * weight for weight in weights])

    __rmul__ = __mul__

    def __pow__(self, exponent: float) -> SimilarityGraph:
        """Every value to this power, negative ones first set to 0."""
        from counterpoint.similarity.algebra import PowerGraph

        return PowerGraph(self, exponent)

    def clip(self, low: float = -math.inf, high: float = math.inf) -> SimilarityGraph:
        """The graph with its values kept between these two, the diagonal too."""
        from counterpoint.similarity.algebra import ClippedGraph

        return ClippedGraph(self, low, high)

    def at_least(self, least: float) -> SimilarityGraph:
        """The graph with every value below this one set to 0."""
        from counterpoint.similarity.algebra import ThresholdGraph

        return ThresholdGraph(self, least)

    def _float32(self, rows: Tensor, columns: Tensor) -> Tensor:
        with torch.no_grad():
            return self._between(rows, columns).to(device=rows.device, dtype=torch.float32)


class InstanceGraph(SimilarityGraph):
    """Every sample is like itself (1) and nothing else (0): the graph of InfoNCE and SimCLR.

    n: the number of samples, at least 1.

    >>> InstanceGraph(3).batch(torch.tensor([2, 0]))
    tensor([[1., 0.],
            [0., 1.]])
    """

    bounds = (0.0, 1.0)

    def __init__(self, n: int, name: str = "instances") -> None:
        self.n, self.name = check_count(n), name

    def __len__(self) -> int:
        return self.n

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        return rows[:, None] == columns


class LabelGraph(SimilarityGraph):
    """Samples of one class are alike (1), all others are not (0): the graph of SupCon.

    labels: `(n,)` integers from 0; -1 for an unlabelled sample, which is related only to itself.

    >>> LabelGraph(torch.tensor([0, 0, 1, -1, -1])).batch(torch.tensor([0, 1, 3, 4]))
    tensor([[1., 1., 0., 0.],
            [1., 1., 0., 0.],
            [0., 0., 1., 0.],
            [0., 0., 0., 1.]])
    """

    bounds = (0.0, 1.0)

    def __init__(self, labels: Tensor, name: str = "labels") -> None:
        self.labels, self.name = check_labels(labels), name

    def __len__(self) -> int:
        return len(self.labels)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        rows, columns = rows.to(self.labels.device), columns.to(self.labels.device)
        a, b = self.labels[rows], self.labels[columns]
        return ((a[:, None] == b) & (b != UNLABELLED)) | (rows[:, None] == columns)


class MatrixGraph(SimilarityGraph):
    """Your own similarities, for a data set small enough to hold them all.

    matrix: `(n, n)` real, finite, symmetric to 1e-5 (relative to the larger of 1 and the entry). Entry and
        diagonal values are used as given; 1 on the diagonal makes the second view of a sample its best match.

    Raises ValueError that names the first bad entry.

    >>> MatrixGraph(torch.tensor([[1.0, 0.3], [0.3, 1.0]])).batch(torch.tensor([1, 0, 1]))
    tensor([[1.0000, 0.3000, 1.0000],
            [0.3000, 1.0000, 0.3000],
            [1.0000, 0.3000, 1.0000]])
    """

    def __init__(self, matrix: Tensor, name: str = "matrix") -> None:
        self.matrix, self.name = check_symmetric(matrix, "matrix"), name
        self.bounds = float(self.matrix.min()), float(self.matrix.max())

    def __len__(self) -> int:
        return len(self.matrix)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        rows, columns = rows.to(self.matrix.device), columns.to(self.matrix.device)
        return self.matrix[rows[:, None], columns]


class RandomGraph(SimilarityGraph):
    """Similarities that mean nothing: a control for what a real graph adds.

    Each pair has its own value, uniform on (0, 1), that depends only on the seed and the pair: the same in
    every batch, process and machine. No table is stored.

    kind: "class" draws one value per pair of classes, with 1 inside a class and 0 between an unlabelled
        sample and every other one: labels, but with a random idea of which classes are alike. "sample" draws
        one value per pair of samples, the diagonal too: with 1 there it would be a noisy SimCLR, no control.
    labels: `(n,)` integers for "class", -1 unlabelled.
    n: the number of samples for "sample".

    Source: the ablation of graph sources in X-Sample Contrastive Loss (arXiv 2407.18134, appendix A.1).

    >>> graph = RandomGraph("class", labels=torch.tensor([0, 0, 1]), seed=0)
    >>> graph.batch(torch.tensor([0, 1, 2]))
    tensor([[1.0000, 1.0000, 0.7899],
            [1.0000, 1.0000, 0.7899],
            [0.7899, 0.7899, 1.0000]])
    """

    bounds = (0.0, 1.0)

    def __init__(
        self,
        kind: Literal["class", "sample"],
        *,
        labels: Tensor | None = None,
        n: int | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        if kind == "class":
            if labels is None or n is not None:
                raise ValueError("a random graph of kind 'class' takes labels=(n,), and no n")
            self.labels: Tensor | None = check_labels(labels)
            self.n = len(labels)
        elif kind == "sample":
            if n is None or labels is not None:
                raise ValueError(
                    "a random graph of kind 'sample' takes n=, the number of samples, and no labels"
                )
            self.labels, self.n = None, check_count(n)
        else:
            raise ValueError(f"kind must be 'class' or 'sample', got {kind!r}")
        self.seed = seed
        self.name = f"random per {kind} (seed {seed})" if name is None else name

    def __len__(self) -> int:
        return self.n

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        if self.labels is None:
            return _pair_uniform(rows, columns, self.seed)
        device = self.labels.device
        rows, columns = rows.to(device), columns.to(device)
        a, b = self.labels[rows], self.labels[columns]
        value = _pair_uniform(a, b, self.seed).to(device)
        value.masked_fill_((a == UNLABELLED)[:, None] | (b == UNLABELLED), 0.0)
        one = ((a[:, None] == b) & (b != UNLABELLED)) | (rows[:, None] == columns)
        return value.masked_fill_(one, 1.0)


def _pair_uniform(a: Tensor, b: Tensor, seed: int) -> Tensor:
    """A value in (0, 1) for each pair of integers, `(len(a), len(b))` float32, from seed and pair alone.

    One splitmix64 mix turns seed and integer into a key, a second one turns the sum of two keys (which knows
    no order) into the value.
    """
    start = _mix(np.array(seed % 2**64, dtype=np.uint64))
    key_a, key_b = (_mix(start ^ _mix(x.cpu().numpy().astype(np.uint64))) for x in (a, b))
    bits = _mix(key_a[:, None] + key_b) >> np.uint64(41)
    # 23 bits and a half step: exact in float32, and never 0 or 1.
    return torch.from_numpy((bits.astype(np.float32) + np.float32(0.5)) / np.float32(2**23))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser (Steele, Lea and Flood, OOPSLA 2014) on uint64, which wraps around."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
