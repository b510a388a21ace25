r"""Structured assignment: the true matching of two views must cost no more than any other.

    one_to_one:  L = 1/n [ sum_i S_ii - min_pi sum_i S_{i pi(i)} ],    S_ij = 1 - cos(a_i, b_j)
    batch_hard:  L = 1/n sum_i [ S_ii - min_j S_ij ]

pi runs over the permutations of the n samples. With a margin, S_ii + margin stands for S_ii on both sides:
the true matching has to be cheaper by the margin for each sample that another one would pair differently.

`one_to_one` solves the linear assignment problem (scipy's `linear_sum_assignment`, on the CPU; not where each
sample has a nearest of its own) and takes the structured subgradient, the true matching less the best one.
`batch_hard` lets each anchor choose for itself. That allows more, so it is never below `one_to_one`, and
needs no solver. It takes both directions of each pair of views; for `one_to_one` they are the same. All pairs
of views count alike.

`smoothing` puts tau * log sum exp(-. / tau) in the place of the -min of `batch_hard`. Summed over the n rows
of one direction that is tau * n * `InfoNCE(tau)`; the mean over rows and both directions, as here, is tau *
`CLIP(tau)`; both at margin 0. Smoothing `one_to_one` is a ValueError: it needs the logarithm of a permanent,
which is #P-hard.

Limits: 0 exactly when the true matching is a best one; smoothed, always above 0 for n > 1. `batch_hard` with
a margin is `Triplet`. A collapsed batch of 2 samples or more gives the margin, so one above 0 keeps it from
being a minimum. One sample gives 0.

There are no `ids`: where samples repeat, more than one matching is true. `Triplet` takes them.

Paper: Moskalev, Sosnovik, Fischer, Smeulders, "Contrasting quadratic assignments for set-based representation
learning", ECCV 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.checks import not_negative, one_of, positive
from counterpoint.objectives.fenchel_young import row_losses
from counterpoint.objectives.row_objective import RowObjective, accuracy
from counterpoint.objectives.rows import Rows, scores_across_views, target_across_views, unit_views

MININGS = ("batch_hard", "one_to_one")

SOFTNESS, TURNS = 0.02, 3
"""Of `_column_prices`: the temperature of the entropy, and turns. Nothing but time depends on them."""


def structured_assignment(
    *views: Tensor, mining: str = "batch_hard", margin: float = 0.2, smoothing: float | None = None
) -> Tensor:
    """The structured assignment loss of two or more views `(n, d)`, a scalar.

    mining: "batch_hard", each anchor's nearest; or "one_to_one", the cheapest matching as a whole.
    margin: what is added to the cost of each true pair, 0 or above; cosines span 2. At 0 a collapsed batch is
        a minimum.
    smoothing: None, or the temperature of a log-sum-exp, above 0; for "batch_hard" only.

    Raises ValueError on views that do not fit together, a bad argument, or smoothing with "one_to_one".

    >>> import torch
    >>> a = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    >>> b = torch.tensor([[0.8, 0.6], [0.6, -0.8]])
    >>> structured_assignment(a, b, margin=0), structured_assignment(a, b, mining="one_to_one", margin=0)
    (tensor(0.4500), tensor(0.4000))
    """
    smoothing = _check(mining, margin, smoothing)
    margin = not_negative("margin", margin)
    if mining == "one_to_one":
        z = _units(views)
        return _one_to_one(z, margin, slice(0, len(z[0])))[0]
    return _batch_hard(_rows(views), margin, smoothing).mean()


def _check(mining: str, margin: float, smoothing: float | None) -> float | None:
    one_of("mining", mining, MININGS)
    if smoothing is None:
        return None
    if mining == "one_to_one":
        raise ValueError(
            "smoothing is for mining='batch_hard': with 'one_to_one' it is the logarithm of a permanent, "
            f"which is #P-hard; got smoothing={smoothing!r}"
        )
    number = positive("smoothing", smoothing)
    if not_negative("margin", margin) / number > 1e30:
        raise ValueError(f"margin must be at most 1e30 times smoothing, got {margin!r} and {smoothing!r}")
    return number


def _units(views: Sequence[Tensor]) -> list[Tensor]:
    return unit_views("StructuredAssignment", views)


def _rows(views: Sequence[Tensor], known: Known = Known()) -> Rows:  # noqa: B008
    z = _units(views)
    anchors = known.anchored(len(z[0]))
    scores = scores_across_views(z, anchors=anchors)
    return Rows(scores, target_across_views(None, scores, anchors), candidates=scores.shape[1])


def _batch_hard(rows: Rows, margin: float, smoothing: float | None) -> Tensor:
    if smoothing is None:
        return row_losses(rows.scores, rows.target, "argmax", margin)
    return smoothing * row_losses(rows.scores / smoothing, rows.target, "softmax", margin / smoothing)


def _one_to_one(z: Sequence[Tensor], margin: float, anchors: slice) -> tuple[Tensor, Tensor]:
    """The loss, and the share of samples that the best matchings pair with another, over the anchors.

    The matchings are those of all samples, and so is what decides whether the loss is 0.
    """
    losses, moved = [], []
    for a, b in combinations(z, 2):
        partner = best_matching(a, b, margin)
        # The cosines of n pairs are enough for value and gradient: no (n, n) takes part in the backward pass.
        gain = (a * (b[partner] - b)).sum(1)
        differs = (partner != torch.arange(len(a), device=a.device)).to(a.dtype)
        gain = gain + margin * differs
        # 0 where the true matching is a best one, though rounding may say -1e-8, or another as good be found:
        # its subgradient is 0 there, and no sample is moved.
        is_best = gain.detach().mean() <= 0
        losses.append(gain[anchors].mean().masked_fill(is_best, 0))
        moved.append(differs[anchors].mean().masked_fill(is_best, 0))
    return torch.stack(losses).mean(), torch.stack(moved).mean()


def best_matching(a: Tensor, b: Tensor, margin: float = 0.0) -> Tensor:
    """The row of b that each row of a is paired with in the cheapest one-to-one matching, `(n,)` int64.

    a, b: `(n, d)` with rows of length 1. Rows that are not finite give the true matching.
    margin: what is added to the cost of pairing row i with row i.

    >>> best_matching(torch.eye(3), torch.eye(3)[[1, 2, 0]])
    tensor([2, 0, 1])
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    a, b = a.detach(), b.detach()
    if not bool((a.sum() + b.sum()).isfinite()):
        return torch.arange(len(a), device=a.device)
    cost = scores_across_views([-a, b], both_ways=False)
    if margin:
        cost.diagonal().add_(margin)
    nearest = cost.argmin(1)
    if int(nearest.bincount().amax()) == 1:
        # Each row has the candidate that is cheapest for it, and none is asked for twice.
        return nearest
    # In the type that scipy works in: it copies the table for anything else.
    table = cost.double().sub_(_column_prices(cost))
    return torch.from_numpy(linear_sum_assignment(table.cpu().numpy())[1]).to(a.device)


