"""The objectives that are a mean over anchors: how they run, and what they log."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoint.objectives.base import Known, Log, Objective
from counterpoint.objectives.checks import not_negative, one_of
from counterpoint.objectives.fenchel_young import MAPS, lower_positives, probability, row_losses
from counterpoint.objectives.rows import Rows, mean_of
from counterpoint.objectives.simplex import row_blocks

NEARLY_BEST = 1 - 1e-4
"""A candidate whose target is this near the row's largest is as good: equal captions differ by rounding."""


class RowObjective(Objective):
    """An objective over rows of scores and targets. To write one, fill in `rows`.

    map, margin: of the Fenchel-Young loss, see there; an objective that is none leaves them as they are.

    >>> from counterpoint.objectives import InfoNCE
    >>> from counterpoint.objectives.base import Known
    >>> rows = InfoNCE(tau=0.5).rows([torch.eye(2), torch.eye(2)], Known())
    >>> rows.scores, rows.target
    (tensor([[2., 0.],
            [0., 2.]]), tensor([0, 1]))
    """

    by_anchors = True

    def __init__(self, map: str = "softmax", margin: float = 0.0) -> None:
        super().__init__()
        self.map, self.margin = one_of("map", map, MAPS), not_negative("margin", margin)

    @abstractmethod
    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        """Scores and targets, one row per anchor."""

    def losses(self, rows: Rows) -> Tensor:
        """The loss of each anchor, `(r,)`; the Fenchel-Young loss where a subclass says nothing else."""
        return row_losses(rows.scores, rows.target, self.map, self.margin)

    def reduce(self, losses: Tensor, count: float | None) -> Tensor:
        """From the losses of the anchors to a scalar: their mean, as by `Rows.mean`."""
        return mean_of(losses, count)

    def log(self, rows: Rows, losses: Tensor) -> Log:
        """What to log beside the loss and what all objectives log."""
        entropy = rows.mean(_entropies(rows, self.map))
        log = {
            "chance": self.chance(rows).to(losses),
            "target_entropy": entropy,
            "kl": rows.mean(losses) - entropy,
        }
        return log if self.map == "softmax" else log | {"support": support(rows, self.map, self.margin)}

    def chance(self, rows: Rows) -> Tensor:
        """The loss where all candidates score alike, as in a collapsed batch; a scalar."""
        if self.margin == 0:
            return uniform_entropy(rows.candidates, self.map)
        alike = rows.scores.masked_fill(rows.scores > -math.inf, 0)
        return rows.mean(row_losses(alike, rows.target, self.map, self.margin))

    @property
    def _map_repr(self) -> str:
        return "" if self.map == "softmax" else f", map={self.map!r}"

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        return self.evaluate_rows(self.rows(views, known), with_log)

    def evaluate_rows(self, rows: Rows, with_log: bool) -> tuple[Tensor, Log]:
        """As `evaluate`, from the rows."""
        losses = self.losses(rows)
        loss = self.reduce(losses, rows.count)
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
    return rows.mean(hits.to(rows.scores.dtype) / best.sum(1))


def target_entropy(target: Tensor, map: str = "softmax") -> Tensor:
    """Mean entropy of the target distributions, 0 for one positive per row: Shannon's for softmax, in nats.

    For another map it is that map's own, -Omega.

    >>> target_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor(0.3466)
    >>> target_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), map="sparsemax")
    tensor(0.1250)
    """
    if target.ndim == 1:
        return torch.zeros((), device=target.device)
    return MAPS[map].entropy(target).mean()


def _entropies(rows: Rows, map: str) -> Tensor:
    if rows.target.ndim == 1:
        return torch.zeros(len(rows.target), device=rows.target.device)
    return MAPS[map].entropy(rows.target)


def uniform_entropy(candidates: int, map: str) -> Tensor:
    """The entropy of the uniform distribution, in float64: the loss where all candidates score alike.

    >>> uniform_entropy(4, "sparsemax"), uniform_entropy(4, "argmax")
    (tensor(0.3750, dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    if map == "softmax":
        return torch.tensor(math.log(candidates), dtype=torch.float64)
    uniform = torch.full((1, candidates), 1 / candidates, dtype=torch.float64)
    return MAPS[map].entropy(uniform).squeeze()


def support(rows: Rows, map: str, margin: float = 0.0) -> Tensor:
    """Mean number of candidates to which the map gives a probability above 0.

    >>> scores = torch.tensor([[2.0, 1.5, 0.0], [0.0, 0.0, 0.0]])
    >>> support(Rows(scores, torch.tensor([0, 0]), candidates=3), "sparsemax")
    tensor(2.5000)
    """
    counts = []
    for block in row_blocks(rows.scores):
        lowered = lower_positives(rows.scores[block], rows.target[block], margin)
        counts.append((probability(lowered, map) > 0).sum(1).to(lowered.dtype))
    return rows.mean(torch.cat([rows.scores.new_empty(0), *counts]))
