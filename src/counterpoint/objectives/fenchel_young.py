"""The one idea behind the table of objectives: a Fenchel-Young loss between scores and a target.

For a row of scores theta and a target distribution y over the same candidates,

    L(theta; y) = Omega*(theta) - <theta, y>        dL/dtheta = p - y,    p = grad Omega*(theta).

Omega is a convex regulariser on the simplex and Omega* its conjugate. The choice of Omega is the *map* from
scores to the probabilities p; the choice of y is the method (one other view, same label, a soft graph).

* softmax: Omega is the negative Shannon entropy, Omega* the log-sum-exp, and L is the cross entropy.
* entmax15: Omega is 4/3 (sum p^1.5 - 1), a Tsallis entropy. Between its neighbours.
* sparsemax: Omega is 1/2 (|p|^2 - 1), the Gini entropy, and p the nearest point of the simplex.
* argmax: Omega is 0, Omega* the largest score, and p the best candidate; those that tie share it.

All four Omega are 0 at the vertices, so that for one positive per row the loss is never below 0, and for
sparsemax it is the value Martins & Astudillo print. The lower the entropy -Omega, the smaller the support
of p, and what is outside gets a gradient of exactly 0. For one positive the loss is 0 once it leads the
others by 2 for entmax15, by 1 for sparsemax, by 0 for argmax, and never for softmax.

A margin lowers the scores of the positives before the map sees them: each has to lead by so much more. A soft
target lowers a candidate by margin * y_j / max y: one as good as the best by all of it, one that is unrelated
by nothing. Up to a constant that is the cost 1 - y_j / max y added to every score. Several equal positives
are each lowered by the whole margin.

The full loss has the term + Omega(y), which makes its minimum 0. It does not depend on the scores and is left
out, so that the value is the one the papers print. For one positive per row Omega(y) is 0 anyway.

Source: Blondel, Martins, Niculae, "Learning with Fenchel-Young losses", JMLR 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from counterpoint.objectives.checks import described, is_dense, not_negative, one_of
from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.simplex import (
    check_largest,
    entmax15_at,
    entmax15_fit,
    row_blocks,
    sparsemax_at,
    sparsemax_fit,
)


@dataclass(frozen=True)
class Map:
    """A map from scores to the simplex, given by what the loss needs of it.

    fit: scores `(r, c)` to what the map finds for each row, `(r, 3)`, with Omega*(theta - max theta) in
        the last column; None for softmax, where that is p itself. Adding a constant to a row adds it to
        Omega*, so this and the maximum give Omega*(theta), and large scores cost no digits.
    probability: scores `(r, c)` and their fit to p `(r, c)`, a new tensor, the gradient of Omega*; exactly 0
        at scores of -inf. Where there is a fit, any of the columns may be given, and p is that of those.
    entropy: a distribution `(r, c)` to -Omega of it `(r,)`: 0 at a vertex, largest for the uniform one.
    """

    fit: Callable[[Tensor], Tensor] | None
    probability: Callable[[Tensor, Tensor | None], Tensor]
    entropy: Callable[[Tensor], Tensor]


def _fitted(
    fit: Callable[[Tensor], Tensor],
    at: Callable[[Tensor, Tensor], Tensor],
    entropy: Callable[[Tensor], Tensor],
) -> Map:
    return Map(fit, lambda scores, fitted: at(scores, cast(Tensor, fitted)), entropy)


def _argmax_fit(scores: Tensor) -> Tensor:
    top = scores.amax(1, keepdim=True)
    ties = (scores == top).sum(1, keepdim=True).to(scores.dtype)
    return torch.cat([top, ties, torch.zeros_like(top)], 1)


def _argmax_at(scores: Tensor, fit: Tensor) -> Tensor:
    return (scores == fit[:, :1]).to(scores.dtype).div_(fit[:, 1:2])


MAPS: dict[str, Map] = {
    "softmax": Map(
        fit=None,
        probability=lambda scores, _: scores.softmax(1),
        entropy=lambda y: torch.special.entr(y).sum(1),
    ),
    "entmax15": _fitted(entmax15_fit, entmax15_at, lambda y: (1 - y.pow(1.5).sum(1)) * (4 / 3)),
    "sparsemax": _fitted(sparsemax_fit, sparsemax_at, lambda y: (1 - y.square().sum(1)) / 2),
    "argmax": _fitted(_argmax_fit, _argmax_at, lambda y: torch.zeros_like(y[:, 0])),
}
"""The maps by name, from the largest support to the smallest."""

WHOLE = 1e-3
"""By how much the sum of a target's row may miss 1; in half precision by 16 times as much."""


