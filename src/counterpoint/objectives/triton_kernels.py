"""Two Triton kernels: what each row sums over all columns, and the gradient of that to each row's vector.

A program has one block of rows of one view and goes through all columns, so that nothing is added to the
same place by two programs, and a run gives the same bits again. The backward pass computes scores anew.
The gradient of the columns is that of the rows with the two sides exchanged.

Sides are `(V, n, d)` float32, contiguous. Only this file needs Triton to be imported.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from counterpoint.objectives.tiles import ClassTable, Features
from counterpoint.objectives.triton_switch import PRECISIONS

LOWEST = tl.constexpr(float(torch.finfo(torch.float32).min))
"""In place of -inf as the largest score so far: -inf less -inf is no number."""

WITHOUT = {None: 0, "itself": 1, "sample": 2}
"""Which pairs are left out, see `streaming.Plan`."""

NO_TARGET, COSINES, TABLE = 0, 1, 2


@triton.jit
def _products(x, rows, some_rows, y, columns, some_columns, D: tl.constexpr, PRECISION: tl.constexpr,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """The products `(ROWS, COLUMNS)` of vectors of length D; 0 where a row or a column is none."""
    s = tl.zeros((ROWS, COLUMNS), tl.float32)
    x += rows.to(tl.int64)[:, None] * D
    y += columns.to(tl.int64)[None, :] * D
    for first in range(0, D, WIDTH):
        at = first + tl.arange(0, WIDTH)
        left = tl.load(x + at[None, :], mask=some_rows[:, None] & (at < D)[None, :], other=0.0)
        right = tl.load(y + at[:, None], mask=some_columns[None, :] & (at < D)[:, None], other=0.0)
        s = tl.dot(left, right, s, input_precision=PRECISION)
    return s


@triton.jit
def _similarity(features, same, table, rows, some_rows, columns, some_columns, size,
                TARGET: tl.constexpr, D_T: tl.constexpr, PRECISION: tl.constexpr,
                ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """What the target is made of, of samples to samples, 1 where they have the same number in `same`.

    TARGET 1: cosines of the vectors `features`. 2: entries of a table (size, size) by the classes `features`,
    and 0 for class -1.
    """
    if TARGET == 1:
        g = _products(features, rows, some_rows, features, columns, some_columns, D_T, PRECISION,
                      ROWS, COLUMNS, WIDTH)  # fmt: skip
        g = tl.minimum(tl.maximum(g, -1.0), 1.0)
    else:
        a = tl.load(features + rows, mask=some_rows, other=-1)
        b = tl.load(features + columns, mask=some_columns, other=-1)
        named = (a >= 0)[:, None] & (b >= 0)[None, :]
        g = tl.load(table + a[:, None] * size + b[None, :], mask=named, other=0.0)
    a = tl.load(same + rows, mask=some_rows, other=-1)
    b = tl.load(same + columns, mask=some_columns, other=-2)
    return tl.where(a[:, None] == b[None, :], 1.0, g)


@triton.jit
def _kept(samples, some_rows, view, others, some_columns, other_view, LEFT_OUT: tl.constexpr):
    """Which pairs count."""
    kept = some_rows[:, None] & some_columns[None, :]
    if LEFT_OUT == 1:
        kept = kept & ((samples[:, None] != others[None, :]) | (view != other_view))
    if LEFT_OUT == 2:
        kept = kept & (samples[:, None] != others[None, :])
    return kept


@triton.jit
def _forward(x, y, lse, target_lse, aimed, features, same, table, size, scale, nx, ny, x_start, y_start,
             views, TARGET: tl.constexpr, LEFT_OUT: tl.constexpr, VIEWS: tl.constexpr, D: tl.constexpr,
             D_T: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
             WIDTH: tl.constexpr):  # fmt: skip
    """Per row: log-sum-exp of the scores, and of the target's exponents; the scores' mean by the target.

    The five numbers a row carries: the largest score and the sum of exponentials less that, the same two of
    the target, and the sum of scores by the target's.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    view = tl.program_id(1)
    some_rows = rows < nx
    samples = rows + x_start
    top = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    target_top = tl.full((ROWS,), LOWEST, tl.float32)
    target_total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS,), tl.float32)
    blocks = tl.cdiv(ny, COLUMNS)
    # With a target all views of a block of columns are taken in turn, for they share its similarity.
    for block in range(blocks * views):
        columns = (block % blocks) * COLUMNS + tl.arange(0, COLUMNS)
        some_columns = columns < ny
        others = columns + y_start
        if TARGET != 0:
            g = scale * _similarity(features, same, table, samples, some_rows, others, some_columns, size,
                                    TARGET, D_T, PRECISION, ROWS, COLUMNS, WIDTH)  # fmt: skip
        for inner in range(VIEWS):
            w = block // blocks + inner
            s = _products(x + view.to(tl.int64) * nx * D, rows, some_rows, y + w.to(tl.int64) * ny * D,
                          columns, some_columns, D, PRECISION, ROWS, COLUMNS, WIDTH)  # fmt: skip
            kept = _kept(samples, some_rows, view, others, some_columns, w, LEFT_OUT)
            if TARGET != 0:
                h = tl.where(kept, g, float("-inf"))
                higher = tl.maximum(target_top, tl.max(h, 1))
                weight = tl.exp(h - higher[:, None])
                shrink = tl.exp(target_top - higher)
                target_total = target_total * shrink + tl.sum(weight, 1)
                weighted = weighted * shrink + tl.sum(weight * s, 1)
                target_top = higher
            s = tl.where(kept, s, float("-inf"))
            higher = tl.maximum(top, tl.max(s, 1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(s - higher[:, None]), 1)
            top = higher
    at = view * nx + rows
    tl.store(lse + at, top + tl.log(total), mask=some_rows)
    if TARGET != 0:
        tl.store(target_lse + at, target_top + tl.log(target_total), mask=some_rows)
        tl.store(aimed + at, weighted / target_total, mask=some_rows)


@triton.jit
def _share(s, kept, g, lse, target_lse, TARGET: tl.constexpr):
    """p, or p - y with a target; all four broadcast to a tile."""
    p = tl.exp(tl.where(kept, s - lse, float("-inf")))
    if TARGET != 0:
        p -= tl.exp(tl.where(kept, g - target_lse, float("-inf")))
    return p


@triton.jit
def _backward(x, y, out, x_lse, x_target_lse, x_grad, y_lse, y_target_lse, y_grad, features, same, table,
              size, scale, nx, ny, x_start, y_start, views, X_ANCHORS: tl.constexpr, Y_ANCHORS: tl.constexpr,
              TARGET: tl.constexpr, LEFT_OUT: tl.constexpr, VIEWS: tl.constexpr, D: tl.constexpr,
              D_T: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
              WIDTH: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """OUT numbers of the gradient to x of the losses of the anchors: the rows x, the columns y, or both."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    view = tl.program_id(1)
    some_rows = rows < nx
    samples = rows + x_start
    part = tl.program_id(2) * OUT + tl.arange(0, OUT)
    some_part = part < D
    sums = tl.zeros((ROWS, OUT), tl.float32)
    at = view * nx + rows
    if X_ANCHORS:
        own_grad = tl.load(x_grad + at, mask=some_rows, other=0.0)[:, None]
        own_lse = tl.load(x_lse + at, mask=some_rows, other=0.0)[:, None]
        own_target_lse = own_lse
        if TARGET != 0:
            own_target_lse = tl.load(x_target_lse + at, mask=some_rows, other=0.0)[:, None]
    blocks = tl.cdiv(ny, COLUMNS)
    for block in range(blocks * views):
        columns = (block % blocks) * COLUMNS + tl.arange(0, COLUMNS)
        some_columns = columns < ny
        others = columns + y_start
        g = tl.zeros((ROWS, COLUMNS), tl.float32)
        if TARGET != 0:
            g = scale * _similarity(features, same, table, samples, some_rows, others, some_columns, size,
                                    TARGET, D_T, PRECISION, ROWS, COLUMNS, WIDTH)  # fmt: skip
        for inner in range(VIEWS):
            w = block // blocks + inner
            candidates = y + w.to(tl.int64) * ny * D
            s = _products(x + view.to(tl.int64) * nx * D, rows, some_rows, candidates, columns, some_columns,
                          D, PRECISION, ROWS, COLUMNS, WIDTH)  # fmt: skip
            kept = _kept(samples, some_rows, view, others, some_columns, w, LEFT_OUT)
            a = tl.zeros((ROWS, COLUMNS), tl.float32)
            if X_ANCHORS:
                a += own_grad * _share(s, kept, g, own_lse, own_target_lse, TARGET)
            if Y_ANCHORS:
                there = w * ny + columns
                grad = tl.load(y_grad + there, mask=some_columns, other=0.0)[None, :]
                lse = tl.load(y_lse + there, mask=some_columns, other=0.0)[None, :]
                target_lse = lse
                if TARGET != 0:
                    target_lse = tl.load(y_target_lse + there, mask=some_columns, other=0.0)[None, :]
                a += grad * _share(s, kept, g, lse, target_lse, TARGET)
            place = columns.to(tl.int64)[:, None] * D + part[None, :]
            vectors = tl.load(candidates + place, mask=some_columns[:, None] & some_part[None, :], other=0.0)
            sums = tl.dot(a, vectors, sums, input_precision=PRECISION)
    place = (view.to(tl.int64) * nx + rows.to(tl.int64))[:, None] * D + part[None, :]
    tl.store(out + place, sums, mask=some_rows[:, None] & some_part[None, :])


@dataclass(frozen=True)
class Blocks:
    """Sizes of blocks, powers of 2 from 16: rows, columns, and the widths of a product and of a gradient.

    >>> Blocks.for_gradient(100)
    Blocks(rows=64, columns=64, width=64, out=128, warps=8, stages=2)
    """

    rows: int = 64
    columns: int = 64
    width: int = 64
    out: int = 128
    warps: int = 8
    stages: int = 2

    @classmethod
    def for_sums(cls, d: int) -> Blocks:
        return cls(width=_power(d, 64))

    @classmethod
    def for_gradient(cls, d: int) -> Blocks:
        # A wider part costs registers, a narrower one computes the scores more often.
        out = _power(d, 256)
        return cls(columns=32 if out > 128 else 64, width=_power(d, 64), out=out)


def _power(d: int, most: int) -> int:
    return min(most, max(16, 1 << (d - 1).bit_length()))


@dataclass(frozen=True)
class Target:
    """The target as a kernel takes it: `Features`, the factor 1 / tau_s."""

    features: Features
    scale: float

    def arguments(self) -> dict[str, Any]:
        given, f = {"same": self.features.row, "scale": self.scale}, self.features
        if isinstance(f, ClassTable):
            return given | {
                "features": f.labels,
                "table": f.table,
                "size": len(f.table),
                "TARGET": TABLE,
                "D_T": 1,
            }
        d_t = f.vectors.shape[1]
        return given | {"features": f.vectors, "table": f.vectors, "size": 0, "TARGET": COSINES, "D_T": d_t}


@dataclass(frozen=True)
class Side:
    """Vectors `(V, n, d)`, the first one's sample, and of anchors what their sums were, `(V, n)`."""

    vectors: Tensor
    start: int
    lse: Tensor | None = None
    target_lse: Tensor | None = None
    grad: Tensor | None = None


def sums(
    x: Side, y: Side, without: str | None, target: Target | None, blocks: Blocks | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row of x among all of y, `(V, n)`: log-sum-exp, the target's, the mean score by the target.

    The last two mean something where there is a target.
    """
    views, n, d = x.vectors.shape
    blocks = blocks or Blocks.for_sums(d)
    lse = x.vectors.new_empty(views, n)
    target_lse, aimed = (torch.empty_like(lse), torch.empty_like(lse)) if target else (lse, lse)
    grid = (triton.cdiv(n, blocks.rows), views)
    with torch.cuda.device_of(lse):
        _forward[grid](
            x.vectors, y.vectors, lse, target_lse, aimed,
            **_common(x, y, without, target, blocks),
        )  # fmt: skip
    return lse, target_lse, aimed


def gradient(
    x: Side, y: Side, without: str | None, target: Target | None, blocks: Blocks | None = None
) -> Tensor:
    """The gradient to x `(V, n, d)` of the sums of those sides that are anchors, from those sums' own."""
    views, n, d = x.vectors.shape
    blocks = blocks or Blocks.for_gradient(d)
    out = torch.empty_like(x.vectors)
    grid = (triton.cdiv(n, blocks.rows), views, triton.cdiv(d, blocks.out))
    # A side that is no anchor has no sums: its place is filled, and never read.
    of_sides = [out if t is None else t for s in (x, y) for t in (s.lse, s.target_lse, s.grad)]
    with torch.cuda.device_of(out):
        _backward[grid](
            x.vectors, y.vectors, out, *of_sides,
            X_ANCHORS=x.grad is not None, Y_ANCHORS=y.grad is not None, OUT=blocks.out,
            **_common(x, y, without, target, blocks),
        )  # fmt: skip
    return out


def _common(x: Side, y: Side, without: str | None, target: Target | None, blocks: Blocks) -> dict[str, Any]:
    views = len(y.vectors)
    of_target = {"features": x.vectors, "same": x.vectors, "table": x.vectors, "size": 0, "scale": 0.0,
                 "TARGET": NO_TARGET, "D_T": 1}  # fmt: skip
    return {
        **(target.arguments() if target else of_target),
        "nx": x.vectors.shape[1],
        "ny": y.vectors.shape[1],
        "x_start": x.start,
        "y_start": y.start,
        "views": 1 if target else views,
        "VIEWS": views if target else 1,
        "LEFT_OUT": WITHOUT[without],
        "D": x.vectors.shape[2],
        "PRECISION": PRECISIONS[torch.get_float32_matmul_precision()],
        "ROWS": blocks.rows,
        "COLUMNS": blocks.columns,
        "WIDTH": blocks.width,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
