r"""Sparse maps from scores to the simplex, by Newton's method instead of a sort.

    sparsemax(x) = [x - T]_+           argmin over the simplex of |p - x|^2
    entmax15(x)  = [x / 2 - T]_+ ^2    the map of the Tsallis entropy with exponent 1.5

T is where the probabilities sum to 1. Their sum falls as T rises and is convex in T, so Newton's steps from a
T that is too low come nearer from below and never pass it. For sparsemax they end after finitely many, on the
exact support; for entmax15 the square root of the sum is taken, which is convex too and nearly straight.

The first T comes from the maxima of groups of scores: the threshold of a part of a row is never above that of
the whole, and the maxima hold most of the support. Only scores above it can be in the support; they are few,
and are all that the remaining steps look at.

Papers: Martins, Astudillo, "From softmax to sparsemax", ICML 2016; Peters, Niculae, Martins, "Sparse
sequence-to-sequence models", ACL 2019; Michelot, "A finite algorithm for finding the projection of a point
onto the canonical simplex", 1986.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from counterpoint.objectives.checks import described, is_dense
from counterpoint.objectives.first_order import first_order

MAXIMA = 64
"""Into how many groups a row is cut for the first guess, and so about how large a support it can foresee."""

BLOCK = {"cpu": 2**22, "other": 2**25}
"""How many scores are worked on at a time. On a CPU few large steps beat many that stay in its cache: its
threads wait for each other after each, and on a busy machine they wait long."""

FEW = 1 / 8
"""Scores that may be in the support are gathered where they are at most this share."""

STEPS_UNREAD = {"cpu": 1, "other": 4}
"""Newton steps between two looks at whether all rows are done: a look makes an accelerator wait."""


def sparsemax(scores: Tensor) -> Tensor:
    """The point of the simplex nearest to the scores, over the last dimension `(..., c)`.

    Differences of 1 or more from the largest score give a probability of exactly 0, as does a score of -inf.
    Every row needs one finite score; a NaN gives a row of NaN. Half precision is computed and returned in
    float32. The gradient can be taken once, not twice.

    Raises ValueError on scores that are not floating or have no candidates; on a CPU also on +inf, and on a
    row of nothing but -inf.

    >>> sparsemax(torch.tensor([1.0, 0.5, 0.0, -torch.inf]))
    tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """
    return _probabilities(scores, sparsemax_fit, sparsemax_at, Tensor.sign)


def entmax15(scores: Tensor) -> Tensor:
    """Entmax with exponent 1.5 over the last dimension `(..., c)`: between softmax and sparsemax.

    Differences of 2 or more from the largest score give a probability of exactly 0, as does a score of -inf.
    Every row needs one finite score; a NaN gives a row of NaN. Half precision is computed and returned in
    float32. The gradient can be taken once, not twice.

    Raises ValueError on scores that are not floating or have no candidates; on a CPU also on +inf, and on a
    row of nothing but -inf.

    >>> entmax15(torch.tensor([1.0, 0.5, -1.0, -torch.inf]))
    tensor([0.6740, 0.3260, 0.0000, 0.0000])
    """
    return _probabilities(scores, entmax15_fit, entmax15_at, Tensor.sqrt)


Fit = Callable[[Tensor], Tensor]
At = Callable[[Tensor, Tensor], Tensor]


def _probabilities(scores: Tensor, fit: Fit, at: At, root: Fit) -> Tensor:
    if not isinstance(scores, Tensor) or not is_dense(scores) or scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must be floating (..., c) with c >= 1, got {described(scores)}")
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    rows = scores.reshape(-1, scores.shape[-1])
    return cast(Tensor, _Map.apply(rows, fit, at, root)).reshape(scores.shape)


def check_largest(top: Tensor) -> None:
    """ValueError where a row's largest score is infinite. An accelerator is not waited for."""
    if top.device.type == "cpu" and bool(top.isinf().any()):
        row = int(top.isinf().int().argmax())
        raise ValueError(
            "scores must have one finite score in every row, and -inf for those excluded, "
            f"got {float(top[row])} for the largest of row {row}"
        )


class _Map(torch.autograd.Function):
    """Written by hand because the Jacobian is diag(q) - q q^T / sum q, with q = root(p), for both maps."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, fit: Fit, at: At, root: Fit) -> Tensor:
        fitted = fit(scores)
        check_largest(fitted[:, 0])
        p = at(scores, fitted)
        ctx.save_for_backward(p)
        ctx.root = root
        return p

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        q = ctx.root(ctx.saved_tensors[0])
        mean = (q * grad).sum(1, keepdim=True) / q.sum(1, keepdim=True)
        return q * (grad - mean), None, None, None


def row_blocks(scores: Tensor) -> Iterator[slice]:
    """Slices of the rows of `(r, c)` that are small enough to be worked on one after another in the cache."""
    rows = max(1, BLOCK.get(scores.device.type, BLOCK["other"]) // max(1, scores.shape[1]))
    for start in range(0, len(scores), rows):
        yield slice(start, start + rows)


def sparsemax_fit(scores: Tensor) -> Tensor:
    """What sparsemax is given by, `(r, 3)`: a row's largest score, T less that, and Omega* less that."""
    return _fit(scores, _sparsemax_step, _sparsemax_conjugate, 1.0)


