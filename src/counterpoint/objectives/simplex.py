r"""Sparse maps from scores to the simplex, by Newton's method instead of a sort.

    sparsemax(x) = [x - T]_+           argmin over the simplex of |p - x|^2
    entmax15(x)  = [x / 2 - T]_+ ^2    the map of the Tsallis entropy with exponent 1.5

T is where the probabilities sum to 1. Their sum falls as T rises and is convex in T, so Newton's steps from a
T that is too low come nearer from below and never pass it. For sparsemax they end after finitely many, on the
exact support; for entmax15 the square root of the sum is taken, which is convex too and nearly straight.

The first T comes from the maxima of groups of scores: the threshold of a part of a row is never above that of
the whole, and the maxima hold most of the support. Two or three passes over the whole row then remain.

Papers: Martins, Astudillo, "From softmax to sparsemax", ICML 2016; Peters, Niculae, Martins, "Sparse
sequence-to-sequence models", ACL 2019; Michelot, "A finite algorithm for finding the projection of a point
onto the canonical simplex", 1986.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

GROUP = 32
"""How many scores give one maximum for the first guess. From 8 to 64 it makes little difference."""

BLOCK = {"cpu": 2**19, "other": 2**25}
"""How many scores are worked on at a time: what stays in a CPU's cache, or is little to an accelerator."""

STEPS_UNREAD = {"cpu": 1, "other": 4}
"""Newton steps between two looks at whether all rows are done: a look makes an accelerator wait."""


def sparsemax(scores: Tensor) -> Tensor:
    """The point of the simplex nearest to the scores, over the last dimension `(..., c)`.

    Differences of 1 or more from the largest score give a probability of exactly 0, as does a score of -inf.
    Every row needs one finite score. Half precision is computed and returned in float32. The gradient can be
    taken once, not twice.

    Raises ValueError on scores that are not floating or have no candidates.

    >>> sparsemax(torch.tensor([1.0, 0.5, 0.0, -torch.inf]))
    tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """
    return _probabilities(scores, sparsemax_fit, sparsemax_at, Tensor.sign)


def entmax15(scores: Tensor) -> Tensor:
    """Entmax with exponent 1.5 over the last dimension `(..., c)`: between softmax and sparsemax.

    Differences of 2 or more from the largest score give a probability of exactly 0, as does a score of -inf.
    Every row needs one finite score. Half precision is computed and returned in float32. The gradient can be
    taken once, not twice.

    Raises ValueError on scores that are not floating or have no candidates.

    >>> entmax15(torch.tensor([1.0, 0.5, -1.0, -torch.inf]))
    tensor([0.6740, 0.3260, 0.0000, 0.0000])
    """
    return _probabilities(scores, entmax15_fit, entmax15_at, Tensor.sqrt)


Fit = Callable[[Tensor], Tensor]
At = Callable[[Tensor, Tensor], Tensor]


def _probabilities(scores: Tensor, fit: Fit, at: At, root: Fit) -> Tensor:
    if not scores.is_floating_point() or scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(
            f"scores must be floating (..., c) with c >= 1, got {tuple(scores.shape)} and {scores.dtype}"
        )
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    rows = scores.reshape(-1, scores.shape[-1])
    return cast(Tensor, _Map.apply(rows, fit, at, root)).reshape(scores.shape)


class _Map(torch.autograd.Function):
    """Written by hand because the Jacobian is diag(q) - q q^T / sum q, with q = root(p), for both maps."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, fit: Fit, at: At, root: Fit) -> Tensor:
        p = at(scores, fit(scores))
        ctx.save_for_backward(p)
        ctx.root = root
        return p

    @staticmethod
    @once_differentiable
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
    """What sparsemax is given by, `(r, 2)`: each row's largest score, and T less that score."""
    return _fit(scores, _sparsemax_step, 1.0)


def sparsemax_at(scores: Tensor, fit: Tensor) -> Tensor:
    """The probabilities `(r, c)`, from the scores and `sparsemax_fit` of them."""
    return _over(scores, fit)


def entmax15_fit(scores: Tensor) -> Tensor:
    """What entmax15 is given by, `(r, 2)`: each row's largest score, and T less half of that score."""
    return _fit(scores, _entmax15_step, 0.5)


def entmax15_at(scores: Tensor, fit: Tensor) -> Tensor:
    """The probabilities `(r, c)`, from the scores and `entmax15_fit` of them."""
    return _over(scores, fit, 0.5).square_()


def _over(scores: Tensor, fit: Tensor, scale: float = 1.0) -> Tensor:
    """[scale * (scores - largest) - T]_+. The largest goes off first, so that large scores lose no digits."""
    top, t = fit[:, :1], fit[:, 1:]
    x = scores - top
    return (x if scale == 1 else x.mul(scale)).sub(t).relu()


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


def _fit(scores: Tensor, step: Step, scale: float) -> Tensor:
    fit = scores.new_empty(len(scores), 2)
    for block in row_blocks(scores):
        fit[block] = _fit_block(scores[block], step, scale)
    return fit


def _fit_block(scores: Tensor, step: Step, scale: float) -> Tensor:
    top = scores.amax(1, keepdim=True)
    # The largest alone has sum 1 here, so no threshold is lower.
    t = torch.full_like(top, -1)
    width = scores.shape[1] // GROUP
    if width >= 8:
        maxima = scores[:, : GROUP * width].view(len(scores), GROUP, width).amax(1)
        t = _newton(_scaled(maxima, top, scale), t, step)
    t = _newton(_scaled(scores, top, scale), t, step)
    return torch.cat([top, t], 1)


def _scaled(scores: Tensor, top: Tensor, scale: float) -> Tensor:
    x = scores - top
    return x if scale == 1 else x.mul_(scale)


def _newton(x: Tensor, t: Tensor, step: Step) -> Tensor:
    """Newton's method from a t that is not too high, until every row has the sum 1 or can come no nearer."""
    enough = 4 * torch.finfo(x.dtype).eps
    unread = STEPS_UNREAD.get(x.device.type, STEPS_UNREAD["other"])
    while True:
        for _ in range(unread):
            excess, change = step(x, t)
            raised = t + change
            # NaN compares false and so ends the loop.
            going = (excess > enough) & (raised > t)
            t = torch.where(excess < 0, t, raised)
        if not bool(going.any()):
            return t
