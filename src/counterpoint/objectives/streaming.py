"""Sums of exponentials over all pairs of vectors, a tile of pairs at a time: no table of all ever exists.

A row keeps two numbers, its largest score so far and the sum of exponentials less that. The backward pass
computes the tiles anew.

Vectors come as `(V, n, d)`: tile (I, J) holds all views of the samples I against all views of the samples J.
Where anchors and candidates are the same vectors, a tile gives the sums of its rows and of its columns, and
half of the tiles are enough: fewer products than a table takes, which computes both halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.triton_switch import takes_triton

ROWS = 512
"""Rows and columns of a tile where nothing else is asked for: two tiles of float32 fit a core's cache."""

SAFE = {torch.float32: 40.0, torch.float64: 300.0}
"""Exponents up to this size need no largest taken off: their exp, and sums of 1e17 of them, are numbers."""


@dataclass(frozen=True)
class Plan:
    """How a sum over pairs runs.

    step: samples a tile, of the rows and of the columns.
    start: which sample the first row's is.
    without: pairs that are left out: those of a vector with "itself", of all views of one "sample", or none.
    columns: whether each column is an anchor too, with all rows for candidates.
    safe: whether no exponent is larger than `SAFE`.
    """

    step: int
    start: int = 0
    without: Literal["itself", "sample"] | None = None
    columns: bool = False
    safe: bool = False


def is_safe(largest: float, dtype: torch.dtype) -> bool:
    """Whether exponents up to that size, either sign, need no largest taken off."""
    return largest <= SAFE[dtype]


def log_sum_exp(q: Tensor, k: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor | None]:
    """The logarithm of the sum of exp(q_i . k_j) over j, `(V, a)`, and with `plan.columns` over i, `(W, n)`.

    q: `(V, a, d)`, k: `(W, n, d)`; None where they are those of q. A row without a candidate has -inf.

    >>> z = torch.eye(3)[None]
    >>> log_sum_exp(z, None, Plan(step=2, without="itself", safe=True))[0]
    tensor([[0.6931, 0.6931, 0.6931]])
    """
    if takes_triton(q):
        from counterpoint.objectives import triton_softmax  # which imports this module

        return triton_softmax.log_sum_exp(q, k, plan)
    rows, columns = cast(tuple[Tensor, Tensor | None], uncompiled(_LogSumExp, q, k, plan))
    return rows, columns


@torch.compiler.disable  # type: ignore[untyped-decorator]
def uncompiled(function: type[torch.autograd.Function], *arguments: object) -> Any:
    """The function applied where a compiler does not look: it would unroll its loop over tiles for each n."""
    return function.apply(*arguments)