def sparsemax_at(scores: Tensor, fit: Tensor) -> Tensor:
    """The probabilities `(r, c)`, from the scores and `sparsemax_fit` of them."""
    return _over(scores, fit, 1.0)


def entmax15_fit(scores: Tensor) -> Tensor:
    """What entmax15 is given by, `(r, 3)`: a row's largest score, T less half of it, and Omega* less it."""
    return _fit(scores, _entmax15_step, _entmax15_conjugate, 0.5)


def entmax15_at(scores: Tensor, fit: Tensor) -> Tensor:
    """The probabilities `(r, c)`, from the scores and `entmax15_fit` of them."""
    return _over(scores, fit, 0.5).square_()


def _over(scores: Tensor, fit: Tensor, scale: float) -> Tensor:
    """[scale * (scores - largest) - T]_+. The largest goes off first, so that large scores lose no digits."""
    return _scaled(scores, fit[:, :1], scale).sub_(fit[:, 1:2]).relu_()


def _scaled(scores: Tensor, top: Tensor, scale: float) -> Tensor:
    x = scores - top
    return x if scale == 1 else x.mul_(scale)


# [x - T]_+ `(r, c)` to Omega*(theta - max theta) `(r,)`.
Conjugate = Callable[[Tensor], Tensor]


def _sparsemax_conjugate(p: Tensor) -> Tensor:
    # On the support theta - max = p - max p, which leaves a sum of squares: no cancellation near a vertex.
    best = p.amax(1)
    others = (p.square().sum(1) - best.square()).clamp_min(0)
    return ((1 - best).square() + others) / 2


def _entmax15_conjugate(root: Tensor) -> Tensor:
    best = root.amax(1)
    others = (root.pow(3).sum(1) - best.pow(3)).clamp_min(0)
    return ((1 - best).square() * (2 + best) + others) * (2 / 3)


# x `(r, c)` with a largest value of 0, and t `(r, 1)`, to how far the sum is above 1, and Newton's step.
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _sparsemax_step(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    p = (x - t).relu_()
    excess = p.sum(1, keepdim=True) - 1
    support = p.sign_().sum(1, keepdim=True)
    return excess, excess / support


def _entmax15_step(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    root = (x - t).relu_()
    slope = root.sum(1, keepdim=True)
    total = root.square_().sum(1, keepdim=True)
    excess, length = total - 1, total.sqrt()
    return excess, excess * length / ((length + 1) * slope)


def _fit(scores: Tensor, step: Step, conjugate: Conjugate, scale: float) -> Tensor:
    fits = []
    for block in row_blocks(scores):
        top, x, t = _candidates(scores[block], step, scale)
        t = _newton(x, t, step)
        fits.append(torch.cat([top, t, conjugate((x - t).relu_())[:, None]], 1))
    return torch.cat(fits) if fits else scores.new_empty(0, 3)


def _candidates(scores: Tensor, step: Step, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of each row, those scores that may be in the support, scaled, and a T that is not too high.

    The second is `(r, k)`, each row's scores above its T, then -inf; or all where they are many.
    """
    # The largest alone has the sum 1 at T = -1, so no threshold is lower.
    width = scores.shape[1] // MAXIMA
    if width < 4:
        top = scores.amax(1, keepdim=True)
        return top, _scaled(scores, top, scale), torch.full_like(top, -1)
    body = MAXIMA * width
    # Groups of scores that lie apart, so that a group's maximum is one of the vector unit's lanes.
    maxima = torch.cat([scores[:, :body].view(len(scores), width, MAXIMA).amax(1), scores[:, body:]], 1)
    top = maxima.amax(1, keepdim=True)
    t = _newton(_scaled(maxima, top, scale), torch.full_like(top, -1), step)
    # A little below, since this sum is rounded otherwise than the one that the probabilities come from.
    lowest = top + t / scale - 8 * torch.finfo(t.dtype).eps * (top.abs() + 1)
    above = scores > lowest
    if int(above.count_nonzero()) > FEW * scores.numel():
        return top, _scaled(scores, top, scale), t
    row, column = above.nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(scores))
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    # A row of NaN has no score above anything, and stays one.
    empty = torch.where(top.isnan(), top, -torch.inf)
    x = empty.repeat(1, max(1, int(counts.max())))
    x[row, place] = scores[row, column]
    return top, _scaled(x, top, scale), t


def _newton(x: Tensor, t: Tensor, step: Step) -> Tensor:
    """Newton's method from a t that is not too high, until every row has the sum 1 or can come no nearer."""
    enough = 4 * torch.finfo(x.dtype).eps
    unread = STEPS_UNREAD.get(x.device.type, STEPS_UNREAD["other"])
    while True:
        for _ in range(unread):
            excess, change = step(x, t)
            raised = t + change
            # NaN compares false and so ends the loop. The step takes back a t that rounding raised too far.
            going = (excess > enough) & (raised > t)
            t = raised
        if not bool(going.any()):
            return t
