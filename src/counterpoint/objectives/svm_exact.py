r"""The optimum of the machines of all anchors, to a certified relative gap.

Few points are support vectors, 3 to 30 % of them, and they are found by solving small systems:

* *Exchange.* For a guess of which points are free (inside the box), the optimum over them is a linear system
  of their size. Points that break their condition then change sides: free ones outside the box leave, those
  at 0 that pull the most come in, a batch at a time, and the anchors concerned are solved again. The guess
  begins with the points nearest to the anchor. Five to eight rounds reach the optimum to rounding. An anchor
  whose breaches stop shrinking moves one point at a time, which cannot cycle.
* *Alternating directions* (ADMM), for the anchors whose systems grow large. One Cholesky of K + (ridge + rho)
  I serves all; each iteration is one product of matrices. It is at its best where most points are support
  vectors, and otherwise finds the set from which exchanging needs two or three rounds.

Sources: Judice and Pires, "A block principal pivoting algorithm for large-scale strictly monotone linear
complementarity problems", 1994; Boyd et al., "Distributed optimization and statistical learning via ADMM",
2011.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from counterpoint.objectives.svm import Duals, Inverse, Machines

NEAREST = 32
"""Points that an anchor begins with."""
BATCH, GROWTH = 16, 0.5
"""A round lets in at most so many points, or this share of the free ones if that is more."""
GROWING, ROUNDS, PATIENCE = 30, 60, 5
"""Rounds that let in a batch at a time, rounds in all, and rounds without progress before single points."""
GROUP = 1 << 19
"""Entries of the systems that are solved together: some megabytes, which a processor keeps near."""

BLOCK = 1 << 21
"""Entries, anchors times points, that a round treats at once."""

RHO = 1.0
"""Penalty of the ADMM, in units of the mean K(z, z)."""
RELAX = 1.6
FIRST, FURTHER = 15, 10
"""ADMM iterations before the first look at the gap, and between looks."""
TURN = 100
"""ADMM iterations after which exchange is tried in any case."""


def optimum(machines: Machines, tol: float, most: int) -> Duals:
    """Duals `(r, m)` with a relative gap of at most `tol` for every anchor, or the best that was reached.

    most: the largest number of ADMM iterations. Delta must be positive semidefinite.
    """
    alpha = torch.zeros(
        len(machines.own), len(machines.gram), dtype=machines.gram.dtype, device=machines.gram.device
    )
    free = torch.zeros_like(alpha, dtype=torch.bool)
    everyone = torch.arange(len(alpha), device=alpha.device)
    count = min(NEAREST, alpha.shape[1] - machines.own.shape[1])
    for rows in torch.split(everyone, _block(alpha)):
        k = machines.gram[machines.own[rows, 0]].scatter_(1, machines.own[rows], -math.inf)
        free[rows] = torch.zeros_like(k, dtype=torch.bool).scatter_(1, k.topk(count, dim=1).indices, True)
    search = Exchange(machines, alpha, free, tol)
    late = search.run(everyone, grow=True)
    iterations = search.rounds
    if len(late):
        del search, free
        found, more = _alternate(machines.part(late), tol, most)
        alpha[late] = found
        iterations += more
    return Duals(alpha, iterations)


def _alternate(machines: Machines, tol: float, most: int) -> tuple[Tensor, int]:
    """ADMM and exchange in turn: duals of every anchor, and the steps taken.

    One turn is the rule. Where Delta is singular but for a tiny ridge, and many points lie at C, exchanging
    may not come to an end; ADMM then goes on, for twice as long each time.
    """
    admm, rounds, further = Admm(machines), 0, TURN
    while True:
        alpha, free, left = admm.solve(tol, min(most, TURN))
        search = Exchange(machines, alpha.clone(), free, tol)
        unsolved = search.run(left, grow=False)
        rounds += search.rounds
        found = search.alpha
        found[unsolved] = alpha[unsolved]
        if len(unsolved) == 0:
            return found, admm.iterations + rounds
        if admm.iterations >= most:
            # The same words at every call, so that a training run says it once.
            warnings.warn(
                f"MMCL: duals are not solved to tol={tol:g} after {most} iterations: see gap in the log, "
                "raise ridge or lower C",
                stacklevel=2,
            )
            return found, admm.iterations + rounds
        del search, found
        admm.run(min(further, most - admm.iterations))
        further *= 2


def exchange_is_cheap(free: Tensor) -> bool:
    """Whether some rounds of exchange cost less than some 20 iterations of ADMM, counted in operations.

    Per anchor with s free points of m: a round gathers and factors an s x s system, an iteration is a row of
    a product of matrices. The weights were fitted to both on a CPU.
    """
    s, m = free.sum(1, dtype=torch.float32), free.shape[1]
    return float((s * s * (s + 150)).mean()) < 2 * m * (m + 300)


class Exchange:
    """Which points of an anchor are free, at 0 and at C; and their exchange until none breaks its condition.

    alpha: `(r, m)`, filled in, always in the box. free: `(r, m)` bool, the guess; points that are not free
        are at C where alpha is, else at 0.
    """

    def __init__(self, machines: Machines, alpha: Tensor, free: Tensor, tol: float) -> None:
        self.machines, self.alpha, self.free, self.tol = machines, alpha, free, tol
        self.at_c = alpha >= machines.upper
        self.free &= ~self.at_c
        self.fewest = torch.full((len(alpha),), alpha.shape[1] + 1, device=alpha.device)
        self.patience = torch.full_like(self.fewest, PATIENCE)
        self.rounds = 0

    def run(self, rows: Tensor, grow: bool) -> Tensor:
        """Solve the anchors `rows`; gives the ones that are not solved.

        grow: let in a batch of points a round, and leave an anchor when ADMM would be the quicker; otherwise
            every point that breaks its condition, to the end.
        """
        while len(rows) and self.rounds < (GROWING if grow else ROUNDS):
            if grow and not exchange_is_cheap(self.free[rows]):
                break
            blocks = torch.split(rows, _block(self.alpha))
            rows = torch.cat([block[self._round(block, grow)] for block in blocks])
            self.rounds += 1
        return rows

    def _round(self, rows: Tensor, grow: bool) -> Tensor:
        """Solve and exchange once; which of the rows have to go on, as a mask."""
        part, free, at_c = self.machines.part(rows), self.free[rows], self.at_c[rows]
        solved = _solve_free(part, free, at_c)
        product = part.times(solved)
        # Rounding: what a product of so large an alpha can be wrong by.
        noise = 8 * torch.finfo(solved.dtype).eps * (2 + solved.abs().sum(1, keepdim=True))
        pull = product - 2
        below, above = free & (solved < 0), free & (solved > self.machines.upper)
        enter = (pull < -noise) & ~free & ~at_c
        enter.scatter_(1, part.own, False)
        release = at_c & (pull > noise)
        breaches = below | above | enter | release
        count = breaches.sum(1)
        outside = (below | above).any(1)
        # Only a point in the box certifies anything; its gap may be small while some points still pull.
        done = (count == 0) | (~outside & (part.gap(solved, product) <= self.tol))
        self.alpha[rows] = solved.clamp_(0, self.machines.upper)
        if grow:
            enter = _strongest(pull, enter, max(BATCH, int(GROWTH * int(free.sum(1).max()))))
        self._move(rows, free, at_c, below, above, enter, release, count)
        return ~done

    def _move(
        self,
        rows: Tensor,
        free: Tensor,
        at_c: Tensor,
        below: Tensor,
        above: Tensor,
        enter: Tensor,
        release: Tensor,
        count: Tensor,
    ) -> None:
        better = count < self.fewest[rows]
        self.fewest[rows] = torch.where(better, count, self.fewest[rows])
        self.patience[rows] = torch.where(better, PATIENCE, self.patience[rows] - 1)
        moves = below | above | enter | release
        stuck = self.patience[rows] < 0
        if bool(stuck.any()):
            last = moves.shape[1] - 1 - moves.flip(1).to(torch.uint8).argmax(1)
            one = torch.zeros_like(moves).scatter_(1, last[:, None], True)
            moves &= one | ~stuck[:, None]
        self.free[rows] = (free & ~moves) | (moves & (enter | release))
        self.at_c[rows] = (at_c & ~moves) | (moves & above)


def _block(alpha: Tensor) -> int:
    """How many anchors to treat at once: a round makes some ten matrices of their size."""
    return max(1, BLOCK // alpha.shape[1])


def _strongest(pull: Tensor, among: Tensor, most: int) -> Tensor:
    """The `most` points of each row with the lowest pull, of those in `among`."""
    if most >= pull.shape[1]:
        return among
    lowest = pull.masked_fill(~among, math.inf).topk(most, dim=1, largest=False).indices
    return torch.zeros_like(among).scatter_(1, lowest, True).logical_and_(among)


def _solve_free(machines: Machines, free: Tensor, at_c: Tensor) -> Tensor:
    """The optimum of each anchor over its free points, the others at 0 or C, `(r, m)`.

    Anchors of like size are solved together, so that little is padded, and no more than `GROUP` entries at a
    time.
    """
    solved = torch.zeros(free.shape, dtype=machines.gram.dtype, device=free.device)
    right = None
    if machines.C is not None and bool(at_c.any()):
        solved[at_c] = machines.C
        right = 2 - machines.times(solved)
    counts, order = free.sum(1).sort(descending=True)
    sizes = counts.tolist()
    start = 0
    while start < len(sizes) and sizes[start] > 0:
        size = sizes[start]
        stop = min(len(sizes), start + max(1, GROUP // (size * size)))
        while stop - 1 > start and sizes[stop - 1] < 0.7 * size:
            stop -= 1
        _solve_group(machines, order[start:stop], free[order[start:stop]], size, right, solved)
        start = stop
    return solved


def _solve_group(
    machines: Machines, rows: Tensor, free: Tensor, size: int, right: Tensor | None, solved: Tensor
) -> None:
    """Fill in the free points of some anchors; size: the largest number of them."""
    which, point = free.nonzero(as_tuple=True)
    counts = free.sum(1)
    place = torch.arange(len(which), device=free.device) - (counts.cumsum(0) - counts)[which]
    points = torch.zeros(len(rows), size, dtype=torch.int64, device=free.device)
    points[which, place] = point
    real = torch.arange(size, device=free.device) < counts[:, None]
    k = machines.columns[rows[:, None], points]
    system = machines.gram[points[:, :, None], points[:, None, :]]
    system.sub_(k[:, :, None]).add_((machines.self_kernel[rows][:, None] - k)[:, None, :])
    if not bool(real.all()):
        system.masked_fill_(~(real[:, :, None] & real[:, None, :]), 0)
    # A ridge of 0 is raised to the rounding errors of the matrix: where points outnumber the directions of
    # the kernel's space, a direction without curvature must leave the box, and not be left out.
    least = 8 * size * torch.finfo(k.dtype).eps * machines.self_kernel.mean()
    ridge = least.clamp_min(machines.ridge).expand_as(k).masked_fill(~real, 1)
    system.diagonal(dim1=1, dim2=2).add_(ridge)
    b = torch.full_like(k, 2.0) if right is None else right[rows[:, None], points]
    b.masked_fill_(~real, 0)
    factor, info = torch.linalg.cholesky_ex(system)
    x = torch.cholesky_solve(b[:, :, None], factor).squeeze(2)
    bad = (info > 0) | ~torch.isfinite(x).all(1)
    if bool(bad.any()):
        # Repeated samples without a ridge: of the many solutions, the smallest.
        x[bad] = torch.linalg.lstsq(system[bad], b[bad][:, :, None], driver=_driver(x)).solution.squeeze(2)
    solved[rows[which], point] = x[which, place]


def _driver(x: Tensor) -> str:
    return "gelsd" if x.device.type == "cpu" else "gels"


class Admm:
    """Alternating directions for every anchor: a linear solve, a projection on the box, and their memory.

    One matrix `w` holds the state: its projection is the iterate in the box, what was cut off the multiplier.
    """

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        scale = float(machines.gram.diagonal().mean())
        self.rho = RHO * scale if scale > 0 else RHO
        self.inverse = Inverse(machines, self.rho)
        self.w = torch.zeros_like(machines.columns)
        self.iterations = 0

    def solve(self, tol: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """The iterate, its free points, and the anchors that are not there yet when exchanging is quicker."""
        while True:
            self.run(min(FURTHER if self.iterations else FIRST, max(1, most - self.iterations)))
            alpha = self.w.clamp(0, self.machines.upper)
            left = (self.machines.gap(alpha, self.machines.times(alpha)) > tol).nonzero().squeeze(1)
            free = (self.w > 0) & (self.w < self.machines.upper)
            if len(left) == 0 or self.iterations >= most or exchange_is_cheap(free[left]):
                return alpha, free, left

    def run(self, iterations: int) -> None:
        """Go on for so many iterations."""
        right, x, upper = torch.empty_like(self.w), torch.empty_like(self.w), self.machines.upper
        for _ in range(iterations):
            torch.clamp(self.w, 0, upper, out=right)
            right.mul_(2).sub_(self.w).mul_(self.rho).add_(2)
            self.inverse.solve(self.machines.clear_own(right), out=x)
            # w + RELAX * (x - alpha), with alpha made again in the memory of the right-hand side.
            torch.clamp(self.w, 0, upper, out=right)
            self.w.add_(x.sub_(right), alpha=RELAX)
        self.iterations += iterations