def fenchel_young(scores: Tensor, target: Tensor, map: str = "softmax", margin: float = 0.0) -> Tensor:
    """The Fenchel-Young loss of every row, `(r,)`, without the constant Omega(target).

    scores: `(r, c)`, -inf where a candidate is excluded. Every row needs one finite score.
    target: int64 `(r,)`, the index of the one positive of each row; or `(r, c)`, one distribution per row
        that sums to 1 and is 0 at excluded candidates. It gets no gradient.
    map: a key of `MAPS`.
    margin: by how much positives are lowered, 0 or above.

    Half-precision scores are computed in float32. The gradient is `map(lowered scores) - target`, exactly 0
    at excluded candidates and wherever both are 0; it can be taken once, not twice. From the forward to the
    backward pass softmax keeps p `(r, c)`; the other maps keep the scores as they are, and `(r, 3)`.
    A score of NaN gives a loss of NaN.

    Raises ValueError on an unknown map, a bad margin, and scores or a target of another shape or type; and
    on a CPU, where reading them is free, on scores and targets whose values are not as above.

    >>> scores = torch.tensor([[2.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]])
    >>> fenchel_young(scores, torch.tensor([0, 2]))
    tensor([0.1269, 1.0986])
    >>> fenchel_young(scores, torch.tensor([0, 2]), map="sparsemax")
    tensor([0.0000, 0.3333])
    """
    one_of("map", map, MAPS)
    margin = not_negative("margin", margin)
    _check_kinds(scores, target)
    on_cpu = scores.device.type == "cpu"
    if on_cpu:
        _check_target(scores.detach(), target.detach())
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if target.ndim == 2:
        target = target.to(scores.dtype)
    losses = row_losses(scores, target, map, margin)
    # Values that are not allowed nearly always show in the losses, which are fewer than the scores.
    if on_cpu and (map == "argmax" or not bool(losses.detach().isfinite().all())):
        _check_scores(scores.detach(), target)
    return losses


def _check_kinds(scores: object, target: object) -> None:
    if not isinstance(scores, Tensor) or not is_dense(scores) or scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores must be floating (r, c) with r, c >= 1, got {described(scores)}")
    index = isinstance(target, Tensor) and target.dtype == torch.int64 and target.shape == scores.shape[:1]
    soft = isinstance(target, Tensor) and is_dense(target) and target.shape == scores.shape
    if not isinstance(target, Tensor) or not (index or soft):
        raise ValueError(
            f"target must be int64 (r,) or floating (r, c) with (r, c) = {tuple(scores.shape)}, "
            f"got {described(target)}"
        )
    if target.device != scores.device:
        raise ValueError(f"target must be on {scores.device} as the scores are, got {target.device}")


def _check_target(scores: Tensor, target: Tensor) -> None:
    """ValueError unless the target has indices of candidates, or a distribution over some that take part."""
    if target.ndim == 1:
        most = scores.shape[1] - 1
        outside = target[(target < 0) | (target > most)]
        if len(outside):
            raise ValueError(f"target must have indices from 0 to {most}, got {int(outside[0])}")
        return
    lowest = float(target.min())
    if not lowest >= 0:
        raise ValueError(f"target must have no entry below 0, got {lowest:g}")
    total = target.sum(1, dtype=torch.float64)
    half = target.dtype not in (torch.float32, torch.float64)
    row = int((total - 1).abs().argmax())
    if not abs(float(total[row]) - 1) <= WHOLE * (16 if half else 1):
        raise ValueError(f"target must sum to 1 in every row, got {float(total[row]):g} in row {row}")
    row_wise = ((target > 0) & (scores == -torch.inf)).any(1)
    if bool(row_wise.any()):
        raise ValueError(
            "target must be 0 at excluded candidates, whose score is -inf, "
            f"got more in row {int(row_wise.int().argmax())}"
        )


def _check_scores(scores: Tensor, target: Tensor) -> None:
    """ValueError unless every row has a largest score that is finite, and a positive that takes part."""
    check_largest(scores.amax(1))
    if target.ndim == 1:
        out = scores.gather(1, target[:, None]).squeeze(1) == -torch.inf
        if bool(out.any()):
            row = int(out.int().argmax())
            raise ValueError(
                f"target must not be an excluded candidate, whose score is -inf, got {int(target[row])} "
                f"in row {row}"
            )


