"""Where targets come from: how alike the samples of a data set are, by batch."""

from counterpoint.similarity.build import GRAPHS, GraphBuilder
from counterpoint.similarity.classes import ClassGraph, EmbeddingGraph
from counterpoint.similarity.graph import InstanceGraph, LabelGraph, MatrixGraph, RandomGraph, SimilarityGraph
from counterpoint.similarity.summary import class_similarity, describe
from counterpoint.similarity.text import encode_texts

__all__ = [
    "GRAPHS",
    "ClassGraph",
    "EmbeddingGraph",
    "GraphBuilder",
    "InstanceGraph",
    "LabelGraph",
    "MatrixGraph",
    "RandomGraph",
    "SimilarityGraph",
    "class_similarity",
    "describe",
    "encode_texts",
]
