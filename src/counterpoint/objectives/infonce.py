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
from itertools import combinations

import torch
from torch import Tensor

from counterpoint.objectives.base import Known
from counterpoint.objectives.checks import positive, sample_integers
from counterpoint.objectives.rows import (
    Rows,
    add_negatives,
    same_id,
    scores_across_views,
    target_across_views,
    unit_negatives,
)
from counterpoint.objectives.streamed import ChunkSize, StreamedObjective
from counterpoint.objectives.tile_losses import across_losses


def infonce(
    *views: Tensor,
    tau: float = 0.1,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    map: str = "softmax",
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    """InfoNCE of two or more views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    ids: `(n,)` integers; samples with equal ids are positives of each other, uniformly.
    negatives: `(m, d)`; further candidates of every anchor, of any length, such as a queue's.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.
    chunk_size: how many anchors and candidates at a time, see `StreamedObjective`.

    Raises ValueError on views that do not fit together, or a bad argument.

    >>> import torch
    >>> z = torch.eye(3)
    >>> infonce(z, z, tau=0.5), infonce(z, z, tau=0.5, negatives=-z)
    (tensor(0.2395), tensor(0.4445))
    """
    return InfoNCE(tau, map, chunk_size).forward(*views, ids=ids, negatives=negatives)


class InfoNCE(StreamedObjective):
    """Module form of `infonce`.

    >>> import torch
    >>> InfoNCE(tau=0.5)(torch.eye(3), torch.eye(3))
    tensor(0.2395)
    """

    accepts = ("ids", "negatives")

    def __init__(self, tau: float = 0.1, map: str = "softmax", chunk_size: ChunkSize = "auto") -> None:
        super().__init__(map, chunk_size=chunk_size)
        self.tau = positive("tau", tau)

    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        anchors = known.anchored(len(z[0]))
        scores = scores_across_views(z, self.tau, both_ways=False, anchors=anchors)
        target = target_across_views(same_id(known.ids, z[0], anchors), scores, anchors)
        asking = [a[anchors] for a, _ in combinations(z, 2)]
        rows = Rows(scores, target, candidates=scores.shape[1])
        return add_negatives(rows, asking, unit_negatives(known.negatives, z[0]), self.tau)

    def tile_losses(self, z: Sequence[Tensor], known: Known, rows: int) -> tuple[Tensor, float | None]:
        anchors, negatives = known.anchored(len(z[0])), unit_negatives(known.negatives, z[0])
        groups = None if known.ids is None else sample_integers("ids", known.ids, z[0])
        losses = [
            across_losses(a, b, self.tau, anchors, rows, groups, negatives=negatives)
            for a, b in combinations(z, 2)
        ]
        return torch.cat(losses), None

    def extra_repr(self) -> str:
        return f"tau={self.tau}{self._map_repr}"
