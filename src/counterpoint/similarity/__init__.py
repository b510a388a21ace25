"""Where targets come from: how alike the samples of a data set are, by batch."""

from counterpoint.similarity.algebra import (
    ClippedGraph,
    PowerGraph,
    ProductGraph,
    ShuffledGraph,
    SumGraph,
    ThresholdGraph,
)
from counterpoint.similarity.build import GRAPHS, GraphBuilder, Similarity
from counterpoint.similarity.classes import ClassGraph, EmbeddingGraph
from counterpoint.similarity.graph import InstanceGraph, LabelGraph, MatrixGraph, RandomGraph, SimilarityGraph
from counterpoint.similarity.metadata import MetadataGraph
from counterpoint.similarity.sparse import SparseGraph
from counterpoint.similarity.store import EmbeddingStore
from counterpoint.similarity.store_build import build_store, write_store
from counterpoint.similarity.store_merge import merge_stores
from counterpoint.similarity.summary import class_similarity, describe
from counterpoint.similarity.taxonomy import Taxonomy, TaxonomyGraph, read_taxonomy
from counterpoint.similarity.text import encode_texts
from counterpoint.similarity.wordnet import WordNet

__all__ = [
    "GRAPHS",
    "ClassGraph",
    "ClippedGraph",
    "EmbeddingGraph",
    "EmbeddingStore",
    "GraphBuilder",
    "InstanceGraph",
    "LabelGraph",
    "MatrixGraph",
    "MetadataGraph",
    "PowerGraph",
    "ProductGraph",
    "RandomGraph",
    "ShuffledGraph",
    "Similarity",
    "SimilarityGraph",
    "SparseGraph",
    "SumGraph",
    "Taxonomy",
    "TaxonomyGraph",
    "ThresholdGraph",
    "WordNet",
    "build_store",
    "class_similarity",
    "describe",
    "encode_texts",
    "merge_stores",
    "read_taxonomy",
    "write_store",
]
