"""The graphs a recipe can name, each built from a data set and from arguments of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import Field, model_validator

from counterpoint.arguments import Named, arguments, choose
from counterpoint.data.samples import Samples
from counterpoint.similarity import build_files
from counterpoint.similarity.algebra import ProductGraph, ShuffledGraph, SumGraph
from counterpoint.similarity.classes import TEMPLATE, ClassGraph, EmbeddingGraph
from counterpoint.similarity.columns import find_column, what_it_has
from counterpoint.similarity.graph import InstanceGraph, LabelGraph, RandomGraph, SimilarityGraph
from counterpoint.similarity.sparse import SparseGraph
from counterpoint.similarity.store import EmbeddingStore
from counterpoint.similarity.text import PACKAGED

GraphBuilder = Callable[..., SimilarityGraph]
"""A function of the samples and of arguments that a recipe gives. Where one of these is `column`, a label
column, it is by default the label column of the data."""

# Recipes of version 0.1 wrote these out for every graph, whether it used them or not.
ONCE_WRITTEN: dict[str, Any] = {"encoder": PACKAGED, "template": TEMPLATE, "seed": 0}


class Similarity(Named):
    """Where soft targets come from; the other keys are the arguments of the graph.

    >>> import torch
    >>> from PIL import Image
    >>> from counterpoint.data import Labels
    >>> animals = Labels(torch.tensor([0, 1, 0]), ["cat", "dog"])
    >>> samples = Samples("pets", ["a", "b", "c"], lambda i: Image.new("RGB", (8, 8)), {"animal": animals})
    >>> graph = Similarity(graph="label").build(samples)
    >>> graph.name, graph.batch(torch.tensor([0, 1, 2]))[0].tolist()
    ('labels (animal)', [1.0, 0.0, 1.0])
    """

    graph: str = Field(description="the kind of graph: see docs/similarity.md")
    noise: float = Field(
        0.0, ge=0, le=1, description="share of samples that get the relations of another one, for ablations"
    )
    noise_seed: int = Field(0, ge=0, lt=2**63, description="which samples those are")

    @model_validator(mode="after")
    def _check(self) -> Similarity:
        builder: GraphBuilder = choose("graph", self.graph, GRAPHS)
        takes = inspect.signature(builder).parameters
        given = {
            name: value
            for name, value in self.arguments.items()
            if name in takes or name not in ONCE_WRITTEN or value != ONCE_WRITTEN[name]
        }
        try:
            checked = arguments(builder, given, "similarity", leave_out=("samples",))
        except ValueError as error:
            block = f"to change the graph, give the whole block: similarity={{graph: {self.graph}, ...}}"
            raise ValueError(f"{error} (arguments of graph {self.graph!r}; {block})") from None
        if self.__pydantic_extra__ is not None:
            self.__pydantic_extra__.clear()
        self._fill(checked)
        return self

    def build(self, samples: Samples, column: str | None = None) -> SimilarityGraph:
        """The graph over these samples.

        column: the label column of a graph that needs one and does not name it; by default the first.

        Raises ValueError that names the data and what it has, where labels or captions are missing.
        """
        given = self.arguments
        if "column" in given and given["column"] is None:
            given["column"] = column
        graph = GRAPHS[self.graph](samples, **given)
        return ShuffledGraph(graph, self.noise, self.noise_seed) if self.noise else graph


class Part(Similarity):
    """A graph in a sum, and its weight."""

    weight: float = Field(1.0, allow_inf_nan=False, description="factor of this graph in the sum")


def _instance(samples: Samples) -> SimilarityGraph:
    """`InstanceGraph`: needs nothing of the data."""
    return InstanceGraph(len(samples))


def _label(samples: Samples, *, column: str | None = None) -> SimilarityGraph:
    """`LabelGraph` of a label column."""
    name, labels = find_column(samples, column, "label")
    return LabelGraph(labels.values, f"labels ({name})")


def _class(
    samples: Samples, *, column: str | None = None, encoder: str = PACKAGED, template: str = TEMPLATE
) -> SimilarityGraph:
    """`ClassGraph` of the class names of a label column."""
    _, labels = find_column(samples, column, "class")
    return ClassGraph.from_names(labels.values, labels.names, template, encoder)


def _caption(samples: Samples, *, encoder: str = PACKAGED) -> SimilarityGraph:
    """`EmbeddingGraph` of the captions."""
    if samples.captions is None:
        raise ValueError(
            f"a 'caption' graph needs captions, but data {samples.name!r} has none; it has "
            f"{what_it_has(samples)}"
        )
    for row, caption in enumerate(samples.captions):
        if not isinstance(caption, str) or not caption.strip():
            raise ValueError(
                f"a 'caption' graph needs a caption for every sample, but in data {samples.name!r} the one "
                f"of {samples.keys[row]!r} (sample {row}) is {caption!r}"
            )
    return EmbeddingGraph.from_texts(samples.captions, encoder)


def _store(samples: Samples, *, path: str) -> SimilarityGraph:
    """`StoreGraph`: vectors that `counterpoint similarity build` made, found by the keys of the samples."""
    return EmbeddingStore.open(path).graph_of(samples)


def _random_class(samples: Samples, *, column: str | None = None, seed: int = 0) -> SimilarityGraph:
    """`RandomGraph` with a value per pair of classes of a label column."""
    _, labels = find_column(samples, column, "random_class")
    return RandomGraph("class", labels=labels.values, seed=seed)


def _random_sample(samples: Samples, *, seed: int = 0) -> SimilarityGraph:
    """`RandomGraph` with a value per pair of samples."""
    return RandomGraph("sample", n=len(samples), seed=seed)


def _sum(samples: Samples, *, of: tuple[Part, ...], column: str | None = None) -> SimilarityGraph:
    """`SumGraph`: the weighted sum of graphs."""
    return SumGraph([part.build(samples, column) for part in of], [part.weight for part in of])


def _product(samples: Samples, *, of: tuple[Similarity, ...], column: str | None = None) -> SimilarityGraph:
    """`ProductGraph`: the product of graphs, pair by pair."""
    return ProductGraph([part.build(samples, column) for part in of])


def _clip(
    samples: Samples, *, of: Similarity, low: float = 0.0, high: float = 1.0, column: str | None = None
) -> SimilarityGraph:
    """`ClippedGraph`: a graph with its values kept between two numbers."""
    return of.build(samples, column).clip(low, high)


def _power(
    samples: Samples, *, of: Similarity, exponent: float, column: str | None = None
) -> SimilarityGraph:
    """`PowerGraph`: a graph with its values to a power."""
    return of.build(samples, column) ** exponent


def _threshold(
    samples: Samples, *, of: Similarity, least: float, column: str | None = None
) -> SimilarityGraph:
    """`ThresholdGraph`: a graph with every value below a number set to 0."""
    return of.build(samples, column).at_least(least)


def _nearest(
    samples: Samples, *, of: Similarity, k: int, least: float = 0.0, column: str | None = None
) -> SimilarityGraph:
    """`SparseGraph` of the k nearest of each sample in another graph."""
    return SparseGraph.nearest(of.build(samples, column), k, least)


GRAPHS: dict[str, GraphBuilder] = {
    "instance": _instance,
    "label": _label,
    "class": _class,
    "caption": _caption,
    "store": _store,
    "random_class": _random_class,
    "random_sample": _random_sample,
    "taxonomy": build_files.taxonomy,
    "wordnet": build_files.wordnet,
    "metadata": build_files.metadata,
    "matrix": build_files.matrix,
    "vectors": build_files.vectors,
    "edges": build_files.edges,
    "nearest": _nearest,
    "sum": _sum,
    "product": _product,
    "clip": _clip,
    "power": _power,
    "threshold": _threshold,
}
