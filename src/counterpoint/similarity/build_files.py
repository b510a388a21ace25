"""Builders of the graphs that are made from a file beside the data: taxonomies, tables, matrices, edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from counterpoint.data.samples import Samples
from counterpoint.similarity.classes import ClassGraph, EmbeddingGraph
from counterpoint.similarity.columns import find_column
from counterpoint.similarity.graph import MatrixGraph, SimilarityGraph
from counterpoint.similarity.metadata import MetadataGraph
from counterpoint.similarity.sparse import SparseGraph
from counterpoint.similarity.tables import as_tensor, read_columns, read_rows, rows_of
from counterpoint.similarity.taxonomy import TaxonomyGraph, place_classes, read_taxonomy
from counterpoint.similarity.wordnet import load_wordnet, read_senses


def taxonomy(
    samples: Samples,
    *,
    path: str,
    measure: Literal["path", "lch", "wup"] = "path",
    virtual_root: bool = False,
    depth: int | None = None,
    column: str | None = None,
) -> SimilarityGraph:
    """`TaxonomyGraph` of a label column, whose class names are nodes of the taxonomy in the file."""
    _, labels = find_column(samples, column, "taxonomy")
    kinds = read_taxonomy(path, virtual_root, depth)
    classes = place_classes(labels.names, kinds.parents, f"taxonomy {path}")
    return TaxonomyGraph(labels.values, classes, kinds, measure)


def wordnet(
    samples: Samples,
    *,
    path: str | None = None,
    measure: Literal["path", "lch", "wup"] = "path",
    senses: str | None = None,
    column: str | None = None,
) -> SimilarityGraph:
    """`TaxonomyGraph` of a label column, whose class names are nouns or ids of WordNet.

    Where the data has the ids of its classes, as ImageNet and Tiny ImageNet do, `senses` is not needed.
    """
    _, labels = find_column(samples, column, "wordnet")
    net = load_wordnet(path)
    ids = () if labels.ids is None else zip(labels.names, labels.ids, strict=True)
    known = {name: wnid for name, wnid in ids if wnid in net.hypernyms}
    classes = net.find(labels.names, known | ({} if senses is None else read_senses(senses)))
    kinds = net.taxonomy(classes)
    name = f"WordNet ({measure})"
    return TaxonomyGraph(labels.values, classes, kinds, measure, order=net.order(), name=name)


def metadata(
    samples: Samples,
    *,
    path: str,
    key: str = "path",
    numbers: Sequence[str] = (),
    categories: Sequence[str] = (),
    weights: Mapping[str, float] = {},
    bandwidths: Mapping[str, float] = {},
) -> SimilarityGraph:
    """`MetadataGraph` of columns of a table, whose column `key` has the keys of the samples."""
    parsed, coded = read_columns(Path(path).expanduser(), key, samples.keys, numbers, categories)
    return MetadataGraph(parsed, coded, weights=weights, bandwidths=bandwidths)


def matrix(
    samples: Samples,
    *,
    path: str,
    keys: str | None = None,
    by: Literal["sample", "class"] = "sample",
    column: str | None = None,
) -> SimilarityGraph:
    """`MatrixGraph` of a file with a row and a column for each sample, or `ClassGraph` with those of classes.

    keys: of the rows, where the file does not hold them: of samples, or the names of the classes.
    """
    array, stored = read_rows(path, keys)
    if array.shape[0] != array.shape[1]:
        raise ValueError(f"{path} must hold a square matrix, got shape {array.shape}")
    name = f"matrix ({Path(path).name})"
    if by == "class":
        _, labels = find_column(samples, column, "matrix")
        chosen = rows_of(array, stored, labels.names, path, "classes").numpy()
        return ClassGraph(labels.values, as_tensor(array[np.ix_(chosen, chosen)]), name)
    chosen = rows_of(array, stored, samples.keys, path).numpy()
    return MatrixGraph(as_tensor(array[np.ix_(chosen, chosen)]), name)


def vectors(samples: Samples, *, path: str, keys: str | None = None) -> SimilarityGraph:
    """`EmbeddingGraph` of a file with a vector for each sample."""
    array, stored = read_rows(path, keys)
    chosen = rows_of(array, stored, samples.keys, path)
    rows = as_tensor(array[chosen.numpy()])
    return EmbeddingGraph(rows if rows.is_floating_point() else rows.float(), f"vectors ({Path(path).name})")


def edges(samples: Samples, *, path: str) -> SimilarityGraph:
    """`SparseGraph` of a table of edges between keys."""
    return SparseGraph.read(path, list(samples.keys))
