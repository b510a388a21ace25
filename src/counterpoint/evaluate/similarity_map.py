"""How similar the classes look to an encoder, and which samples it takes for neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoint.evaluate.features import Features
from counterpoint.evaluate.knn import nearest, unit_rows


def class_map(features: Features, column: str | None = None, classes: Sequence[str] | None = None) -> Tensor:
    """Mean pairwise cosine between the samples of two classes: `(C, C)` float32, symmetric.

    Use when you want to see whether related classes lie near each other, as in figure 4 of the X-CLR paper.
    The diagonal is the mean over pairs of different samples of one class. The map comes exactly from the sums
    of unit rows per class, without any pair.

    column: the label column; None takes the first one. Unlabelled rows do not count.
    classes: the classes to show and their order; None takes all, in label order.

    Raises ValueError for an unknown or repeated class and for a class with fewer than two samples, which has
    no pair.

    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 0, 1, 1]), ["x", "y"])
    >>> h = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    >>> class_map(Features(h, keys=list("abcd"), labels={"kind": kinds}))
    tensor([[1.0000, 0.3000],
            [0.3000, 0.8000]])
    """
    column, labels = features.column(column)
    names = list(labels.names)
    chosen = names if classes is None else list(classes)
    for name in chosen:
        if name not in names:
            raise ValueError(f"column {column!r} has no class {name!r}; it has {', '.join(names)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"classes must name each class once, got {', '.join(chosen)}")
    unit = unit_rows(features.h)[labels.known].double()
    y = labels.values[labels.known]
    sums = torch.zeros(len(names), features.width, dtype=torch.float64).index_add_(0, y, unit)
    squares = torch.zeros(len(names), dtype=torch.float64).index_add_(0, y, unit.square().sum(dim=1))
    order = torch.tensor([names.index(name) for name in chosen], dtype=torch.int64)
    sums, squares, count = sums[order], squares[order], torch.bincount(y, minlength=len(names))[order]
    few = [f"{name!r} ({n})" for name, n in zip(chosen, count.tolist(), strict=True) if n < 2]
    if few:
        raise ValueError(
            f"column {column!r}: a class needs two samples to have a pair, got {', '.join(few)}; "
            "name the classes to show"
        )
    pairs = count[:, None] * count - torch.diag(count)
    return ((sums @ sums.T - torch.diag(squares)) / pairs).float()


def neighbours(features: Features, queries: Sequence[int] | Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k samples most similar to each query by cosine, the query itself left out.

    queries: positions in `features`, `(q,)`. Gives indices `(q, k)` int64 and similarities `(q, k)` float32,
    best first; of equals the lower position comes first.

    Raises ValueError for a position out of range and for k outside 1..n-1.

    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    >>> indices, similarities = neighbours(Features(h, keys=list("abc")), [0], k=2)
    >>> indices.tolist(), similarities
    ([[2, 1]], tensor([[0.6000, 0.0000]]))
    """
    ids = torch.as_tensor(queries, dtype=torch.int64)
    outside = ids[(ids < 0) | (ids >= len(features))]
    if len(outside):
        raise ValueError(f"query {int(outside[0])} is not among the {len(features)} samples")
    if not 1 <= k < len(features):
        raise ValueError(f"k must be between 1 and the {len(features) - 1} other samples, got {k}")
    indices, similarities = torch.empty(len(ids), k, dtype=torch.int64), torch.empty(len(ids), k)
    for start, near, similarity in nearest(features.h[ids], features.h, k + 1):
        own = near == ids[start : start + len(near), None]
        # Among more than k equals the query may be missing from its own list: then the last one goes.
        own[:, -1] |= ~own.any(dim=1)
        indices[start : start + len(near)] = near[~own].view(-1, k)
        similarities[start : start + len(near)] = similarity[~own].view(-1, k)
    return indices, similarities
