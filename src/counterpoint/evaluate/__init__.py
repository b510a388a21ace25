"""Evaluation: one protocol per file, each giving a named, versioned `Result`."""

from counterpoint.evaluate.background import background_reliance
from counterpoint.evaluate.features import Features, extract, load_features, save_features
from counterpoint.evaluate.knn import knn
from counterpoint.evaluate.linear import linear_probe, linear_probes
from counterpoint.evaluate.matching import by_camera, matching
from counterpoint.evaluate.record import (
    Difference,
    Result,
    Spread,
    difference,
    load_results,
    save_results,
    spread,
)
from counterpoint.evaluate.retrieval import retrieval
from counterpoint.evaluate.similarity_map import class_map, neighbours
from counterpoint.evaluate.trained_linear import crop_batches, trained_linear
from counterpoint.evaluate.zero_shot import zero_shot

__all__ = [
    "Difference",
    "Features",
    "Result",
    "Spread",
    "background_reliance",
    "by_camera",
    "class_map",
    "crop_batches",
    "difference",
    "extract",
    "knn",
    "linear_probe",
    "linear_probes",
    "load_features",
    "load_results",
    "matching",
    "neighbours",
    "retrieval",
    "save_features",
    "save_results",
    "spread",
    "trained_linear",
    "zero_shot",
]
