"""What a graph looks like on a sample: numbers for logs, a class map for reports."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterpoint.similarity.checks import check_count, check_ids, check_labels
from counterpoint.similarity.graph import SimilarityGraph

DESCRIBE_AT_MOST = 8192
TILE = 1024


def describe(graph: SimilarityGraph, ids: Tensor) -> dict[str, float]:
    """Mean and quantiles of the similarity of different samples.

    ids: `(n,)` int64, at least two different samples and at most 8192; repeats count once.

    Returns `pairs` (how many), `mean`, `min`, `q05`, `q25`, `median`, `q75`, `q95`, `max`.

    >>> from counterpoint.similarity import LabelGraph
    >>> out = describe(LabelGraph(torch.tensor([0, 0, 1, 1])), torch.tensor([0, 1, 2, 3]))
    >>> out["pairs"], round(out["mean"], 4), out["median"]
    (6.0, 0.3333, 0.0)
    """
    check_ids(ids, len(graph))
    ids = _distinct(ids)
    if not 2 <= len(ids) <= DESCRIBE_AT_MOST:
        raise ValueError(f"ids holds {len(ids)} different samples: 2 to {DESCRIBE_AT_MOST} are allowed")
    target = graph.batch(ids).cpu().numpy()
    values = target[np.triu_indices(len(ids), k=1)].astype(np.float64)
    names = {"min": 0.0, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}
    quantiles = np.quantile(values, list(names.values()))
    return {
        "pairs": float(len(values)),
        "mean": float(values.mean()),
        **{name: float(value) for name, value in zip(names, quantiles, strict=True)},
    }


def class_similarity(
    graph: SimilarityGraph,
    labels: Tensor,
    sample: Tensor | int = 4096,
    *,
    classes: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Mean similarity of two different samples, by their classes: `(C, C)` float32 on the CPU, symmetric.

    NaN marks a pair of classes without such a pair of samples in the sample. Work grows with the square of
    the sample; memory does not.

    labels: `(n,)` integers, one per sample of the graph; unlabelled ones (-1) are left out.
    sample: `(k,)` int64 ids to use, or how many to draw, as evenly over the classes as there are samples.
    classes: C; by default the largest label + 1.

    >>> from counterpoint.similarity import LabelGraph
    >>> labels = torch.tensor([0, 0, 1, 1, 1])
    >>> class_similarity(LabelGraph(labels), labels)
    tensor([[1., 0.],
            [0., 1.]])
    """
    labels = check_labels(labels).cpu()
    if len(labels) != len(graph):
        raise ValueError(f"{len(labels)} labels for a graph of {len(graph)} samples")
    known = int(labels.max()) + 1
    classes = max(known, 1) if classes is None else check_count(classes, "classes")
    if classes < known:
        raise ValueError(
            f"classes is {classes}, but the labels go up to {known - 1}: at least {known} are needed"
        )
    if isinstance(sample, Tensor):
        check_ids(sample, len(graph), "sample")
        ids = _distinct(sample)
    else:
        ids = _even_sample(labels, check_count(sample, "sample"), seed)
    ids = ids[labels[ids] >= 0]
    total = torch.zeros(classes, classes, dtype=torch.float64)
    tiles = [ids[start : start + TILE] for start in range(0, len(ids), TILE)]
    for rows in tiles:
        for columns in tiles:
            tile = graph.between(rows, columns).double().masked_fill(rows[:, None] == columns, 0.0)
            by_row = torch.zeros(classes, len(columns), dtype=torch.float64).index_add_(0, labels[rows], tile)
            total.index_add_(1, labels[columns], by_row)
    count = torch.bincount(labels[ids], minlength=classes).double()
    pairs = count[:, None] * count - torch.diag(count)
    # 0 / 0 is the documented NaN.
    mean = (total / pairs).float()
    return (mean + mean.T) / 2


def _distinct(ids: Tensor) -> Tensor:
    return torch.from_numpy(np.unique(ids.cpu().numpy()))


def _even_sample(labels: Tensor, count: int, seed: int) -> Tensor:
    """At most `count` labelled ids, sorted: one of every class, then a second of every class, and so on."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order] >= 0]
    by_class = order[labels[order].argsort(stable=True)]
    sizes = torch.bincount(labels[by_class])
    turn = torch.arange(len(by_class)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return by_class[turn.argsort(stable=True)[:count]].sort().values
