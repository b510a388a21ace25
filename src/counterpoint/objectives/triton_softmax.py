"""`streaming.log_sum_exp` and `tile_losses.soft_losses` by Triton's kernels, see `triton_switch`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.streaming import Plan, uncompiled
from counterpoint.objectives.tiles import ClassTable, Cosines, Features

if TYPE_CHECKING:
    from counterpoint.objectives.triton_kernels import Target


def log_sum_exp(q: Tensor, k: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor | None]:
    """As `streaming.log_sum_exp`. All of a plan counts but its step and whether it is safe."""
    return cast(tuple[Tensor, Tensor | None], uncompiled(_LogSumExp, q, k, plan))


def soft_losses(q: Tensor, k: Tensor | None, start: int, features: Features, tau_s: float) -> Tensor:
    """X-CLR of the anchors q `(V, a, d)` among k `(V, n, d)`, each over the root of tau, `(V, a)`.

    k: None where it is q.
    start: the sample of the first anchor.
    features: what the similarity of the n samples is made of.
    """
    return cast(Tensor, uncompiled(_SoftLosses, q, k, start, features, tau_s))


class _LogSumExp(torch.autograd.Function):
    """Two launches where all anchors are all candidates, one forward and one backward, else up to four."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor | None]:
        from counterpoint.objectives import triton_kernels as kernels

        x = kernels.Side(q.detach().contiguous(), plan.start)
        y = x if k is None else kernels.Side(k.detach().contiguous(), 0)
        lse = kernels.sums(x, y, plan.without, None)[0]
        other = kernels.sums(y, x, plan.without, None)[0] if k is not None and plan.columns else None
        ctx.plan, ctx.symmetric = plan, k is None
        ctx.save_for_backward(x.vectors, y.vectors, lse, other)
        return lse, other

    @staticmethod
    @first_order
    def backward(
        ctx: Any, grad: Tensor, grad_other: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        from counterpoint.objectives import triton_kernels as kernels

        q, k, lse, other = ctx.saved_tensors
        x = kernels.Side(q, ctx.plan.start, lse, None, grad.contiguous())
        if ctx.symmetric:
            return kernels.gradient(x, x, ctx.plan.without, None), None, None
        y = kernels.Side(k, 0)
        if other is not None and grad_other is not None:
            y = replace(y, lse=other, grad=grad_other.contiguous())
        wants_q, wants_k, _ = ctx.needs_input_grad
        dq = kernels.gradient(x, y, ctx.plan.without, None) if wants_q else None
        dk = kernels.gradient(y, x, ctx.plan.without, None) if wants_k else None
        return dq, dk, None


class _SoftLosses(torch.autograd.Function):
    """The gradient of a score is p - y: both computed anew."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor | None, start: int, features: Features, tau_s: float
    ) -> Tensor:
        from counterpoint.objectives import triton_kernels as kernels

        x = kernels.Side(q.detach().contiguous(), start)
        y = x if k is None else kernels.Side(k.detach().contiguous(), 0)
        ctx.target = _target(features, tau_s, q)
        lse, target_lse, aimed = kernels.sums(x, y, "itself", ctx.target)
        ctx.start, ctx.symmetric = start, k is None
        ctx.save_for_backward(x.vectors, y.vectors, lse, target_lse)
        return lse - aimed

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from counterpoint.objectives import triton_kernels as kernels

        q, k, lse, target_lse = ctx.saved_tensors
        x = kernels.Side(q, ctx.start, lse, target_lse, grad.contiguous())
        y = x if ctx.symmetric else kernels.Side(k, 0)
        dq = kernels.gradient(x, y, "itself", ctx.target)
        wants_k = not ctx.symmetric and ctx.needs_input_grad[1]
        return dq, kernels.gradient(y, x, "itself", ctx.target) if wants_k else None, None, None, None


def _target(features: Features, tau_s: float, like: Tensor) -> Target:
    """On the device of the vectors, in types that the kernels read."""
    from counterpoint.objectives import triton_kernels as kernels

    row = features.row.to(like.device).contiguous()
    if isinstance(features, ClassTable):
        labels = features.labels.to(like.device).contiguous()
        return kernels.Target(ClassTable(labels, features.table.to(like).contiguous(), row), 1 / tau_s)
    return kernels.Target(Cosines(features.vectors.to(like).contiguous(), row), 1 / tau_s)
