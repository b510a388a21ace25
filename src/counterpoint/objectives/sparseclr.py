r"""SparseCLR: the sparsemax in the place of the softmax, with a margin.

    L = mean_i [ Omega*(l_i) - l_ii' ],    l_ij = cos(z_i, z_j) / tau - margin [j = i'],    j != i

Omega* is the conjugate of the Gini entropy, so that in the paper's terms L is the mean of -l_ii' + 1/2 sum_j
(l_ij^2 - T_i^2) + 1/2 over the j in the support of sparsemax(l_i), whose threshold is T_i. The gradient of an
anchor is sparsemax(l_i) less its target: candidates outside the support are left alone.

The layout "all_views" has the rows of `NTXent`: all V * n views, each among all others. "inter_view" has
those of `Triplet`: an anchor of one view among the n samples of another, in both directions.

With `target` the positives are soft, as in `XCLR`: y_i is the softmax of G_i / tau_s, and the margin lowers a
candidate by its share of the best one's, margin * y_ij / max_k y_ik. Several equal positives, from `ids` or
more than two views, are each lowered by the whole margin.

The loss is 0 where the positive leads by 1 + margin; cosines over tau span 2 / tau, so at the defaults only
opposite vectors reach it. A collapsed batch of two views gives margin + 1/2 (1 - 1/(c - 1)) for c candidates,
if margin >= 1/(c - 1). With margin=0 it is `NTXent(map="sparsemax")` and, with a target, `XCLR(map=
"sparsemax")`.

The released code is `SparseCLR()`: raw cosines, 2n rows, margin 1, the mean over rows. The paper's formula is
the sum over the n rows of one direction with layout="inter_view", margin=0.

Paper: Moskalev, Sosnovik, Fischer, Smeulders, "Contrasting quadratic assignments for set-based representation
learning", ECCV 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from counterpoint.objectives.base import Known
from counterpoint.objectives.checks import one_of, positive, sample_similarity
from counterpoint.objectives.rows import (
    Rows,
    same_id,
    scores_across_views,
    scores_all_views,
    target_across_views,
    target_all_views,
    target_soft,
)
from counterpoint.objectives.streamed import ChunkSize, StreamedObjective
from counterpoint.objectives.tiles import Tiles

LAYOUTS = ("all_views", "inter_view")


def sparseclr(
    *views: Tensor,
    tau: float = 1.0,
    margin: float = 1.0,
    layout: str = "all_views",
    target: Tensor | Tiles | None = None,
    tau_s: float = 0.1,
    ids: Tensor | None = None,
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    """SparseCLR of two or more views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    margin: by how much a positive is lowered, 0 or above, in units of cosine over tau.
    layout: "all_views" or "inter_view", where the candidates come from.
    target: similarity of the samples to each other for soft positives, `(n, n)`, or `Tiles` of it.
    tau_s: temperature of the target, above 0.
    ids: `(n,)` integers; samples with equal ids are positives of each other, uniformly. Not with `target`.
    chunk_size: how many anchors at a time, see `StreamedObjective`.

    Raises ValueError on views that do not fit together, a bad argument, or both `target` and `ids`.

    >>> import torch
    >>> z = torch.eye(3)
    >>> sparseclr(z, z), sparseclr(z, z, margin=0), sparseclr(z, z, tau=0.5)
    (tensor(0.4000), tensor(0.), tensor(0.))
    """
    return SparseCLR(tau, margin, layout, tau_s, chunk_size).forward(*views, target=target, ids=ids)


def _soft_across(similarity: Tensor, tau_s: float, scores: Tensor) -> Tensor:
    # The largest is taken off before the division, which could leave the range of numbers.
    below = similarity - similarity.amax(1, keepdim=True)
    return (below / tau_s).softmax(1).repeat(len(scores) // len(similarity), 1)


class SparseCLR(StreamedObjective):
    """Module form of `sparseclr`.

    >>> import torch
    >>> loss, log = SparseCLR(margin=0.5).with_log(torch.eye(3), torch.eye(3))
    >>> loss, log["support"]
    (tensor(0.1000), tensor(5.))
    """

    accepts = ("target", "ids")

    def __init__(
        self,
        tau: float = 1.0,
        margin: float = 1.0,
        layout: str = "all_views",
        tau_s: float = 0.1,
        chunk_size: ChunkSize = "auto",
    ) -> None:
        super().__init__("sparsemax", margin, chunk_size)
        self.tau, self.tau_s = positive("tau", tau), positive("tau_s", tau_s)
        self.layout = one_of("layout", layout, LAYOUTS)

    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        if known.target is not None and known.ids is not None:
            raise ValueError(
                "SparseCLR takes target or ids, not both: each says what an anchor's positives are"
            )
        anchors, all_views = known.anchored(len(z[0])), self.layout == "all_views"
        if all_views:
            scores = scores_all_views(z, self.tau, anchors)
        else:
            scores = scores_across_views(z, self.tau, anchors=anchors)
        return Rows(scores, self._target(z, scores, known, anchors), scores.shape[1] - all_views)

    def _target(self, z: Sequence[Tensor], scores: Tensor, known: Known, anchors: slice) -> Tensor:
        all_views = self.layout == "all_views"
        if known.target is None:
            same = same_id(known.ids, z[0], anchors)
            if all_views:
                return target_all_views(same, z, anchors)
            return target_across_views(same, scores, anchors)
        similarity = sample_similarity("target", known.target, like=z[0], anchors=anchors)
        if all_views:
            return target_soft(similarity, self.tau_s, len(z), anchors)
        return _soft_across(similarity, self.tau_s, scores)

    def extra_repr(self) -> str:
        chunk = "" if self.chunk_size == "auto" else f", chunk_size={self.chunk_size}"
        return f"tau={self.tau}, margin={self.margin}, layout={self.layout!r}, tau_s={self.tau_s}{chunk}"
