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
from typing import cast

from torch import Tensor

from counterpoint.objectives.base import Known
from counterpoint.objectives.checks import positive, sample_similarity
from counterpoint.objectives.rows import Rows, scores_all_views, target_soft
from counterpoint.objectives.streamed import ChunkSize, StreamedObjective
from counterpoint.objectives.tile_losses import soft_losses
from counterpoint.objectives.tiles import Tiles


def xclr(
    *views: Tensor,
    target: Tensor | Tiles,
    tau: float = 0.1,
    tau_s: float = 0.1,
    map: str = "softmax",
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    """X-CLR of one or more views `(n, d)` with a target of n samples, a scalar.

    target: similarity of the n samples to each other, `(n, n)` floating and finite, or `Tiles` of it; row i
        is the anchor's. Cosines of caption embeddings do as they are.
    tau: temperature of the cosines, above 0.
    tau_s: temperature of the target, above 0.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.
    chunk_size: how many anchors and candidates at a time, see `StreamedObjective`.

    Raises ValueError on views that do not fit together, a bad argument, or a single view of a single sample,
    which has no candidate.

    >>> import torch
    >>> z = torch.eye(3)
    >>> xclr(z, z, target=torch.eye(3), tau=0.5, tau_s=0.5)
    tensor(1.1351)
    """
    return XCLR(tau, tau_s, map, chunk_size).forward(*views, target=target)


class XCLR(StreamedObjective):
    """Module form of `xclr`.

    >>> import torch
    >>> XCLR(tau=0.5, tau_s=0.5)(torch.eye(3), torch.eye(3), target=torch.eye(3))
    tensor(1.1351)
    """

    accepts = ("target",)
    requires = ("target",)
    fewest = 1

    def __init__(
        self,
        tau: float = 0.1,
        tau_s: float = 0.1,
        map: str = "softmax",
        chunk_size: ChunkSize = "auto",
    ) -> None:
        super().__init__(map, chunk_size=chunk_size)
        self.tau, self.tau_s = positive("tau", tau), positive("tau_s", tau_s)

    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        anchors = known.anchored(len(z[0]))
        similarity = sample_similarity("target", known.target, like=z[0], anchors=anchors)
        _check_two(z)
        scores = scores_all_views(z, self.tau, anchors)
        target = target_soft(similarity, self.tau_s, len(z), anchors)
        return Rows(scores, target, candidates=scores.shape[1] - 1)

    def tile_losses(self, z: Sequence[Tensor], known: Known, rows: int) -> tuple[Tensor, float | None]:
        _check_two(z)
        tiles = cast(Tiles, known.target)
        return soft_losses(z, self.tau, known.anchored(len(z[0])), rows, tiles, self.tau_s), None

    def extra_repr(self) -> str:
        return f"tau={self.tau}, tau_s={self.tau_s}{self._map_repr}"


def _check_two(z: Sequence[Tensor]) -> None:
    if len(z) * len(z[0]) == 1:
        raise ValueError(
            "XCLR: one view of 1 sample has nothing to be compared with; give 2 samples or 2 views"
        )
