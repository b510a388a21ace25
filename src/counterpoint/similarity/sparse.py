"""Graphs in which each sample is related to a few others only."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array  # type: ignore[import-untyped]
from torch import Tensor

from counterpoint.similarity.checks import check_count, check_ids
from counterpoint.similarity.graph import SimilarityGraph
from counterpoint.similarity.tables import table_rows

BLOCK = 1024
WIDE = 65_536


class SparseGraph(SimilarityGraph):
    """Samples are related along edges; all other pairs have 0, a sample and itself 1.

    rows, columns: `(m,)` int64, the two samples of each edge. An edge given one way counts both ways; one
        that comes several times has its largest weight. Edges of a sample to itself are left out.
    weights: `(m,)` finite; 1 each if not given.
    n: the number of samples.

    Memory grows with the edges, and a batch costs its n x n block and the edges of its samples.

    Raises ValueError on ids outside 0..n-1, a weight that is not finite or is 0, or counts that differ.

    >>> graph = SparseGraph(torch.tensor([0, 1]), torch.tensor([1, 3]), torch.tensor([0.5, 0.25]), n=4)
    >>> graph.batch(torch.tensor([0, 1, 3, 1]))
    tensor([[1.0000, 0.5000, 0.0000, 0.5000],
            [0.5000, 1.0000, 0.2500, 1.0000],
            [0.0000, 0.2500, 1.0000, 0.2500],
            [0.5000, 1.0000, 0.2500, 1.0000]])
    """

    def __init__(
        self, rows: Tensor, columns: Tensor, weights: Tensor | None = None, *, n: int, name: str = "edges"
    ) -> None:
        n = check_count(n)
        check_ids(rows, n, "rows")
        check_ids(columns, n, "columns")
        if weights is None:
            weights = torch.ones(len(rows))
        if not isinstance(weights, Tensor) or weights.is_complex() or weights.ndim != 1:
            raise ValueError("weights must be a tensor of real numbers of shape (m,)")
        if not len(rows) == len(columns) == len(weights):
            raise ValueError(
                f"rows, columns and weights must be equally many, got {len(rows)}, {len(columns)} and "
                f"{len(weights)}"
            )
        value = weights.detach().cpu().to(torch.float32)
        bad = ~value.isfinite() | (value == 0)
        if bool(bad.any()):
            k = int(bad.nonzero()[0])
            raise ValueError(
                f"weights[{k}] is {float(weights[k]):g}: a weight must be finite, and pairs of weight 0 are "
                "those that are not given"
            )
        self.matrix = _symmetric(rows.cpu().numpy(), columns.cpu().numpy(), value.numpy(), n)
        self.name = name

    @classmethod
    def nearest(cls, graph: SimilarityGraph, k: int, least: float = 0.0, name: str | None = None) -> Self:
        """Each sample with its k nearest others in another graph, found exactly, block by block.

        graph: such as `EmbeddingGraph(vectors)`. least: neighbours not above this are left out.

        A pair is kept where either is among the nearest of the other, so a sample may have more than k.
        Work grows with the square of n, memory with n k and a tile of 1,024 by 65,536.

        >>> from counterpoint.similarity import EmbeddingGraph
        >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.2, 1.0]])
        >>> SparseGraph.nearest(EmbeddingGraph(points), k=1).batch(torch.arange(4)).round(decimals=2)
        tensor([[1.0000, 1.0000, 0.0000, 0.0000],
                [1.0000, 1.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 1.0000, 0.9800],
                [0.0000, 0.0000, 0.9800, 1.0000]])
        """
        n, k = len(graph), check_count(k, "k")
        if k >= n:
            raise ValueError(f"k is {k}, but there are only {n - 1} other samples")
        if not 0 <= least < 1:
            raise ValueError(f"least must lie in [0, 1), got {least}")
        everyone = torch.arange(n)
        rows, columns, weights = [], [], []
        for start in range(0, n, BLOCK):
            ids = everyone[start : start + BLOCK]
            value, near = torch.empty(len(ids), 0), torch.empty(len(ids), 0, dtype=torch.int64)
            for left in range(0, n, WIDE):
                found = graph.between(ids, everyone[left : left + WIDE])
                found.masked_fill_(ids[:, None] == everyone[left : left + WIDE], -torch.inf)
                best, place = found.topk(min(k, found.shape[1]), dim=1)
                value, near = torch.cat([value, best], dim=1), torch.cat([near, place + left], dim=1)
                if value.shape[1] > k:
                    value, place = value.topk(k, dim=1)
                    near = near.gather(1, place)
            kept = value > least
            rows.append(ids[:, None].expand_as(near)[kept])
            columns.append(near[kept])
            weights.append(value[kept])
        title = f"{k} nearest in {graph.name}" if name is None else name
        return cls(torch.cat(rows), torch.cat(columns), torch.cat(weights), n=n, name=title)

    @classmethod
    def read(cls, path: str | Path, keys: list[str], name: str | None = None) -> Self:
        """From an edge list: `.csv`, `.tsv` or `.parquet` with the columns `a`, `b` and `weight`.

        keys: the keys of the samples, in their order; `a` and `b` are keys.

        Edges to keys that are not among these samples are passed over: they may be of the other split.

        Raises ValueError by row, and where no edge is between two of these samples.
        """
        file = Path(path).expanduser()
        if not file.is_file() or file.suffix.lower() not in (".csv", ".tsv", ".parquet"):
            raise ValueError(f"edges {file} must be a file that ends in .csv, .tsv or .parquet")
        place = {key: row for row, key in enumerate(keys)}
        rows, columns, weights = [], [], []
        for number, (a, b, text) in enumerate(table_rows(file, ("a", "b", "weight")), start=1):
            try:
                weight = float(text)
            except ValueError:
                raise ValueError(f"{file}, row {number}: weight must be a number, got {text!r}") from None
            if not np.isfinite(weight) or weight == 0:
                raise ValueError(f"{file}, row {number}: weight must be finite and not 0, got {text!r}")
            if a in place and b in place:
                rows.append(place[a])
                columns.append(place[b])
                weights.append(weight)
        if not rows:
            raise ValueError(
                f"{file} has no edge between two of the {len(keys)} samples, such as {keys[0]!r}"
            )
        edges = torch.tensor([rows, columns])
        title = f"edges ({file.name})" if name is None else name
        return cls(edges[0], edges[1], torch.tensor(weights), n=len(keys), name=title)

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        wanted, inverse = np.unique(columns.cpu().numpy(), return_inverse=True)
        lines = self.matrix[rows.cpu().numpy()]
        # Each stored edge of these rows, at the place of its column among the wanted ones, if it is one.
        place = np.searchsorted(wanted, lines.indices).clip(max=len(wanted) - 1)
        kept = wanted[place] == lines.indices if len(wanted) else np.zeros(len(place), dtype=bool)
        line = np.repeat(np.arange(len(rows)), np.diff(lines.indptr))
        block = np.zeros((len(rows), len(wanted)), dtype=np.float32)
        block[line[kept], place[kept]] = lines.data[kept]
        value = torch.from_numpy(block[:, inverse]).to(rows.device)
        return value.masked_fill_(rows[:, None] == columns, 1.0)


def _symmetric(
    rows: NDArray[np.int64], columns: NDArray[np.int64], weights: NDArray[np.float32], n: int
) -> csr_array:
    other = rows != columns
    low, high = np.minimum(rows, columns)[other], np.maximum(rows, columns)[other]
    weights = weights[other]
    # Sorted by pair and then by weight, the last of each pair is its largest.
    order = np.lexsort((weights, high, low))
    low, high, weights = low[order], high[order], weights[order]
    last = np.ones(len(low), dtype=bool)
    last[:-1] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    low, high, weights = low[last], high[last], weights[last]
    both = np.concatenate([weights, weights])
    return coo_array((both, (np.concatenate([low, high]), np.concatenate([high, low]))), shape=(n, n)).tocsr()
