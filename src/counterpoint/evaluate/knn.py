"""k-nearest-neighbour accuracy of frozen features.

Each of the k nearest training samples votes for its class with weight `exp(similarity / temperature)`, as in
Wu et al., "Unsupervised feature learning via non-parametric instance discrimination" (CVPR 2018). Nothing is
trained, so the number has no seed of its own.

The search compares every pair, in float32. It works in tiles of queries and training rows and keeps the best
k of each query, so that the `n_test x n_train` similarities never exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import JsonValue
from torch import Tensor

from counterpoint.evaluate.columns import labelled_rows
from counterpoint.evaluate.features import Features
from counterpoint.evaluate.record import Result

PROTOCOL = "knn"
VERSION = 1
QUERIES = 512

Distance = Literal["cosine", "euclidean"]
Weights = Literal["exp", "uniform"]


def knn(
    train: Features,
    test: Features,
    column: str | None = None,
    k: int | Sequence[int] = (1, 5, 20, 200),
    temperature: float = 0.07,
    distance: Distance = "cosine",
    weights: Weights = "exp",
    tile: int = 16384,
) -> list[Result]:
    """Accuracy on `test` by a vote of the nearest samples of `train`; one result per k, in the order of k.

    Use when you want a number that nothing has to be tuned for, at any moment of training.
    Relations: k=1 gives nearest-neighbour accuracy whatever the weights; temperature -> 0 gives k=1;
    temperature -> infinity gives uniform weights, with equal votes going to the nearer class.

    column: the label column; None takes the first one of `train`. Rows without a label are dropped from both
        splits and counted in the settings.
    k: all k come from one search.
    temperature: divides the similarity in the weight of a vote; not used by uniform weights.
    distance: "cosine", or "euclidean", whose similarity is minus the distance. Under cosine a row of zeros
        has similarity 0 to every other; such rows are counted in the settings.
    weights: "exp" as in the paper, or "uniform": one vote each.
    tile: training rows per tile. It moves memory and time, not the number.

    Of equally similar training samples the earlier one counts first; of classes with equal votes the first in
    label order wins.

    Raises ValueError for k below 1 or above the number of labelled training samples, for a temperature that
    is not above 0, and for splits that do not fit together (see `labelled_rows`).

    >>> import torch
    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 0, 1]), ["x", "y"])
    >>> h = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> split = Features(h, keys=["a", "b", "c"], labels={"kind": kinds}, name="toy")
    >>> [result.value for result in knn(split, split, k=(1, 3), weights="uniform")]
    [1.0, 0.6666666666666666]
    """
    rows = labelled_rows(train, test, column)
    ks = [k] if isinstance(k, int) else [int(one) for one in k]
    _check(ks, len(rows.train), temperature, weights)
    right = dict.fromkeys(ks, 0)
    y = rows.train_labels
    for start, near, similarity in nearest(rows.test, rows.train, max(ks), distance, tile):
        truth = rows.test_labels[start : start + len(near)]
        for one, predicted in _votes(y[near], similarity, sorted(right), rows.classes, temperature, weights):
            right[one] += int((predicted == truth).sum())
    n = len(rows.test)
    settings: dict[str, JsonValue] = {
        **rows.settings,
        "distance": distance,
        "weights": weights,
        "temperature": float(temperature) if weights == "exp" else None,
    }
    chosen: tuple[str, ...] = ()
    if distance == "cosine":
        # Found in the features, not asked for.
        settings["rows_of_zeros"] = sum(int((~part.any(dim=1)).sum()) for part in (rows.train, rows.test))
        chosen = ("rows_of_zeros",)
    return [
        Result(
            protocol=PROTOCOL,
            version=VERSION,
            value=right[one] / n,
            n=n,
            settings={"k": one, **settings},
            chosen=chosen,
        )
        for one in ks
    ]


def nearest(
    queries: Tensor, base: Tensor, k: int, distance: Distance = "cosine", tile: int = 16384
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The k rows of `base` most similar to each query, block of queries by block.

    queries `(q, d)`, base `(n, d)`; gives `(start, indices (b, k), similarities (b, k))` for the queries from
    `start`, best first; of equal similarities the lower index comes first.

    Raises ValueError for k outside 1..n, a tile below 1 and an unknown distance.

    >>> import torch
    >>> base = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> [(start, near.tolist()) for start, near, _ in nearest(base[1:2], base, k=2)]
    [(0, [[1, 2]])]
    """
    if not 1 <= k <= len(base):
        raise ValueError(f"k must be between 1 and the {len(base)} rows to search, got {k}")
    if tile < 1:
        raise ValueError(f"tile must be at least 1, got {tile}")
    if distance == "cosine":
        queries, base, scale = unit_rows(queries), unit_rows(base), 1.0
    elif distance == "euclidean":
        # Centred and scaled, so that neither cancellation nor overflow spoils the squared norms.
        centre = base.mean(dim=0)
        queries, base = queries - centre, base - centre
        scale = max(float(queries.abs().max()), float(base.abs().max())) or 1.0
        queries, base = queries / scale, base / scale
    else:
        raise ValueError(f"distance must be cosine or euclidean, got {distance!r}")
    for start in range(0, len(queries), QUERIES):
        block = queries[start : start + QUERIES]
        best: tuple[Tensor, Tensor] | None = None
        for first in range(0, len(base), tile):
            part = base[first : first + tile]
            similarity = block @ part.T
            if distance == "euclidean":
                squared = block.square().sum(1, keepdim=True) + part.square().sum(1) - 2 * similarity
                similarity = -squared.clamp_min(0).sqrt()
            values, places = _top(similarity, min(k, len(part)))
            places = places + first
            if best is not None:
                # Earlier rows stand first, so the stable sort keeps them first among equals.
                values, order = torch.cat([best[0], values], dim=1).sort(dim=1, descending=True, stable=True)
                places = torch.cat([best[1], places], dim=1).gather(1, order)
            best = values[:, :k], places[:, :k]
        if best is not None:
            yield start, best[1], best[0] * scale


