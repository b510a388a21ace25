"""The objectives that are a mean over anchors: how they run, and what they log."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoint.objectives.base import Log, Objective
from counterpoint.objectives.fenchel_young import fenchel_young
from counterpoint.objectives.rows import Rows

NEARLY_BEST = 1 - 1e-4
"""A candidate whose target is this near the row's largest is as good: equal captions differ by rounding."""


class RowObjective(Objective):
    """An objective over rows of scores and targets. To write one, fill in `rows`.

    >>> from counterpoint.objectives import InfoNCE
    >>> rows = InfoNCE(tau=0.5).rows([torch.eye(2), torch.eye(2)], None, None, None)
    >>> rows.scores, rows.target
    (tensor([[2., 0.],
            [0., 2.]]), tensor([0, 1]))
    """

    @abstractmethod
    def rows(
        self, views: Sequence[Tensor], labels: Tensor | None, target: Tensor | None, ids: Tensor | None
    ) -> Rows:
        """Scores and targets, one row per anchor."""

    def losses(self, rows: Rows) -> Tensor:
        """The loss of each anchor, `(r,)`; the cross entropy where a subclass says nothing else."""
        return fenchel_young(rows.scores, rows.target)

    def reduce(self, losses: Tensor) -> Tensor:
        """From the losses of the anchors to a scalar: their mean."""
        return losses.mean()

    def log(self, rows: Rows, losses: Tensor) -> Log:
        """What to log beside the loss and what all objectives log."""
        entropy = target_entropy(rows.target)
        return {
            "chance": losses.new_full((), math.log(rows.candidates)),
            "target_entropy": entropy,
            "kl": losses.mean() - entropy,
        }

    def evaluate(
        self,
        views: Sequence[Tensor],
        labels: Tensor | None,
        target: Tensor | None,
        ids: Tensor | None,
        with_log: bool,
    ) -> tuple[Tensor, Log]:
        rows = self.rows(views, labels, target, ids)
        losses = self.losses(rows)
        loss = self.reduce(losses)
        if not with_log:
            return loss, {}
        with torch.no_grad():
            return loss, {
                "loss": loss,
                **self.log(rows, losses),
                "accuracy": accuracy(rows),
                "candidates": torch.full((), rows.candidates, device=loss.device),
            }


def accuracy(rows: Rows) -> Tensor:
    """Share of anchors whose best-scored candidate is a positive; for soft targets, one of maximal target.

    Where several candidates share the best score, the share of positives among them counts, which is the
    accuracy of breaking the tie at random. A collapsed batch is so at chance.

    >>> float(accuracy(Rows(torch.tensor([[1.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 1]), candidates=2)))
    0.75
    """
    best = rows.scores == rows.scores.amax(1, keepdim=True)
    if rows.target.ndim == 1:
        hits = best.gather(1, rows.target[:, None]).sum(1)
    else:
        hits = (best & (rows.target >= NEARLY_BEST * rows.target.amax(1, keepdim=True))).sum(1)
    share = hits.to(rows.scores.dtype) / best.sum(1)
    return share.mean()


def target_entropy(target: Tensor) -> Tensor:
    """Mean entropy of the target distributions, in nats; 0 for one positive per row.

    >>> target_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor(0.3466)
    """
    if target.ndim == 1:
        return torch.zeros((), device=target.device)
    entropy: Tensor = torch.special.entr(target).sum(1)
    return entropy.mean()
