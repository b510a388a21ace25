"""Partitions of a batch, the whole from its parts, and how large the tensors get."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoint.objectives import Objective

Side = dict[str, Any]


def parts_of(n: int, seed: int) -> list[slice]:
    """A partition of range(n) into up to four slices, of any lengths."""
    generator = torch.Generator().manual_seed(seed)
    cuts = {0, n, *torch.randint(1, n, (3,), generator=generator).tolist()} if n > 1 else {0, n}
    edges = sorted(cuts)
    return [slice(a, b) for a, b in pairwise(edges)]


def in_parts(
    objective: Objective,
    views: list[Tensor],
    side: dict[str, Tensor],
    parts: list[slice],
    alone: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and log of the whole from those of its parts; `alone` gives each its own rows of the target."""
    n, losses, logs = len(views[0]), [], []
    for part in parts:
        own = {k: v[part] if alone and k == "target" else v for k, v in side.items()}
        loss, log = objective.with_log(*views, **own, anchors=part)
        losses.append(loss)
        logs.append(log)
    shares = torch.tensor([(part.stop - part.start) / n for part in parts], dtype=torch.float64)
    log = {
        key: (torch.stack([log[key].double() for log in logs]) * shares).sum()
        for key in logs[0]
        if key != "loss"
    }
    return objective.combine(torch.stack(losses), shares), log


def assert_same(
    objective: Objective, views: list[Tensor], side: dict[str, Tensor], parts: list[slice], **how
):
    whole, whole_log = objective.with_log(*views, **side)
    loss, log = in_parts(objective, views, side, parts, **how)
    torch.testing.assert_close(loss, whole, rtol=1e-10, atol=1e-12)
    for key, value in log.items():
        torch.testing.assert_close(
            value, whole_log[key].double(), rtol=1e-6, atol=1e-7, msg=lambda m, k=key: k + m
        )
    expected = torch.autograd.grad(whole, views)
    torch.testing.assert_close(torch.autograd.grad(loss, views), expected, rtol=1e-8, atol=1e-11)


class Largest(TorchDispatchMode):
    """Notes how many entries the largest tensor has that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self.entries = max(self.entries, tensor.numel())
        return out


def tensors_in(out: object) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, tuple | list):
        for x in out:
            yield from tensors_in(x)
