r"""The support vector machine behind an anchor, for all anchors at once.

One anchor against its negatives: a machine whose positive class is the anchor alone. With the equality
constraint eliminated, its dual over the negatives is a box-constrained quadratic program,

    min over 0 <= alpha <= C   1/2 alpha' (Delta + ridge I) alpha - 2 * 1' alpha
    Delta = K_aa 11' - 1 k' - k 1' + K,     k = K[:, a],

and the anchor's own weight is alpha_x = 1' alpha. All anchors share one Gram matrix K of the m points; an
anchor's problem leaves out the points of its own sample (`own`). Row i of every `(r, m)` matrix belongs to
anchor i, and is 0 at those points. No tensor has more than r * m or m * m entries.

Source: Shah et al., "Max-margin contrastive learning", AAAI 2022, proposition 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Machines:
    """The problems of r anchors over m points.

    gram: `(m, m)`, the kernel of the points with each other, symmetric.
    own: `(r, 1)` or `(r, 2)` int64: the anchor, and with it the other view of its sample if that is a point.
    C: the upper bound of the box, None for none. ridge: what is added to the diagonal of Delta, from 0.
    semidefinite: whether Delta is known to have no negative eigenvalue, as that of a proper kernel has none.
    """

    gram: Tensor
    own: Tensor
    C: float | None
    ridge: float
    semidefinite: bool = True

    @property
    def upper(self) -> float:
        """C as a number."""
        return math.inf if self.C is None else self.C

    @cached_property
    def in_order(self) -> bool:
        """Whether the anchors are the points, one after the other: rows of `gram` then need no copy."""
        points = torch.arange(len(self.gram), device=self.own.device)
        return self.own.shape == (len(self.gram), 1) and torch.equal(self.own[:, 0], points)

    @cached_property
    def columns(self) -> Tensor:
        """`(r, m)`: the kernel of each anchor with all points."""
        return self.gram if self.in_order else self.gram[self.own[:, 0]]

    @cached_property
    def self_kernel(self) -> Tensor:
        """`(r,)`: K_aa."""
        return self.gram.diagonal()[self.own[:, 0]]

    def clear_own(self, rows: Tensor, value: float = 0.0) -> Tensor:
        """Set the entries of an anchor's own points, in place."""
        return rows.scatter_(1, self.own, value)

    def times(self, alpha: Tensor, out: Tensor | None = None) -> Tensor:
        """(Delta + ridge I) alpha of every anchor, `(r, m)`: one product of matrices. 0 at the own points."""
        product = torch.mm(alpha, self.gram, out=out)
        total = alpha.sum(1)
        shift = self.self_kernel * total - torch.linalg.vecdot(alpha, self.columns)
        product.add_(alpha, alpha=self.ridge).addcmul_(self.columns, total[:, None], value=-1)
        return self.clear_own(product.add_(shift[:, None]))

    def part(self, rows: Tensor) -> Machines:
        """The problems of some of the anchors."""
        return replace(self, own=self.own[rows])

    def value(self, alpha: Tensor, product: Tensor) -> Tensor:
        """The dual objective of every anchor, `(r,)`; product: `times(alpha)`."""
        value: Tensor = torch.linalg.vecdot(alpha, product) / 2 - 2 * alpha.sum(1)
        return value

    def kkt(self, alpha: Tensor, product: Tensor) -> Tensor:
        """How far each anchor is from optimality, `(r,)`: the largest |alpha - clip(alpha - gradient)|.

        In units of its largest alpha where that is above 1. 0 exactly at the optimum: the gradient is 0
        inside the box, not negative at 0, not positive at C.
        """
        step = self.clear_own((alpha - product + 2).clamp_(0, self.upper))
        distance: Tensor = step.sub_(alpha).abs_().amax(1)
        return distance / alpha.amax(1).clamp_min(1)

    def gap(self, alpha: Tensor, product: Tensor) -> Tensor:
        """A bound on (value - optimum) / |optimum| of every anchor, `(r,)`; alpha in the box, Delta PSD.

        Lower bounds on the optimum are taken, the highest one counts. The problem is ridge-strongly convex,
        so that its optimum is at least the minimum of a separable quadratic, known in closed form. And for
        any s >= 0 the dual of the box problem at s * alpha is a lower bound: with s = 1 it is the plain
        duality gap, and s that scales the least product to 2 serves where C is large or none.
        """
        value = self.value(alpha, product)
        curve = value + 2 * alpha.sum(1)
        tiny = torch.finfo(alpha.dtype).tiny
        least = self.clear_own(product.clone(), math.inf).amin(1)
        s = 2 / least.clamp_min(tiny)
        # With C the products may stay below 2, at a price; s = 1 is then the plain duality gap.
        scaled = -(s.square() * curve)
        # Where the squares leave the range of numbers nothing is known.
        bound = scaled.masked_fill((least <= 0) | scaled.isnan(), -math.inf)
        if self.C is not None:
            short = self.clear_own((2 - product).clamp_min_(0)).sum(1)
            bound = torch.maximum(bound, -curve - self.C * short)
        if self.ridge > 0:
            gradient = product - 2
            step = self.clear_own((alpha - gradient / self.ridge).clamp_(0, self.upper).sub_(alpha))
            drop = torch.linalg.vecdot(gradient, step) + self.ridge / 2 * step.square().sum(1)
            bound = torch.maximum(bound, value + drop)
        # How far the optimum lies below 0 is at most |bound|; where `value` is above 0 that is too much to
        # divide by, and the value of the best multiple of alpha is not.
        size = torch.where(value > 0, alpha.sum(1).square() / curve.clamp_min(tiny), bound.abs())
        gap = ((value - bound) / size.clamp_min(tiny)).clamp_min_(0)
        return gap.masked_fill_(bound.isinf(), math.inf)


