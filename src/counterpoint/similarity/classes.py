"""Graphs from class names and from one vector per sample."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from counterpoint.data.samples import UNLABELLED
from counterpoint.objectives.tiles import ClassTable, Cosines
from counterpoint.similarity.checks import TOLERANCE, check_ids, check_labels, check_symmetric
from counterpoint.similarity.graph import SimilarityGraph
from counterpoint.similarity.text import PACKAGED, encode_distinct, encode_texts, encoder_title
from counterpoint.similarity.tiles import GraphTiles, UnitTiles

TEMPLATE = "a photo of a {}"
CHECK_ROWS = 65_536


class ClassGraph(SimilarityGraph):
    """Samples are as alike as their classes: the graph of X-CLR on ImageNet.

    labels: `(n,)` integers from 0 to C-1; -1 for an unlabelled sample, which is related only to itself
        and has similarity 0 to all others.
    table: `(C, C)` real, finite, symmetric, no entry above 1. Two samples of class c have similarity
        `table[c, c]`; a sample and itself have 1.

    Raises ValueError that names the first bad label or entry.

    Source: X-Sample Contrastive Loss (arXiv 2407.18134).

    >>> table = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    >>> ClassGraph(torch.tensor([0, 0, 1, -1]), table).batch(torch.tensor([0, 1, 2, 3]))
    tensor([[1.0000, 1.0000, 0.6000, 0.0000],
            [1.0000, 1.0000, 0.6000, 0.0000],
            [0.6000, 0.6000, 1.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 1.0000]])
    """

    def __init__(self, labels: Tensor, table: Tensor, name: str = "classes") -> None:
        self.labels = check_labels(labels)
        table = check_symmetric(table, "table")
        if int(self.labels.max()) >= len(table):
            raise ValueError(
                f"the table has {len(table)} classes, but the labels go up to {int(self.labels.max())}: "
                f"{int(self.labels.max()) + 1} classes are needed"
            )
        above = table > 1 + TOLERANCE
        if bool(above.any()):
            i, j = above.nonzero()[0].tolist()
            raise ValueError(
                f"table[{i}, {j}] is {float(table[i, j]):g}: no two classes can be more alike than 1, "
                "the similarity of a sample to itself"
            )
        self.table, self.name = table.clamp(max=1).to(self.labels.device), name
        self.bounds = min(0.0, float(table.min())), 1.0

    @classmethod
    def from_names(
        cls,
        labels: Tensor,
        names: Sequence[str],
        template: str = TEMPLATE,
        encoder: str = PACKAGED,
        device: str | None = None,
    ) -> Self:
        """The classes are as alike as sentences about their names: cosine of a text encoder.

        names: one per class, in label order; underscores become spaces. Two classes of one name (ImageNet has
            two cranes) have similarity 1, with a warning: give them different names to tell them apart.
        template: a sentence with `{}` where the name goes.
        encoder, device: as in `encode_texts`.

        Raises ValueError for fewer names than classes, an empty name, a template without `{}`.

        >>> graph = ClassGraph.from_names(torch.tensor([0, 1, 2]), ["maple_tree", "oak_tree", "bus"])
        >>> g = graph.batch(torch.tensor([0, 1, 2]))
        >>> graph.name, bool(g[0, 1] > g[0, 2])
        ('class names (all-MiniLM-L6-v2)', True)
        """
        labels = check_labels(labels)
        if not isinstance(template, str) or "{}" not in template:
            raise ValueError(f"template must have {{}} where the class name goes, got {template!r}")
        names = clean_names(names)
        if int(labels.max()) >= len(names):
            raise ValueError(
                f"{len(names)} class names for {int(labels.max()) + 1} classes: one name each is needed"
            )
        vectors = encode_texts([template.replace("{}", name) for name in names], encoder, device=device)
        table = EmbeddingGraph(vectors).batch(torch.arange(len(names)))
        return cls(labels, table, f"class names ({encoder_title(encoder)})")

    def __len__(self) -> int:
        return len(self.labels)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        rows, columns = rows.to(self.labels.device), columns.to(self.labels.device)
        a, b = self.labels[rows], self.labels[columns]
        # Label -1 would index the last class; its rows are overwritten.
        value = self.table[a.clamp_min(0)[:, None], b.clamp_min(0)]
        value.masked_fill_((a == UNLABELLED)[:, None] | (b == UNLABELLED), 0.0)
        return value.masked_fill_(rows[:, None] == columns, 1.0)

    def _tiles(self, ids: Tensor) -> GraphTiles:
        tiles = super()._tiles(ids)
        tiles.features = ClassTable(self.labels[ids.to(self.labels.device)], self.table, ids)
        return tiles


class EmbeddingGraph(SimilarityGraph):
    """Samples are as alike as their vectors: the cosine, from -1 to 1; a sample and itself have exactly 1.

    vectors: `(m, d)` floating point, of any length above 0: normalised when a batch asks for them, so half
        precision or a memory-mapped tensor stays as it is. Not copied.
    index: `(n,)` int64, the row of `vectors` that each of the n samples has; by default each has its own, and
        n = m. Samples that share a row have exactly 1.

    Raises ValueError with the number of the first row that is zero or not finite.

    >>> graph = EmbeddingGraph(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]]), "poses")
    >>> graph.batch(torch.tensor([0, 1, 2]))
    tensor([[1.0000, 0.0000, 0.6000],
            [0.0000, 1.0000, 0.8000],
            [0.6000, 0.8000, 1.0000]])
    """

    bounds = (-1.0, 1.0)

    def __init__(self, vectors: Tensor, name: str = "embeddings", *, index: Tensor | None = None) -> None:
        if not isinstance(vectors, Tensor) or not vectors.is_floating_point() or vectors.ndim != 2:
            got = (
                f"{vectors.dtype} of shape {tuple(vectors.shape)}"
                if isinstance(vectors, Tensor)
                else type(vectors).__name__
            )
            raise ValueError(f"vectors must be a floating-point tensor of shape (n, d), got {got}")
        if not len(vectors) or not vectors.shape[1]:
            raise ValueError(
                f"vectors has shape {tuple(vectors.shape)}: at least one row and one column are needed"
            )
        for start in range(0, len(vectors), CHECK_ROWS):
            _check_rows(vectors[start : start + CHECK_ROWS], start)
        if index is not None:
            check_ids(index, len(vectors), "index")
            if not len(index):
                raise ValueError("index has no entry: at least one sample is needed")
            index = index.to(vectors.device)
        self.vectors, self.index, self.name = vectors.detach(), index, name

    @classmethod
    def from_texts(
        cls,
        captions: Sequence[str],
        encoder: str = PACKAGED,
        batch_size: int | None = None,
        device: str | None = None,
    ) -> Self:
        """One caption per sample: the graph of X-CLR on image-caption pairs. Equal captions have exactly 1.

        encoder, batch_size, device: as in `encode_texts`; so are the errors.

        >>> graph = EmbeddingGraph.from_texts(["a dog runs", "the dog is running", "a red bus", "a dog runs"])
        >>> g = graph.batch(torch.tensor([0, 1, 2, 3]))
        >>> graph.name, bool(g[0, 1] > g[0, 2]), float(g[0, 3])
        ('captions (all-MiniLM-L6-v2)', True, 1.0)
        """
        vectors, index = encode_distinct(captions, encoder, batch_size, device)
        return cls(vectors, f"captions ({encoder_title(encoder)})", index=index)

    def __len__(self) -> int:
        return len(self.vectors) if self.index is None else len(self.index)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        rows, columns = self._rows(rows), self._rows(columns)
        # Autocast would take this product in half precision, and round the cosines to about 0.004.
        with torch.autocast(rows.device.type, enabled=False):
            value = self._unit(rows) @ self._unit(columns).T
        return value.clamp_(-1, 1).masked_fill_(rows[:, None] == columns, 1.0)

    def _tiles(self, ids: Tensor) -> GraphTiles:
        rows = self._rows(ids)
        with torch.no_grad():
            unit = UnitTiles(self._unit(rows).to(ids.device), rows.to(ids.device))
        return GraphTiles(len(ids), unit, self.bounds, Cosines(unit.unit, unit.row))

    def _rows(self, ids: Tensor) -> Tensor:
        """Which of the vectors the samples have, on the vectors' device."""
        rows = ids.to(self.vectors.device)
        return rows if self.index is None else self.index[rows]

    def _unit(self, rows: Tensor) -> Tensor:
        z = self.vectors[rows].double()
        # Divided by its largest entry first: the square of 1e200 is not finite.
        z = z / z.abs().amax(dim=1, keepdim=True)
        unit: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True)
        return unit.float()