def unit_rows(h: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays zero.

    Dividing by the largest entry first keeps the squares of very small and very large rows in range.

    >>> unit_rows(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    largest = h.abs().amax(dim=1, keepdim=True)
    unit = h / torch.where(largest > 0, largest, 1)
    norm = unit.norm(dim=1, keepdim=True)
    return unit.div_(torch.where(norm > 0, norm, 1))


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest per row, best first, equals by lower index: `topk` alone leaves their order open."""
    if k == similarity.shape[1]:
        return similarity.sort(dim=1, descending=True, stable=True)
    values, places = similarity.topk(k + 1, dim=1)
    places, order = places[:, :k].sort(dim=1)
    best, order = values[:, :k].gather(1, order).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    # Equals on both sides of the cut: `topk` may have taken any of them, so these rows are sorted whole.
    tied = values[:, k - 1] == values[:, k]
    if bool(tied.any()):
        places[tied] = similarity[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return best, places


def _votes(
    labels: Tensor, similarity: Tensor, ks: Sequence[int], classes: int, temperature: float, weights: Weights
) -> Iterator[tuple[int, Tensor]]:
    """The predicted class `(b,)` for each k, smallest k first."""
    if weights == "exp":
        # Shifted by the best neighbour: the winner is the same, and no weight overflows however small T is.
        weight = ((similarity - similarity[:, :1]).double() / temperature).exp()
    else:
        weight = torch.ones_like(similarity, dtype=torch.float64)
    votes = torch.zeros(len(labels), classes, dtype=torch.float64, device=labels.device)
    done = 0
    for k in ks:
        votes.scatter_add_(1, labels[:, done:k], weight[:, done:k])
        done = k
        yield k, votes.argmax(dim=1)


def _check(ks: Sequence[int], n: int, temperature: float, weights: Weights) -> None:
    if not ks:
        raise ValueError("k must name at least one number of neighbours, got none")
    for k in ks:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if k > n:
            raise ValueError(f"k is {k}, but there are only {n} labelled training samples")
    if weights not in ("exp", "uniform"):
        raise ValueError(f"weights must be exp or uniform, got {weights!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
