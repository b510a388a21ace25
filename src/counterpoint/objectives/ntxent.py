r"""NT-Xent, the loss of SimCLR: tell an anchor's other view from all other views of all samples.

    L = mean_i -log p_ii',    p_ij = exp(cos(z_i, z_j) / tau) / sum_{k != i} exp(cos(z_i, z_k) / tau)

i runs over all V * n views and i' is the other view of its sample. With more than two views the target is
uniform over the V - 1 others.

Limits: a collapsed batch gives ln(V * n - 1). It is `XCLR` at tau_s -> 0 with a target whose rows are largest
on the diagonal alone, and `SupCon` with labels that are all different.

The reduction "log_mean" is the logarithm of the mean probability, -log mean_i p_ii', as in the released code
of "Contrasting quadratic assignments" (Moskalev et al., 2022). It is never above "mean_log", and anchors that
are already well placed weigh more in its gradient. With V > 2 views, p_ii' is the geometric mean over the
others.

Paper: Chen, Kornblith, Norouzi, Hinton, "A simple framework for contrastive learning of visual
representations", ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from counterpoint.objectives.base import Known
from counterpoint.objectives.checks import one_of, positive
from counterpoint.objectives.fenchel_young import fenchel_young
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import Rows, same_id, scores_all_views, target_all_views, unit_views

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_log": lambda losses: losses.mean(),
    "log_mean": lambda losses: math.log(len(losses)) - (-losses).logsumexp(0),
}


def ntxent(
    *views: Tensor,
    tau: float = 0.5,
    ids: Tensor | None = None,
    reduction: str = "mean_log",
    map: str = "softmax",
) -> Tensor:
    """NT-Xent of two or more views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    ids: `(n,)` integers; samples with equal ids are positives of each other, uniformly.
    reduction: "mean_log", or "log_mean" for the logarithm of the mean probability, which needs the softmax.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.

    Raises ValueError on views that do not fit together, a bad `tau`, `reduction`, `map` or `ids`.

    >>> import torch
    >>> z = torch.eye(3)
    >>> ntxent(z, z, tau=0.5)
    tensor(0.4327)
    """
    rows = _rows(views, positive("tau", tau), Known(ids=ids))
    reduce = REDUCTIONS[_reduction(reduction, map)]
    return reduce(fenchel_young(rows.scores, rows.target, map))


def _rows(views: Sequence[Tensor], tau: float, known: Known) -> Rows:
    z = unit_views("NTXent", views)
    anchors = known.anchored(len(z[0]))
    scores = scores_all_views(z, tau, anchors)
    target = target_all_views(same_id(known.ids, z[0], anchors), z, anchors)
    return Rows(scores, target, candidates=scores.shape[1] - 1)


def _reduction(reduction: str, map: str) -> str:
    if one_of("reduction", reduction, REDUCTIONS) == "log_mean" and map != "softmax":
        raise ValueError(
            f"reduction='log_mean' needs map='softmax': only its loss is -log of a probability; got {map!r}"
        )
    return reduction


class NTXent(RowObjective):
    """Module form of `ntxent`.

    >>> import torch
    >>> NTXent(tau=0.5)(torch.eye(3), torch.eye(3))
    tensor(0.4327)
    """

    accepts = ("ids",)

    def __init__(self, tau: float = 0.5, reduction: str = "mean_log", map: str = "softmax") -> None:
        super().__init__(map)
        self.tau = positive("tau", tau)
        self.reduction = _reduction(reduction, map)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, self.tau, known)

    def reduce(self, rows: Rows, losses: Tensor) -> Tensor:
        return REDUCTIONS[self.reduction](losses)

    @property
    def averages(self) -> bool:
        return self.reduction == "mean_log"

    def combine(self, losses: Tensor, shares: Tensor) -> Tensor:
        if self.averages:
            return super().combine(losses, shares)
        return -(shares.log() - losses).logsumexp(0)

    def extra_repr(self) -> str:
        return f"tau={self.tau}, reduction={self.reduction!r}{self._map_repr}"
