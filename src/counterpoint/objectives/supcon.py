r"""SupCon ("out" form): every view of every sample with the anchor's label is a positive.

    L = mean_i 1/|P(i)| sum_{p in P(i)} -log p_ip,    p as in NT-Xent

i runs over all V * n views; P(i) are the other views of its sample and all views of the samples with its
label. A sample with label -1 is unlabelled: its own views are its only positives, and it is a negative for
all others.

With a single view an anchor may have no positive. It is left out of the mean (and stays a candidate of the
others); the log counts it in `anchors_skipped`. A batch in which no anchor has a positive is a ValueError,
not a 0. Where `anchors` says which samples count, their sum is divided by their number times the share of
*all* samples that have a positive, so that parts of a batch average to the whole; a part without a positive
gives 0.

Limits: labels all different, or all -1, give NT-Xent; one label for all gives a target uniform over all
others. It is `XCLR` at tau_s -> 0 with the target 1 for the same label and 0 elsewhere.

Paper: Khosla et al., "Supervised contrastive learning", NeurIPS 2020, their equation (2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.checks import positive, sample_integers
from counterpoint.objectives.rows import Rows, own_places, scores_all_views, target_all_views
from counterpoint.objectives.streamed import ChunkSize, StreamedObjective
from counterpoint.objectives.tile_losses import all_views_losses


def supcon(
    *views: Tensor,
    labels: Tensor,
    tau: float = 0.1,
    map: str = "softmax",
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    """SupCon of one or more views `(n, d)` with labels `(n,)`, a scalar.

    labels: integers, -1 for an unlabelled sample.
    tau: temperature, above 0; divides the cosines.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.
    chunk_size: how many anchors and candidates at a time, see `StreamedObjective`.

    Raises ValueError on views that do not fit together, a bad argument, or no anchor with a positive.

    >>> import torch
    >>> z = torch.eye(3)
    >>> supcon(z, z, labels=torch.tensor([0, 0, 1]), tau=0.5)
    tensor(1.3215)
    """
    return SupCon(tau, map, chunk_size).forward(*views, labels=labels)


def with_positive(labels: Tensor) -> Tensor:
    """Which samples have another one of their label, `(n,)` bool, for labels with -1 where there is none.

    >>> with_positive(torch.tensor([3, -1, 3, 0, -1]))
    tensor([ True, False,  True, False, False])
    """
    _, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return torch.logical_and(counts[place] > 1, labels >= 0)


class SupCon(StreamedObjective):
    """Module form of `supcon`.

    >>> import torch
    >>> SupCon(tau=0.5)(torch.eye(3), torch.eye(3), labels=torch.tensor([0, 0, 1]))
    tensor(1.3215)
    """

    accepts = ("labels",)
    requires = ("labels",)
    fewest = 1

    def __init__(self, tau: float = 0.1, map: str = "softmax", chunk_size: ChunkSize = "auto") -> None:
        super().__init__(map, chunk_size=chunk_size)
        self.tau = positive("tau", tau)

    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        n, anchors = len(z[0]), known.anchored(len(z[0]))
        labels = sample_integers("labels", known.labels, like=z[0], lowest=-1)
        same = (labels[anchors, None] == labels) & (labels >= 0)
        same.scatter_(1, own_places(anchors, n, 1, labels.device), True)
        target = target_all_views(same, z, anchors)
        scores = scores_all_views(z, self.tau, anchors)
        candidates = scores.shape[1] - 1
        counted = _counted(z, labels)
        if counted is None:
            return Rows(scores, target, candidates)
        skipped, count = _share(counted, anchors)
        scores, target = scores[counted[anchors]], target[counted[anchors]]
        return Rows(scores, target, candidates, skipped, count)

    def tile_losses(self, z: Sequence[Tensor], known: Known, rows: int) -> tuple[Tensor, float | None]:
        n, anchors = len(z[0]), known.anchored(len(z[0]))
        labels = sample_integers("labels", known.labels, like=z[0], lowest=-1)
        counted = _counted(z, labels)
        # Each unlabelled sample is a group by itself.
        groups = torch.where(labels < 0, -1 - torch.arange(n, device=labels.device), labels)
        losses = all_views_losses(z, self.tau, anchors, rows, groups)
        if counted is None:
            return losses, None
        return losses[counted[anchors]], _share(counted, anchors)[1]

    def log(self, rows: Rows, losses: Tensor) -> Log:
        skipped = torch.full((), rows.anchors_skipped, device=losses.device)
        return {**super().log(rows, losses), "anchors_skipped": skipped}

    def extra_repr(self) -> str:
        return f"tau={self.tau}{self._map_repr}"


def _counted(z: Sequence[Tensor], labels: Tensor) -> Tensor | None:
    """Which samples have a positive, `(n,)` bool; None where all have. ValueError where none has."""
    if len(z) > 1:
        return None
    counted = with_positive(labels)
    kept = int(counted.sum())
    if kept == 0:
        raise ValueError(
            f"SupCon: none of the {len(labels)} anchors has a positive; "
            "give a second view, or labels that repeat"
        )
    return None if kept == len(labels) else counted


def _share(counted: Tensor, anchors: slice) -> tuple[int, float]:
    """How many of all samples are skipped, and what a sum over these anchors is divided by."""
    n, kept = len(counted), int(counted.sum())
    # Not their own number: a part counts with its share of the samples, and these with theirs of the rows.
    return n - kept, (anchors.stop - anchors.start) * kept / n
