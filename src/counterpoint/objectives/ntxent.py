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
from counterpoint.objectives.checks import one_of, positive, sample_integers
from counterpoint.objectives.rows import (
    Rows,
    add_negatives,
    same_id,
    scores_all_views,
    target_all_views,
    unit_negatives,
)
from counterpoint.objectives.streamed import ChunkSize, StreamedObjective
from counterpoint.objectives.tile_losses import all_views_losses

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_log": lambda losses: losses.mean(),
    "log_mean": lambda losses: math.log(len(losses)) - (-losses).logsumexp(0),
}


def ntxent(
    *views: Tensor,
    tau: float = 0.5,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    reduction: str = "mean_log",
    map: str = "softmax",
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    """NT-Xent of two or more views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    ids: `(n,)` integers; samples with equal ids are positives of each other, uniformly.
    negatives: `(m, d)`; further candidates of every anchor, of any length, such as a queue's.
    reduction: "mean_log", or "log_mean" for the logarithm of the mean probability, which needs the softmax.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.
    chunk_size: how many anchors and candidates at a time, see `StreamedObjective`.

    Raises ValueError on views that do not fit together, or a bad argument.

    >>> import torch
    >>> z = torch.eye(3)
    >>> ntxent(z, z, tau=0.5)
    tensor(0.4327)
    """
    return NTXent(tau, reduction, map, chunk_size).forward(*views, ids=ids, negatives=negatives)


def _reduction(reduction: str, map: str) -> str:
    if one_of("reduction", reduction, REDUCTIONS) == "log_mean" and map != "softmax":
        raise ValueError(
            f"reduction='log_mean' needs map='softmax': only its loss is -log of a probability; got {map!r}"
        )
    return reduction


class NTXent(StreamedObjective):
    """Module form of `ntxent`.

    >>> import torch
    >>> NTXent(tau=0.5)(torch.eye(3), torch.eye(3))
    tensor(0.4327)
    """

    accepts = ("ids", "negatives")

    def __init__(
        self,
        tau: float = 0.5,
        reduction: str = "mean_log",
        map: str = "softmax",
        chunk_size: ChunkSize = "auto",
    ) -> None:
        super().__init__(map, chunk_size=chunk_size)
        self.tau = positive("tau", tau)
        self.reduction = _reduction(reduction, map)

    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        anchors = known.anchored(len(z[0]))
        scores = scores_all_views(z, self.tau, anchors)
        target = target_all_views(same_id(known.ids, z[0], anchors), z, anchors)
        rows = Rows(scores, target, candidates=scores.shape[1] - 1)
        asking = [view[anchors] for view in z]
        return add_negatives(rows, asking, unit_negatives(known.negatives, z[0]), self.tau)

    def tile_losses(self, z: Sequence[Tensor], known: Known, rows: int) -> tuple[Tensor, float | None]:
        groups = None if known.ids is None else sample_integers("ids", known.ids, z[0])
        negatives = unit_negatives(known.negatives, z[0])
        return all_views_losses(z, self.tau, known.anchored(len(z[0])), rows, groups, negatives), None

    def reduce(self, losses: Tensor, count: float | None) -> Tensor:
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