def _column_prices(cost: Tensor) -> Tensor:
    """What to take off each column of costs `(n, n)` to leave the solver less to do, `(n,)`.

    Any numbers leave the best matching what it is: each column is used once. These are near the dual
    variables that the solver would otherwise build up from 0, a shortest path at a time: those of the
    matching softened by an entropy, after a few turns of Sinkhorn's scaling.
    """
    weight = (cost / -SOFTNESS).exp_()
    column = torch.ones_like(cost[0])
    for _ in range(TURNS):
        column = (weight.T @ (weight @ column).reciprocal()).reciprocal()
    return (SOFTNESS * column.log()).nan_to_num(0, 0, 0)


class StructuredAssignment(RowObjective):
    """Module form of `structured_assignment`.

    >>> import torch
    >>> a = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    >>> b = torch.tensor([[0.8, 0.6], [0.6, -0.8]])
    >>> StructuredAssignment(mining="one_to_one", margin=0.5)(a, b)
    tensor(0.9000)
    """

    def __init__(
        self, mining: str = "batch_hard", margin: float = 0.2, smoothing: float | None = None
    ) -> None:
        super().__init__("argmax", margin)
        self.smoothing = _check(mining, margin, smoothing)
        self.mining = mining

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return _rows(views, known)

    def losses(self, rows: Rows) -> Tensor:
        return _batch_hard(rows, self.margin, self.smoothing)

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        if self.mining == "batch_hard":
            return super().evaluate(views, known, with_log)
        z = _units(views)
        loss, active = _one_to_one(z, self.margin, known.anchored(len(z[0])))
        if not with_log:
            return loss, {}
        with torch.no_grad():
            rows = _rows(views, known)
            candidates = torch.full((), rows.candidates, device=loss.device)
            return loss, {
                "loss": loss,
                "active": active,
                "accuracy": accuracy(rows),
                "candidates": candidates,
            }

    def log(self, rows: Rows, losses: Tensor) -> Log:
        broken = _batch_hard(rows, self.margin, None) > 0
        return {"active": rows.mean(broken.to(losses.dtype))}

    def extra_repr(self) -> str:
        return f"mining={self.mining!r}, margin={self.margin}, smoothing={self.smoothing}"