@dataclass(frozen=True)
class Duals:
    """What a solver found.

    alpha: `(r, m)`, in the box, 0 at the own points. iterations: how many steps it took.
    """

    alpha: Tensor
    iterations: int


class Inverse:
    """(Delta + (ridge + rho) I)^-1 of every anchor from one Cholesky of the shared Gram matrix.

    P = (K + shift I)^-1. Leaving out an anchor's own points subtracts rows of P from a solution, and Delta
    differs from K there by a matrix of rank 2, [1 k] S [1 k]' with S = [[K_aa, -1], [-1, 0]]. So each anchor
    costs a 2 x 2 system beside the row of a product with P.
    """

    def __init__(self, machines: Machines, rho: float = 0.0) -> None:
        shift = machines.ridge + rho
        self.machines = machines
        shifted = machines.gram.clone()
        shifted.diagonal().add_(shift)
        self.p = _inverse(shifted, machines)
        own, sums = machines.own, self.p.sum(1)
        self.sums, self.own_sums = sums, sums[own]
        # The rows of P at an anchor's own points; a view where the anchors are the points, in order.
        self.own_rows = self.p[:, None] if machines.in_order else self.p[own]
        block = self.own_rows.gather(2, own[:, None].expand(-1, own.shape[1], -1))
        self.block = _small_inverse(block)
        # v1 = sums - e . own_rows solves for 1, vk = -h . own_rows (own points cleared) for k.
        self.e = (self.block @ self.own_sums[:, :, None]).squeeze(2)
        self.h = self.block[:, :, 0]
        one_v1 = sums.sum() - (self.e * self.own_sums).sum(1)
        one_vk = 1 - (self.h * self.own_sums).sum(1)
        k_vk = machines.self_kernel + shift - self.h[:, 0]
        self.t11, self.t12, self.t22 = one_v1, one_vk - 1, k_vk - machines.self_kernel
        self.det = self.t11 * self.t22 - self.t12 * self.t12

    def ones(self) -> Tensor:
        """The solution for the right-hand side 2 * 1 of every anchor, `(r, m)`; no product of matrices."""
        c1, c2 = 2 * self.t12 / self.det, -2 * self.t11 / self.det
        rows = c1[:, None] * self.sums
        self._add_own(rows, -c1[:, None] * self.e - c2[:, None] * self.h)
        return self.machines.clear_own(rows)

    def solve(self, right: Tensor, out: Tensor) -> Tensor:
        """The solution for the rows of `right` `(r, m)`, 0 at the own points, into `out`."""
        rows = torch.mm(right, self.p, out=out)
        at_own = rows.gather(1, self.machines.own)
        s = (self.block @ at_own[:, :, None]).squeeze(2)
        one_y = right @ self.sums - (s * self.own_sums).sum(1)
        k_y = -(self.h * at_own).sum(1)
        c1 = (self.t22 * one_y - self.t12 * k_y) / self.det
        c2 = (self.t11 * k_y - self.t12 * one_y) / self.det
        rows.addcmul_(self.sums[None], c1[:, None], value=-1)
        self._add_own(rows, -s + c1[:, None] * self.e + c2[:, None] * self.h)
        return self.machines.clear_own(rows)

    def _add_own(self, rows: Tensor, weights: Tensor) -> None:
        for k in range(weights.shape[1]):
            rows.addcmul_(self.own_rows[:, k], weights[:, k, None])


def _small_inverse(block: Tensor) -> Tensor:
    """The inverse of `(r, 1, 1)` or `(r, 2, 2)` symmetric matrices, without a call of LAPACK for each."""
    if block.shape[-1] == 1:
        return block.reciprocal()
    a, b, c = block[:, 0, 0], block[:, 0, 1], block[:, 1, 1]
    adjugate = torch.stack([c, -b, -b, a], dim=1).view(-1, 2, 2)
    return adjugate / (a * c - b * b)[:, None, None]


def _inverse(shifted: Tensor, machines: Machines) -> Tensor:
    """The inverse of K + shift I, which it may overwrite."""
    if machines.semidefinite:
        factor, info = torch.linalg.cholesky_ex(shifted)
        # A matrix that is singular but for rounding passes, and its solutions would be rounding too.
        pivots = factor.diagonal().square()
        smallest = len(pivots) * torch.finfo(pivots.dtype).eps * shifted.diagonal().max()
        if not int(info) and bool(pivots.min() > smallest):
            return torch.cholesky_inverse(factor)
    else:
        inverse, info = torch.linalg.inv_ex(shifted)
        if not int(info) and bool(torch.isfinite(inverse).all()):
            result: Tensor = inverse
            return result
    raise ValueError(
        f"the Gram matrix plus ridge={machines.ridge} is not positive definite. Where samples repeat, give a "
        "larger ridge (0.1 is the released value). A kernel of your own that is not positive semidefinite "
        "needs an attribute semidefinite = False, a finite C and solver='pgd'"
    )
