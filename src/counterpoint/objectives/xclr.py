r"""X-CLR: the target of an anchor is a distribution over all others, by how similar their samples are.

    L = mean_i -sum_{j != i} s_ij log p_ij,    s_ij = exp(G_ij / tau_s) / sum_{k != i} exp(G_ik / tau_s)

i, j run over all V * n views, p is that of NT-Xent, and G is the similarity of the samples behind the views:
of their captions, their class names, a taxonomy, or any matrix. Another view of the anchor's own sample has
G_ii. The self pair is excluded from p and from s, both. G gets no gradient.

The least the loss can be is the mean entropy of s, not 0; it is reached where cos(z_i, z_j) / tau and G_ij /
tau_s differ by a constant in each row. Compare runs at different tau_s by `kl`, the loss less that entropy.
The share of the mass that falls on the true positive shrinks with the batch: tune tau_s anew when the batch
changes.

Another `map` changes p and not s, which stays the softmax of G / tau_s. With map="sparsemax" the best
there is are cosines over tau that differ from s itself, not from G / tau_s, by a constant in each row. An s
spread over many candidates then asks for cosines that hardly differ: choose a lower tau_s than for softmax.

Limits: tau_s -> 0 gives a target uniform over the candidates with the largest G: exactly SupCon ("out") where
G is 1 for the same class and less elsewhere, exactly NT-Xent where only the diagonal is largest. tau_s ->
infinity gives a target uniform over all others, which says nothing.

Paper: Sobal et al., "X-sample contrastive loss: improving contrastive learning with sample similarity
graphs", 2024, arXiv 2407.18134.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from counterpoint.objectives.base import Known
from counterpoint.objectives.checks import positive, sample_similarity
from counterpoint.objectives.fenchel_young import fenchel_young
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import Rows, scores_all_views, target_soft, unit_views


def xclr(
    *views: Tensor, target: Tensor, tau: float = 0.1, tau_s: float = 0.1, map: str = "softmax"
) -> Tensor:
    """X-CLR of one or more views `(n, d)` with a target `(n, n)`, a scalar.

    target: similarity of the n samples to each other, floating and finite; row i is the anchor's. Cosines of
        caption embeddings do as they are.
    tau: temperature of the cosines, above 0.
    tau_s: temperature of the target, above 0.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.

    Raises ValueError on views that do not fit together, a bad `target`, `tau`, `tau_s` or `map`, or a single
    view of a single sample, which has no candidate.

    >>> import torch
    >>> z = torch.eye(3)
    >>> xclr(z, z, target=torch.eye(3), tau=0.5, tau_s=0.5)
    tensor(1.1351)
    """
    rows = _rows(views, positive("tau", tau), positive("tau_s", tau_s), Known(target=target))
    return fenchel_young(rows.scores, rows.target, map).mean()


def _rows(views: Sequence[Tensor], tau: float, tau_s: float, known: Known) -> Rows:
    z = unit_views("XCLR", views, fewest=1)
    anchors = known.anchored(len(z[0]))
    similarity = sample_similarity("target", known.target, like=z[0], anchors=anchors)
    if len(z) * len(z[0]) == 1:
        raise ValueError(
            "XCLR: one view of 1 sample has nothing to be compared with; give 2 samples or 2 views"
        )
    scores = scores_all_views(z, tau, anchors)
    return Rows(scores, target_soft(similarity, tau_s, len(z), anchors), candidates=scores.shape[1] - 1)


class XCLR(RowObjective):
    """Module form of `xclr`.

    >>> import torch
    >>> XCLR(tau=0.5, tau_s=0.5)(torch.eye(3), torch.eye(3), target=torch.eye(3))
    tensor(1.1351)
    """

    accepts = ("target",)
    requires = ("target",)

    def __init__(self, tau: float = 0.1, tau_s: float = 0.1, map: str = "softmax") -> None:
        super().__init__(map)
        self.tau, self.tau_s = positive("tau", tau), positive("tau_s", tau_s)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, self.tau, self.tau_s, known)

    def extra_repr(self) -> str:
        return f"tau={self.tau}, tau_s={self.tau_s}{self._map_repr}"
