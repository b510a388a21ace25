"""Which classes an encoder puts near each other, beside what the similarity graph asked for."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from counterpoint.evaluate.features import Features
from counterpoint.report.runs import Method

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """A similarity graph between the classes of one label column.

    similarity: `(c, c)`, centred. names: `c` class names, neighbours in the list being alike.
    flat: all pairs of different classes are equally alike, so that no order can be compared.
    """

    name: str
    column: str
    names: tuple[str, ...]
    similarity: Matrix
    flat: bool


@dataclass(frozen=True)
class Agreement:
    """How one recipe's class similarities compare with a target.

    similarity: `(c, c)`, centred, mean over seeds. ranks, linears: Spearman's and Pearson's correlation of
    the entries off the diagonal with the target's, by seed; empty where the target is flat.
    """

    method: int
    similarity: Matrix
    ranks: Mapping[int, float]
    linears: Mapping[int, float]


def read_targets(methods: Sequence[Method]) -> list[Target]:
    """The different targets among the runs; matrices of one name and column (over seeds) are averaged.

    Raises ValueError for a graph.npz that holds no similarity between classes, by path.
    """
    found: dict[tuple[str, str], list[tuple[tuple[str, ...], Matrix]]] = {}
    for run in (run for method in methods for run in method.runs if run.graph):
        name, column, names, similarity = _read_graph(run.graph)  # type: ignore[arg-type]
        found.setdefault((name, column), []).append((names, similarity))
    targets = []
    for (name, column), graphs in found.items():
        names = graphs[0][0]
        same = [similarity for other, similarity in graphs if other == names]
        if len(names) < 3:
            continue
        centred = centre(np.mean(same, axis=0))
        order = arrange(centred)
        off = off_diagonal(centred)
        flat = bool(np.ptp(off) < 1e-4)
        targets.append(
            Target(name, column, tuple(names[i] for i in order), centred[np.ix_(order, order)], flat)
        )
    return targets


def class_similarity(features: Features, target: Target) -> Matrix | None:
    """Mean cosine between the samples of two classes, centred: `(c, c)` in the target's order.

    None where the features lack the column, or a class of it has no sample.
    """
    if target.column not in features.labels:
        return None
    labels = features.labels[target.column]
    places = {name: i for i, name in enumerate(labels.names)}
    if any(name not in places for name in target.names):
        return None
    h = features.h.numpy().astype(np.float64)
    unit = h / np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1e-12)
    values = labels.values.numpy()
    means = []
    for name in target.names:
        rows = unit[values == places[name]]
        if not len(rows):
            return None
        means.append(rows.mean(0))
    stacked = np.stack(means)
    return centre(stacked @ stacked.T)


def centre(similarity: Matrix) -> Matrix:
    """Similarities as seen from the average class: 1 with itself, 0 where all classes are equally far apart.

    similarity: `(c, c)`, c >= 2. Rows and columns are centred and scaled to 1 on the diagonal: for inner
    products of class vectors that gives their cosines after their mean is taken away. Of c classes equally
    far apart these are -1 / (c - 1), which is moved to 0. A class on the mean itself has no direction: NaN.

    >>> centre(0.7 + 0.2 * np.eye(3)).round(2).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    even = (similarity + similarity.T) / 2
    centred = even - even.mean(0) - even.mean(1)[:, None] + even.mean()
    size = np.diag(centred).copy()
    size[size <= 1e-9 * max(1e-12, float(np.abs(even).max()))] = np.nan
    scale = np.sqrt(size)
    count = len(even)
    return np.asarray((centred / scale / scale[:, None] * (count - 1) + 1) / count)


def agreement(method: int, matrices: Mapping[int, Matrix], target: Target) -> Agreement:
    """Compare the class similarities of one recipe, one matrix for each seed, with the target."""
    ranks: dict[int, float] = {}
    linears: dict[int, float] = {}
    if not target.flat:
        # scipy takes half a second to import.
        from scipy.stats import pearsonr, spearmanr  # type: ignore[import-untyped]

        wanted = off_diagonal(target.similarity)
        for seed, matrix in matrices.items():
            got = off_diagonal(matrix)
            known = np.isfinite(got) & np.isfinite(wanted)
            if known.sum() > 2 and np.ptp(got[known]) > 0:
                ranks[seed] = float(spearmanr(got[known], wanted[known]).statistic)
                linears[seed] = float(pearsonr(got[known], wanted[known]).statistic)
    return Agreement(method, np.mean(list(matrices.values()), axis=0), ranks, linears)


def arrange(similarity: Matrix) -> list[int]:
    """An order of the classes in which alike ones stand together; as given where all are equally alike."""
    off = off_diagonal(similarity)
    if not np.isfinite(off).all() or np.ptp(off) < 1e-4:
        return list(range(len(similarity)))
    from scipy.cluster.hierarchy import leaves_list, linkage  # type: ignore[import-untyped]

    distance = similarity.max() - similarity
    pairs = distance[np.triu_indices(len(similarity), 1)]
    return [int(i) for i in leaves_list(linkage(pairs, "average", optimal_ordering=len(similarity) <= 200))]


def off_diagonal(matrix: Matrix) -> NDArray[np.float64]:
    """The entries above the diagonal, row by row: one per pair of classes."""
    return np.asarray(matrix[np.triu_indices(len(matrix), 1)])


def closest_pairs(target: Target, count: int) -> list[tuple[int, int]]:
    """The pairs of classes that the target calls most alike, the closest first."""
    rows, columns = np.triu_indices(len(target.names), 1)
    order = np.argsort(-np.nan_to_num(target.similarity[rows, columns], nan=-np.inf), kind="stable")[:count]
    return [(int(rows[i]), int(columns[i])) for i in order]


def _read_graph(path: Path) -> tuple[str, str, tuple[str, ...], Matrix]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            similarity = stored["similarity"].astype(np.float64)
            names = tuple(str(name) for name in stored["names"])
            name, column = str(stored["name"]), str(stored["column"])
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a graph file: {error}") from error
    if similarity.shape != (len(names), len(names)):
        raise ValueError(
            f"{path}: similarity must be ({len(names)}, {len(names)}) for {len(names)} names, "
            f"got {similarity.shape}"
        )
    if lacking := np.argwhere(~np.isfinite(similarity)).tolist():  # classes of one sample, or of none
        a, b = lacking[0]
        raise ValueError(
            f"{path}: similarity must be finite, but that of {names[a]!r} and {names[b]!r} is "
            f"{similarity[a, b]}: it needs two different training samples of these classes"
        )
    return name, column, names, similarity
