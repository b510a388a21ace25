"""Graphs made of graphs: sums, products, clips, powers, thresholds, and graphs with some relations wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoint.similarity.graph import SimilarityGraph


class SumGraph(SimilarityGraph):
    """The weighted sum of graphs over the same samples; `0.5 * a + 0.5 * b` writes one.

    Nothing is normalised: with weights that sum to 1, graphs with 1 on the diagonal give 1 there.

    Raises ValueError on no graphs, graphs of different lengths, or not one finite weight per graph.

    >>> from counterpoint.similarity import InstanceGraph, LabelGraph
    >>> graph = 0.75 * LabelGraph(torch.tensor([0, 0, 1])) + 0.25 * InstanceGraph(3)
    >>> graph.batch(torch.tensor([0, 1, 2]))[0].tolist(), graph.name
    ([1.0, 0.75, 0.0], '0.75 * labels + 0.25 * instances')
    """

    def __init__(
        self, graphs: Sequence[SimilarityGraph], weights: Sequence[float], name: str | None = None
    ) -> None:
        self.graphs = _alike(graphs, "sum")
        if len(weights) != len(self.graphs):
            raise ValueError(
                f"a sum needs one weight per graph, got {len(self.graphs)} graphs and {len(weights)} weights"
            )
        # In float32, which they are used in.
        if not all(abs(weight) <= torch.finfo(torch.float32).max for weight in weights):
            raise ValueError(f"weights must be finite, got {', '.join(str(w) for w in weights)}")
        self.weights = tuple(float(weight) for weight in weights)
        terms = zip(self.graphs, self.weights, strict=True)
        self.name = name or " + ".join(g.name if w == 1 else f"{w:g} * {_factor(g)}" for g, w in terms)

    def __len__(self) -> int:
        return len(self.graphs[0])

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        total = torch.zeros(len(rows), len(columns), device=rows.device)
        for graph, weight in zip(self.graphs, self.weights, strict=True):
            total.add_(graph.between(rows, columns), alpha=weight)
        return total


class ProductGraph(SimilarityGraph):
    """The product of graphs over the same samples, pair by pair; `a * b` writes one: alike in both respects.

    Raises ValueError on no graphs or graphs of different lengths.

    >>> from counterpoint.similarity import LabelGraph
    >>> both = LabelGraph(torch.tensor([0, 0, 1])) * LabelGraph(torch.tensor([0, 1, 1]))
    >>> both.batch(torch.tensor([0, 1, 2]))[0].tolist()
    [1.0, 0.0, 0.0]
    """

    def __init__(self, graphs: Sequence[SimilarityGraph], name: str | None = None) -> None:
        self.graphs = _alike(graphs, "product")
        self.name = name or " * ".join(_factor(graph) for graph in self.graphs)

    def __len__(self) -> int:
        return len(self.graphs[0])

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        first, *others = self.graphs
        total = first.between(rows, columns)
        for graph in others:
            total = total * graph.between(rows, columns)
        return total


class ClippedGraph(SimilarityGraph):
    """A graph with its values kept between two numbers, the diagonal too; `graph.clip(0, 1)` writes one.

    Raises ValueError where low is above high, either is not a number, or every value would be infinite.

    >>> from counterpoint.similarity import EmbeddingGraph
    >>> graph = EmbeddingGraph(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).clip(0, 1)
    >>> graph.batch(torch.tensor([0, 1])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(self, graph: SimilarityGraph, low: float = -math.inf, high: float = math.inf) -> None:
        # Also refuses NaN, which compares with nothing.
        if not low <= high:
            raise ValueError(f"clip needs low <= high, got low={low} and high={high}")
        if low == math.inf or high == -math.inf:
            raise ValueError(f"clip needs a finite value to keep, got low={low} and high={high}")
        self.graph, self.low, self.high = graph, float(low), float(high)
        self.name = f"{_factor(graph)}, clipped to {low:g} .. {high:g}"

    def __len__(self) -> int:
        return len(self.graph)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self.graph.between(rows, columns).clamp(self.low, self.high)


class PowerGraph(SimilarityGraph):
    """A graph with its values to a power, negative ones first set to 0; `graph ** 2` writes one.

    An exponent above 1 pushes middling similarities down and leaves 0 and 1 in place.

    Raises ValueError on an exponent that is not finite and above 0.

    >>> from counterpoint.similarity import MatrixGraph
    >>> graph = MatrixGraph(torch.tensor([[1.0, 0.5], [0.5, 1.0]])) ** 2
    >>> graph.batch(torch.tensor([0, 1]))[0].tolist()
    [1.0, 0.25]
    """

    def __init__(self, graph: SimilarityGraph, exponent: float) -> None:
        if not 0 < exponent < math.inf:
            raise ValueError(f"exponent must be a finite number above 0, got {exponent}")
        self.graph, self.exponent = graph, float(exponent)
        self.name = f"{_factor(graph)} ** {exponent:g}"

    def __len__(self) -> int:
        return len(self.graph)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self.graph.between(rows, columns).clamp_min(0) ** self.exponent


class ThresholdGraph(SimilarityGraph):
    """A graph with every value below a number set to 0; `graph.at_least(0.3)` writes one.

    Raises ValueError on a number that is not finite.

    >>> from counterpoint.similarity import MatrixGraph
    >>> graph = MatrixGraph(torch.tensor([[1.0, 0.2], [0.2, 1.0]])).at_least(0.3)
    >>> graph.batch(torch.tensor([0, 1]))[0].tolist()
    [1.0, 0.0]
    """

    def __init__(self, graph: SimilarityGraph, least: float) -> None:
        if not math.isfinite(least):
            raise ValueError(f"least must be a finite number, got {least}")
        self.graph, self.least = graph, float(least)
        self.name = f"{_factor(graph)}, 0 below {least:g}"

    def __len__(self) -> int:
        return len(self.graph)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        value = self.graph.between(rows, columns)
        return value.masked_fill(value < self.least, 0.0)


class ShuffledGraph(SimilarityGraph):
    """A graph in which a share of the samples have the caption, label or row of another one.

    These samples pass what the graph knows of them round among themselves in a random order. So captions and
    labels keep their frequencies, and two samples that are both untouched keep their similarity. A label from
    another sample can still be the right one, where both had the same.

    share: of the samples, from 0 to 1. seed: which samples, and their order.

    Source: label quality in X-Sample Contrastive Loss (arXiv 2407.18134, table 6), by rates.

    >>> from counterpoint.similarity import LabelGraph
    >>> graph = ShuffledGraph(LabelGraph(torch.tensor([0, 0, 1, 1])), share=0.5, seed=0)
    >>> graph.batch(torch.arange(4)).sum(dim=1).tolist(), int((graph.sources != torch.arange(4)).sum())
    ([2.0, 2.0, 2.0, 2.0], 2)
    """

    def __init__(self, graph: SimilarityGraph, share: float, seed: int = 0) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {share}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        order = torch.randperm(len(graph), generator=torch.Generator().manual_seed(seed))
        wrong = order[: round(share * len(graph))]
        self.graph, self.share = graph, share
        self.sources = torch.arange(len(graph))
        self.sources[wrong] = wrong.roll(1)
        self.name = f"{_factor(graph)} with {100 * share:g} % shuffled"

    def __len__(self) -> int:
        return len(self.graph)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        sources = self.sources.to(rows.device)
        return self.graph.between(sources[rows], sources[columns])


def terms(graph: SimilarityGraph) -> tuple[list[SimilarityGraph], list[float]]:
    """The graphs and weights of a sum; one graph with weight 1 is itself.

    >>> from counterpoint.similarity import InstanceGraph
    >>> terms(2 * (InstanceGraph(3) + 0.5 * InstanceGraph(3)))[1]
    [2.0, 1.0]
    """
    return (list(graph.graphs), list(graph.weights)) if isinstance(graph, SumGraph) else ([graph], [1.0])


def _alike(graphs: Sequence[SimilarityGraph], what: str) -> tuple[SimilarityGraph, ...]:
    if not graphs:
        raise ValueError(f"a {what} needs at least one graph, got none")
    for graph in graphs:
        if not isinstance(graph, SimilarityGraph):
            raise ValueError(f"a {what} is of similarity graphs, got {type(graph).__name__}")
        if len(graph) != len(graphs[0]):
            raise ValueError(
                f"a {what} needs graphs over the same samples, but {graphs[0].name!r} has {len(graphs[0])} "
                f"of them and {graph.name!r} has {len(graph)}"
            )
    return tuple(graphs)


def _factor(graph: SimilarityGraph) -> str:
    """The name as one factor: in brackets where it is of several words of this file."""
    simple = not isinstance(
        graph, SumGraph | ProductGraph | ClippedGraph | PowerGraph | ThresholdGraph | ShuffledGraph
    )
    return graph.name if simple else f"({graph.name})"