def _check_rows(vectors: Tensor, start: int) -> None:
    bad = ~(vectors.isfinite().all(dim=1) & (vectors != 0).any(dim=1))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        kind = "zero" if bool(vectors[row].isfinite().all()) else "not finite"
        raise ValueError(f"vectors[{start + row}] is {kind}: every vector must be finite and longer than 0")


def clean_names(names: Sequence[str]) -> list[str]:
    """Class names as words: underscores and runs of white space become one space. A warning names twins.

    Raises ValueError for none at all, and for a name that is empty or no string.

    >>> clean_names(["school_bus", " oak  tree"])
    ['school bus', 'oak tree']
    """
    if isinstance(names, str) or not len(names):
        raise ValueError(f"names must be a sequence of class names, got {names!r}")
    for row, name in enumerate(names):
        if not isinstance(name, str) or not name.replace("_", " ").strip():
            raise ValueError(f"names[{row}] is {name!r}: every class name must be a string that is not empty")
    clean = [" ".join(name.replace("_", " ").split()) for name in names]
    first = {name: row for row, name in reversed(list(enumerate(clean)))}
    twins = [f"{first[name]} and {row} ({name})" for row, name in enumerate(clean) if first[name] != row]
    if twins:
        warnings.warn(
            f"classes with one name, which this graph cannot tell apart: {', '.join(twins[:10])}",
            stacklevel=3,
        )
    return clean
