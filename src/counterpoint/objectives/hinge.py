r"""Hinge: an anchor's other view must score above every other sample, by a margin.

    L = mean_i mean_{j != i} [ margin + cos(a_i, b_j) - cos(a_i, b_i) ]_+

a and b are two different views: all ordered pairs of views are taken, so both directions count. With `ids`, j
runs over samples of another id and cos(a_i, b_i) becomes the lowest cosine to a sample of the anchor's own
id.

It is the alternative to InfoNCE that max-margin contrastive learning starts from, with cosines for scores;
MMCL then lets an SVM choose what here is set by hand, the margin.

Limits: 0 once every gap is at least the margin; a collapsed batch gives the margin. Never above `Triplet`,
which takes the worst negative where this takes the mean, and equal to it at n = 2. An anchor without a
negative counts 0.

Paper: Shah et al., "Max-margin contrastive learning", AAAI 2022, section 3.
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


def hinge(*views: Tensor, margin: float = 0.2, ids: Tensor | None = None) -> Tensor:
    """Hinge loss over every negative, of two or more views `(n, d)`, a scalar.

    margin: the gap in cosine that is asked for, above 0; cosines span 2.
    ids: `(n,)` integers; samples with equal ids are never negatives of each other.

    Raises ValueError on views that do not fit together, a bad `margin` or bad `ids`.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> hinge(z, z, margin=0.5)
    tensor(0.1333)
    """
    return _losses(_rows(views, Known(ids=ids)), positive("margin", margin)).mean()


def _rows(views: Sequence[Tensor], known: Known) -> Rows:
    z = unit_views("Hinge", views)
    anchors = known.anchored(len(z[0]))
    scores = scores_across_views(z, anchors=anchors)
    target = target_across_views(same_id(known.ids, z[0], anchors), scores, anchors)
    return Rows(scores, target, candidates=scores.shape[1])


def _losses(rows: Rows, margin: float) -> Tensor:
    positive_score, negatives = positive_and_negatives(rows)
    excess = (negatives - (positive_score - margin)[:, None]).relu()
    return excess.sum(1) / _count(negatives)


def _count(negatives: Tensor) -> Tensor:
    return negatives.isfinite().sum(1).clamp_min(1)


class Hinge(RowObjective):
    """Module form of `hinge`.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> Hinge(margin=0.5)(z, z)
    tensor(0.1333)
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
        positive_score, negatives = positive_and_negatives(rows)
        active = (negatives > (positive_score - self.margin)[:, None]).sum(1) / _count(negatives)
        return {"active": rows.mean(active.to(losses.dtype))}

    def extra_repr(self) -> str:
        return f"margin={self.margin}"
