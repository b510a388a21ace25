r"""InfoNCE: tell an anchor's other view from the other samples of that view.

    L = mean_i -log( exp(cos(z0_i, z1_i) / tau) / sum_j exp(cos(z0_i, z1_j) / tau) )

Anchors are the samples of one view, candidates those of the next: n candidates, none of them from the
anchor's own view. Two views give the direction z0 -> z1 only (`CLIP` takes both). V views give the mean over
all pairs a < b.

Limits: a collapsed batch gives ln(n). As tau -> 0, tau * L is mean_i [max_j cos(z0_i, z1_j) - cos(z0_i,
z1_i)], the batch-hard loss of `Triplet` without its margin, in one direction.

Paper: van den Oord, Li, Vinyals, "Representation learning with contrastive predictive coding", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from counterpoint.objectives.base import Known
from counterpoint.objectives.checks import positive
from counterpoint.objectives.fenchel_young import fenchel_young
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import Rows, same_id, scores_across_views, target_across_views, unit_views


def infonce(*views: Tensor, tau: float = 0.1, ids: Tensor | None = None, map: str = "softmax") -> Tensor:
    """InfoNCE of two or more views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    ids: `(n,)` integers; samples with equal ids are positives of each other, uniformly.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.

    Raises ValueError on views that do not fit together, a bad `tau`, `map` or bad `ids`.

    >>> import torch
    >>> z = torch.eye(3)
    >>> infonce(z, z, tau=0.5)
    tensor(0.2395)
    """
    rows = _rows(views, positive("tau", tau), Known(ids=ids))
    return fenchel_young(rows.scores, rows.target, map).mean()


def _rows(views: Sequence[Tensor], tau: float, known: Known) -> Rows:
    z = unit_views("InfoNCE", views)
    anchors = known.anchored(len(z[0]))
    scores = scores_across_views(z, tau, both_ways=False, anchors=anchors)
    target = target_across_views(same_id(known.ids, z[0], anchors), scores, anchors)
    return Rows(scores, target, candidates=scores.shape[1])


class InfoNCE(RowObjective):
    """Module form of `infonce`.

    >>> import torch
    >>> InfoNCE(tau=0.5)(torch.eye(3), torch.eye(3))
    tensor(0.2395)
    """

    accepts = ("ids",)

    def __init__(self, tau: float = 0.1, map: str = "softmax") -> None:
        super().__init__(map)
        self.tau = positive("tau", tau)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, self.tau, known)

    def extra_repr(self) -> str:
        return f"tau={self.tau}{self._map_repr}"
