"""Backward passes written by hand give a first derivative, and say so where a second is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Grads = TypeVar("Grads")


def first_order(backward: Callable[..., Grads]) -> Callable[..., Grads]:
    """Decorate the `backward` of an autograd function whose own derivative is not to be had.

    PyTorch's `once_differentiable` speaks up only where the gradient that comes in is itself to be
    differentiated. A loss is differentiated from a plain 1, and a second derivative of it would be silently
    wrong: every term that goes through the backward pass would be missing.

    The decorated function raises RuntimeError in a backward pass with create_graph=True.

    >>> from counterpoint.objectives import InfoNCE
    >>> z = torch.eye(2, requires_grad=True)
    >>> torch.autograd.grad(InfoNCE()(z, torch.eye(2)), z, create_graph=True)
    Traceback (most recent call last):
    RuntimeError: objectives have first derivatives only: call backward or grad without create_graph=True
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Grads:
        # The engine keeps the grad mode on in a backward pass exactly where that pass is recorded.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "objectives have first derivatives only: call backward or grad without create_graph=True"
            )
        return backward(ctx, *grads)

    return checked


def once(x: Tensor) -> Tensor:
    """x itself; its gradient is passed on, and refused where it is to be differentiated again.

    For a loss that holds constant what a second derivative would have to move, as MMCL does its duals.
    """
    return cast(Tensor, _Once.apply(x))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