def row_losses(scores: Tensor, target: Tensor, map: str, margin: float = 0.0) -> Tensor:
    """`fenchel_young` of scores in float32 or float64 and a target of their type, with nothing checked.

    For objectives, which make both themselves. There may be no rows.

    >>> row_losses(torch.zeros(1, 2), torch.tensor([0]), "sparsemax")
    tensor([0.2500])
    """
    mapping = MAPS[map]
    if mapping.fit is None:
        return cast(Tensor, _FenchelYoung.apply(lower_positives(scores, target, margin), target, mapping))
    return cast(Tensor, _FittedFenchelYoung.apply(scores, target, mapping, margin))


def lower_positives(scores: Tensor, target: Tensor, margin: float) -> Tensor:
    """The scores `(r, c)` with positives lowered by a margin; see `fenchel_young` for the arguments.

    >>> lower_positives(torch.zeros(1, 3), torch.tensor([[0.5, 0.25, 0.25]]), margin=1.0)
    tensor([[-1.0000, -0.5000, -0.5000]])
    """
    if margin == 0:
        return scores
    if target.ndim == 1:
        return scores.scatter_add(1, target[:, None], scores.new_full((len(target), 1), -margin))
    return scores - target * (margin / target.amax(1, keepdim=True))


def probability(scores: Tensor, map: str) -> Tensor:
    """p of every row `(r, c)`, without a gradient; see `fenchel_young` for the arguments."""
    mapping = MAPS[map]
    with torch.no_grad():
        return mapping.probability(scores, None if mapping.fit is None else mapping.fit(scores))


def _gap(scores: Tensor, target: Tensor, top: Tensor) -> Tensor:
    """<theta - max theta, y> of every row; top is max theta, `(r, 1)`."""
    if target.ndim == 1:
        return (scores.gather(1, target[:, None]) - top).squeeze(1)
    # An excluded candidate has target 0, and 0 times -inf is NaN where 0 times the lowest float is 0.
    return (scores - top).clamp_min_(torch.finfo(scores.dtype).min).mul_(target).sum(1)


class _FenchelYoung(torch.autograd.Function):
    """Written by hand because the gradient is p - y for every map: one pass over p, and no dense one-hot."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor, mapping: Map) -> Tensor:
        p = mapping.probability(scores, None)
        ctx.save_for_backward(p, target)
        # The best candidate has score 0 after the shift, so its p is 1 / sum(exp) >= 1 / c: no underflow.
        return -p.amax(1).log() - _gap(scores, target, scores.amax(1, keepdim=True))

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        p, target = ctx.saved_tensors
        grad = grad[:, None]
        if target.ndim == 1:
            return (p * grad).scatter_add_(1, target[:, None], -grad), None, None
        return (p - target).mul_(grad), None, None


class _FittedFenchelYoung(torch.autograd.Function):
    """The same where a few numbers a row give p anew: it exists for a block of rows at a time, not longer."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor, mapping: Map, margin: float) -> Tensor:
        find = cast(Callable[[Tensor], Tensor], mapping.fit)
        # One empty part each, for rows of which there is none.
        losses, fits = [scores.new_empty(0)], [scores.new_empty(0, 3)]
        for rows in row_blocks(scores):
            lowered = lower_positives(scores[rows], target[rows], margin)
            fits.append(find(lowered))
            losses.append(fits[-1][:, 2] - _gap(lowered, target[rows], fits[-1][:, :1]))
        ctx.mapping, ctx.margin = mapping, margin
        ctx.save_for_backward(scores, torch.cat(fits), target)
        return torch.cat(losses)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        scores, fit, target = ctx.saved_tensors
        grad, out = grad[:, None], torch.empty_like(scores)
        for rows in row_blocks(scores):
            if target.ndim == 1:
                p = ctx.mapping.probability(scores[rows], fit[rows])
                if ctx.margin:
                    # Given the fit, p is a function of each score by itself: the positive's is done again.
                    index = target[rows, None]
                    positive = scores[rows].gather(1, index) - ctx.margin
                    p.scatter_(1, index, ctx.mapping.probability(positive, fit[rows]))
            else:
                lowered = lower_positives(scores[rows], target[rows], ctx.margin)
                p = ctx.mapping.probability(lowered, fit[rows]).sub_(target[rows])
            torch.mul(p, grad[rows], out=out[rows])
        if target.ndim == 1:
            out.scatter_add_(1, target[:, None], -grad)
        return out, None, None, None
