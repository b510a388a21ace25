r"""Triplet, batch-hard: an anchor's other view must be nearer than the nearest other sample, by a margin.

    L = mean_i [ S_ii + margin - min_{j != i} S_ij ]_+,    S_ij = 1 - cos(a_i, b_j)

a and b are two different views: all ordered pairs of views are taken, so both directions count. With `ids`, j
runs over samples of another id and S_ii becomes the farthest sample of the anchor's own id.

It is the structured linear assignment loss with each row free to choose its partner: the largest of the
scores -S with the margin, less the score of the true one. Smoothing that maximum by a log-sum-exp gives
InfoNCE.

Limits: 0 once every gap is at least the margin; a collapsed batch gives the margin. An anchor without a
negative (n = 1) violates nothing and counts 0. Where negatives tie for nearest, they share the gradient.

Papers: Hermans, Beyer, Leibe, "In defense of the triplet loss for person re-identification", 2017; Moskalev
et al., "Contrasting quadratic assignments for set-based representation learning", ECCV 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.checks import positive
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import (
    Rows,
    positive_and_negatives,
    same_id,
    scores_across_views,
    target_across_views,
    unit_views,
)


def triplet(*views: Tensor, margin: float = 0.2, ids: Tensor | None = None) -> Tensor:
    """Batch-hard triplet loss of two or more views `(n, d)`, a scalar.

    margin: the gap in cosine that is asked for, above 0; cosines span 2.
    ids: `(n,)` integers; samples with equal ids are never negatives of each other.

    Raises ValueError on views that do not fit together, a bad `margin` or bad `ids`.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    >>> triplet(z, z, margin=0.5)
    tensor(0.3000)
    """
    return _losses(_rows(views, Known(ids=ids)), positive("margin", margin)).mean()


def _rows(views: Sequence[Tensor], known: Known) -> Rows:
    z = unit_views("Triplet", views)
    anchors = known.anchored(len(z[0]))
    scores = scores_across_views(z, anchors=anchors)
    target = target_across_views(same_id(known.ids, z[0], anchors), scores, anchors)
    return Rows(scores, target, candidates=scores.shape[1])


def _losses(rows: Rows, margin: float) -> Tensor:
    positive_score, negatives = positive_and_negatives(rows)
    return (margin + negatives.amax(1) - positive_score).relu()


class Triplet(RowObjective):
    """Module form of `triplet`.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    >>> Triplet(margin=0.5)(z, z)
    tensor(0.3000)
    """

    accepts = ("ids",)

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = positive("margin", margin)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, known)

    def losses(self, rows: Rows) -> Tensor:
        return _losses(rows, self.margin)

    def log(self, rows: Rows, losses: Tensor) -> Log:
        return {"active": rows.mean((losses > 0).to(losses.dtype))}

    def extra_repr(self) -> str:
        return f"margin={self.margin}"