class _LogSumExp(torch.autograd.Function):
    """Written by hand so that the backward pass computes the tiles anew instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor | None, plan: Plan) -> tuple[Tensor, Tensor | None]:
        walk = _Walk(q, k, plan)
        rows = [_Sums(x, plan.safe) for x in walk.x]
        columns = rows if k is None else [_Sums(y, plan.safe) for y in walk.y] if plan.columns else []
        for i, j, s in walk.tiles():
            if plan.safe:
                s.exp_()
                walk.leave_out(i, j, s, 0)
                rows[i].total += s.sum(1)
                if columns and (k is not None or i != j):
                    columns[j].total += s.sum(0)
                continue
            walk.leave_out(i, j, s, -math.inf)
            if columns and (k is not None or i != j):
                columns[j].add(s, 0, walk.other(s))
            rows[i].add(s, 1, s)
        lse = walk.join([r.log() for r in rows], len(q))
        other = walk.join([c.log() for c in columns], len(k)) if k is not None and plan.columns else None
        ctx.plan = plan
        ctx.save_for_backward(q, k, lse, other)
        return lse, other

    @staticmethod
    @first_order
    def backward(
        ctx: Any, grad: Tensor, grad_other: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        q, k, lse, other = ctx.saved_tensors
        plan: Plan = ctx.plan
        walk = _Walk(q, k, plan)
        wants_k = k is not None and ctx.needs_input_grad[1]
        rows = walk.weights(lse, grad)
        columns = rows if k is None else None
        if other is not None and grad_other is not None:
            columns = walk.weights(other, grad_other)
        dx = [torch.zeros_like(x) for x in walk.x]
        dy = dx if k is None else [torch.zeros_like(y) for y in walk.y] if wants_k else []
        for i, j, s in walk.tiles():
            a = walk.probability(i, j, s, rows[i], None if columns is None else columns[j])
            dx[i].addmm_(a, walk.y[j])
            if dy and (k is not None or i != j):
                dy[j].addmm_(a.T, walk.x[i])
        return walk.join(dx, len(q)), walk.join(dy, len(k)) if wants_k and k is not None else None, None


class _Walk:
    """The tiles of a table of products, one after another in the same memory."""

    def __init__(self, q: Tensor, k: Tensor | None, plan: Plan) -> None:
        self.q, self.k, self.plan = q, k, plan
        self.x = split(q, plan.step)
        self.y = self.x if k is None else split(k, plan.step)
        self.views = len(q), len(q if k is None else k)
        self.entries = len(self.x[0]) * len(self.y[0])
        self.memory: list[Tensor] = []

    def tiles(self) -> Iterator[tuple[int, int, Tensor]]:
        """The numbers of the rows' and columns' blocks, and their products, to be written over."""
        with torch.autocast(self.q.device.type, enabled=False):
            for i, x in enumerate(self.x):
                for j in range(i if self.k is None else 0, len(self.y)):
                    y = self.y[j]
                    yield i, j, torch.mm(x, y.T, out=self.room(0, len(x), len(y)))

    def room(self, number: int, rows: int, columns: int) -> Tensor:
        while len(self.memory) <= number:
            self.memory.append(self.q.new_empty(self.entries))
        return self.memory[number][: rows * columns].view(rows, columns)

    def other(self, s: Tensor) -> Tensor:
        """Memory for a second tile."""
        return self.room(1, *s.shape)

    def leave_out(self, i: int, j: int, s: Tensor, value: float) -> None:
        """Write a value where the plan leaves pairs out."""
        if self.plan.without is None:
            return
        v, w = self.views
        a, b = s.shape[0] // v, s.shape[1] // w
        offset = self.plan.start + (i - j) * self.plan.step
        if not -a < offset < b:
            return
        pairs = s.view(v, a, w, b).diagonal(offset, 1, 3)
        (pairs.diagonal(0, 0, 1) if self.plan.without == "itself" else pairs).fill_(value)

    def weights(self, lse: Tensor, grad: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What the probabilities of a block are made of: lse and, where safe, grad / sum, else grad."""
        if self.plan.safe:
            grad = torch.where(lse == -math.inf, 0, grad * torch.exp(-lse))
        lse = lse.clamp_min(torch.finfo(lse.dtype).min)
        pairs = (split(x[..., None], self.plan.step) for x in (lse, grad))
        return list(zip(*pairs, strict=True))

    def probability(
        self, i: int, j: int, s: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """The gradient of the products, from the products: each one's share of its row's and column's sum."""
        if self.plan.safe:
            s.exp_()
            self.leave_out(i, j, s, 0)
            factor = rows[1] if columns is None else torch.add(rows[1], columns[1].T, out=self.other(s))
            return s.mul_(factor)
        self.leave_out(i, j, s, -math.inf)
        if columns is None:
            return s.sub_(rows[0]).exp_().mul_(rows[1])
        other = torch.sub(s, columns[0].T, out=self.other(s)).exp_().mul_(columns[1].T)
        return s.sub_(rows[0]).exp_().mul_(rows[1]).add_(other)

    def join(self, blocks: Sequence[Tensor], views: int) -> Tensor:
        """From blocks `(V * step, ...)` back to `(V, n, ...)`."""
        return torch.cat([block.view(views, -1, *block.shape[1:]) for block in blocks], 1)


def split(x: Tensor, step: int) -> list[Tensor]:
    """`(V, n, ...)` cut into blocks of samples, each `(V * step, ...)`: all of view 0, then all of view 1."""
    return [block.reshape(-1, *x.shape[2:]) for block in torch.split(x, step, 1)]


class _Sums:
    """The sum of exponentials of each row of a block so far: of all, less the largest of them."""

    def __init__(self, block: Tensor, safe: bool) -> None:
        self.total = block.new_zeros(len(block))
        self.top = None if safe else torch.full_like(self.total, torch.finfo(block.dtype).min)

    def add(self, s: Tensor, dim: int, out: Tensor) -> None:
        old = cast(Tensor, self.top)
        self.top = torch.maximum(old, s.amax(dim))
        self.total *= (old - self.top).exp_()
        self.total += torch.sub(s, self.top.unsqueeze(dim), out=out).exp_().sum(dim)

    def log(self) -> Tensor:
        return self.total.log() if self.top is None else self.total.log() + self.top
