"""The graphs a recipe can name, each built from a data set."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from counterpoint.data.samples import Labels, Samples
from counterpoint.similarity.classes import ClassGraph, EmbeddingGraph
from counterpoint.similarity.graph import InstanceGraph, LabelGraph, RandomGraph, SimilarityGraph


class GraphBuilder(Protocol):
    """Builds a graph over all samples; each kind uses the arguments it needs.

    column: the label column, by default the first. encoder, template: as in `ClassGraph.from_names`.

    Raises ValueError that names the data and what it has, where labels or captions are missing.

    >>> import torch
    >>> from PIL import Image
    >>> animals = Labels(torch.tensor([0, 1, 0]), ["cat", "dog"])
    >>> samples = Samples("pets", ["a", "b", "c"], lambda i: Image.new("RGB", (8, 8)), {"animal": animals})
    >>> graph = GRAPHS["label"](samples, column=None, encoder="minilm", template="a photo of a {}", seed=0)
    >>> graph.name, graph.batch(torch.tensor([0, 1, 2]))[0].tolist()
    ('labels (animal)', [1.0, 0.0, 1.0])
    """

    def __call__(
        self, samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
    ) -> SimilarityGraph: ...


def _instance(
    samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
) -> SimilarityGraph:
    """`InstanceGraph`: needs nothing of the data."""
    return InstanceGraph(len(samples))


def _label(
    samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
) -> SimilarityGraph:
    """`LabelGraph` of a label column."""
    name, labels = _column(samples, column, "label")
    return LabelGraph(labels.values, f"labels ({name})")


def _class(
    samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
) -> SimilarityGraph:
    """`ClassGraph` of the class names of a label column."""
    _, labels = _column(samples, column, "class")
    return ClassGraph.from_names(labels.values, labels.names, template, encoder)


def _caption(
    samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
) -> SimilarityGraph:
    """`EmbeddingGraph` of the captions."""
    if samples.captions is None:
        raise ValueError(
            f"a 'caption' graph needs captions, but data {samples.name!r} has none; it has {_has(samples)}"
        )
    for row, caption in enumerate(samples.captions):
        if not isinstance(caption, str) or not caption.strip():
            raise ValueError(
                f"a 'caption' graph needs a caption for every sample, but in data {samples.name!r} the one "
                f"of {samples.keys[row]!r} (sample {row}) is {caption!r}"
            )
    return EmbeddingGraph.from_texts(samples.captions, encoder)


def _random_class(
    samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
) -> SimilarityGraph:
    """`RandomGraph` with a value per pair of classes of a label column."""
    _, labels = _column(samples, column, "random_class")
    return RandomGraph("class", labels=labels.values, seed=seed)


def _random_sample(
    samples: Samples, *, column: str | None, encoder: str, template: str, seed: int
) -> SimilarityGraph:
    """`RandomGraph` with a value per pair of samples."""
    return RandomGraph("sample", n=len(samples), seed=seed)


GRAPHS: dict[str, GraphBuilder] = {
    "instance": _instance,
    "label": _label,
    "class": _class,
    "caption": _caption,
    "random_class": _random_class,
    "random_sample": _random_sample,
}


def _column(samples: Samples, column: str | None, kind: str) -> tuple[str, Labels]:
    if not samples.labels:
        raise ValueError(
            f"a {kind!r} graph needs labels, but data {samples.name!r} has none; it has {_has(samples)}"
        )
    labels = samples.column(column)
    name = column if column is not None else next(iter(samples.labels))
    values: Tensor = labels.values
    if not bool(labels.known.any()):
        raise ValueError(
            f"a {kind!r} graph needs labels, but none of the {len(values)} samples of data {samples.name!r} "
            f"has one in column {name!r}"
        )
    return name, labels


def _has(samples: Samples) -> str:
    columns = f"label columns {', '.join(samples.labels)}" if samples.labels else ""
    captions = "captions" if samples.captions is not None else ""
    return " and ".join(part for part in (columns, captions) if part) or "neither labels nor captions"
