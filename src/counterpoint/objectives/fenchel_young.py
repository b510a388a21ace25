"""The one idea behind the table of objectives: a Fenchel-Young loss between scores and a target.

For a row of scores theta and a target distribution y over the same candidates,

    L(theta; y) = Omega*(theta) - <theta, y>        dL/dtheta = p - y,    p = grad Omega*(theta).

Omega is a convex regulariser on the simplex and Omega* its conjugate. The choice of Omega is the *map* from
scores to the probabilities p; the choice of y is the method (one other view, same label, a soft graph).

* softmax: Omega is the negative Shannon entropy, Omega* the log-sum-exp, and L is the cross entropy.

The full loss has the term + Omega(y), which makes its minimum 0. It does not depend on the scores and is left
out, so that the value is the cross entropy the papers print. For one positive per row Omega(y) is 0 anyway.

Source: Blondel, Martins, Niculae, "Learning with Fenchel-Young losses", JMLR 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterpoint.objectives.checks import one_of


@dataclass(frozen=True)
class Map:
    """A map from scores to the simplex, given by the two things the loss needs of it.

    probability: scores `(r, c)` to p `(r, c)`, the gradient of Omega*; exactly 0 at scores of -inf.
    conjugate: p `(r, c)` to Omega*(theta - max theta) `(r,)`, one value per row. Adding a constant to a row
        adds it to Omega*, so this and the maximum give Omega*(theta), and large scores cost no digits.
    """

    probability: Callable[[Tensor], Tensor]
    conjugate: Callable[[Tensor], Tensor]


MAPS: dict[str, Map] = {
    # The best candidate has score 0 after the shift, so its p is 1 / sum(exp), at least 1 / c: no underflow.
    "softmax": Map(probability=lambda theta: theta.softmax(1), conjugate=lambda p: -p.amax(1).log()),
}


def fenchel_young(scores: Tensor, target: Tensor, map: str = "softmax") -> Tensor:
    """The Fenchel-Young loss of every row, `(r,)`, without the constant Omega(target).

    scores: `(r, c)`, -inf where a candidate is excluded. Every row needs one finite score.
    target: int64 `(r,)`, the index of the one positive of each row; or `(r, c)`, one distribution per row
        that sums to 1 and is 0 at excluded candidates. It gets no gradient.
    map: a key of `MAPS`.

    Half-precision scores are computed in float32. The gradient is `map(scores) - target`, exactly 0 at
    excluded candidates; it can be taken once, not twice. Shapes and types are checked, the entries of
    `target` are not.

    Raises ValueError on an unknown map, or on a target that fits neither form.

    >>> scores = torch.tensor([[2.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]])
    >>> fenchel_young(scores, torch.tensor([0, 2]))
    tensor([0.1269, 1.0986])
    """
    mapping = MAPS[one_of("map", map, MAPS)]
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError(f"scores must be floating (r, c), got {tuple(scores.shape)} and {scores.dtype}")
    index = target.dtype == torch.int64 and target.shape == scores.shape[:1]
    if not index and not (target.is_floating_point() and target.shape == scores.shape):
        raise ValueError(
            f"target must be int64 (r,) or floating (r, c) with (r, c) = {tuple(scores.shape)}, "
            f"got {tuple(target.shape)} and {target.dtype}"
        )
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    return cast(Tensor, _FenchelYoung.apply(scores, target, mapping))


class _FenchelYoung(torch.autograd.Function):
    """Written by hand because the gradient is p - y for every map: one pass over p, and no dense one-hot."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor, mapping: Map) -> Tensor:
        p = mapping.probability(scores)
        ctx.save_for_backward(p, target)
        top = scores.amax(1, keepdim=True)
        if target.ndim == 1:
            gap = (scores.gather(1, target[:, None]) - top).squeeze(1)
        else:
            # An excluded candidate has target 0, and 0 times -inf is NaN where 0 times the lowest float is 0.
            gap = (scores - top).clamp_min_(torch.finfo(scores.dtype).min).mul_(target).sum(1)
        return mapping.conjugate(p) - gap

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        p, target = ctx.saved_tensors
        grad = grad[:, None]
        if target.ndim == 1:
            return (p * grad).scatter_add_(1, target[:, None], -grad), None, None
        return (p - target).mul_(grad), None, None
