r"""SupCon ("out" form): every view of every sample with the anchor's label is a positive.

    L = mean_i 1/|P(i)| sum_{p in P(i)} -log p_ip,    p as in NT-Xent

i runs over all V * n views; P(i) are the other views of its sample and all views of the samples with its
label. A sample with label -1 is unlabelled: its own views are its only positives, and it is a negative for
all others.

With a single view an anchor may have no positive. It is left out of the mean (and stays a candidate of the
others); the log counts it in `anchors_skipped`. A batch in which no anchor has a positive is a ValueError,
not a 0.

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
from counterpoint.objectives.fenchel_young import fenchel_young
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import Rows, scores_all_views, target_all_views, unit_views


def supcon(*views: Tensor, labels: Tensor, tau: float = 0.1, map: str = "softmax") -> Tensor:
    """SupCon of one or more views `(n, d)` with labels `(n,)`, a scalar.

    labels: integers, -1 for an unlabelled sample.
    tau: temperature, above 0; divides the cosines.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.

    Raises ValueError on views that do not fit together, bad `labels`, `tau` or `map`, or no anchor with a
    positive.

    >>> import torch
    >>> z = torch.eye(3)
    >>> supcon(z, z, labels=torch.tensor([0, 0, 1]), tau=0.5)
    tensor(1.3215)
    """
    rows = _rows(views, positive("tau", tau), labels)
    return fenchel_young(rows.scores, rows.target, map).mean()


def _rows(views: Sequence[Tensor], tau: float, labels: Tensor | None) -> Rows:
    z = unit_views("SupCon", views, fewest=1)
    labels = sample_integers("labels", labels, like=z[0], lowest=-1)
    same = (labels[:, None] == labels) & (labels >= 0)
    target = target_all_views(same.fill_diagonal_(True), z)
    scores = scores_all_views(z, tau)
    candidates = len(scores) - 1
    if len(z) > 1:
        return Rows(scores, target, candidates)
    has_positive = same.sum(1) > 1
    kept = int(has_positive.sum())
    if kept == 0:
        raise ValueError(
            f"SupCon: none of the {len(labels)} anchors has a positive; "
            "give a second view, or labels that repeat"
        )
    if kept < len(labels):
        scores, target = scores[has_positive], target[has_positive]
    return Rows(scores, target, candidates, anchors_skipped=len(labels) - kept)


class SupCon(RowObjective):
    """Module form of `supcon`.

    >>> import torch
    >>> SupCon(tau=0.5)(torch.eye(3), torch.eye(3), labels=torch.tensor([0, 0, 1]))
    tensor(1.3215)
    """

    accepts = ("labels",)
    requires = ("labels",)

    def __init__(self, tau: float = 0.1, map: str = "softmax") -> None:
        super().__init__(map)
        self.tau = positive("tau", tau)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, self.tau, known.labels)

    def log(self, rows: Rows, losses: Tensor) -> Log:
        skipped = torch.full((), rows.anchors_skipped, device=losses.device)
        return {**super().log(rows, losses), "anchors_skipped": skipped}

    def extra_repr(self) -> str:
        return f"tau={self.tau}{self._map_repr}"
