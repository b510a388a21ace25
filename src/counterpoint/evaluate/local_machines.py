r"""Support vector machines of anchors that each have a few negatives of their own.

    min over alpha >= 0  of  1/2 alpha' (Delta + ridge I) alpha - 2 * 1' alpha
    Delta = K_aa 11' - 1 k' - k 1' + K

is the dual of `objectives.svm` without its bound C, for rbf: K(x, y) = exp(-|x - y|^2 / sigma) of unit
vectors. There all anchors of a batch share one Gram matrix; here each has candidates of its own, out of a set
that is far too large for one matrix. What an anchor gets depends on its candidates alone, not on how anchors
are put into batches.

Solved by the exchange method: for a guess of the support vectors the optimum over them is a linear system;
the points that break their condition change sides, all at once, or one at a time for an anchor whose breaches
stop shrinking. It ends at the exact optimum after some five rounds.

Source: Shah et al., "Max-margin contrastive learning", AAAI 2022; Judice and Pires, "A block principal
pivoting algorithm for large-scale strictly monotone linear complementarity problems", 1994.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoint.objectives.checks import positive

START = 8
"""Points that an anchor begins with: the first ones, as candidates come nearest first."""
ROUNDS, PATIENCE = 500, 5
GROUP = 1 << 22
"""Entries of the systems that are solved together."""


def local_duals(
    anchors: Tensor,
    points: Tensor,
    candidates: Tensor,
    sigma: float,
    ridge: float,
    known: Tensor | None = None,
) -> Tensor:
    """alpha `(r, m)` of each anchor over its own candidates, at the optimum.

    anchors: `(r, d)` and points `(n, d)`, unit vectors. candidates: `(r, m)` int64, rows of `points`, nearest
        first for the least work. known: `(r, m)` bool, which of the candidates count; the others get 0.
    sigma: the squared bandwidth, above 0. ridge: above 0, a price on the square of each alpha.

    1' alpha is 2 over the squared distance between the anchor and the nearest convex combination of its
    candidates in the kernel's space (a hull softened by the ridge).

    Raises ValueError for sigma and ridge that are not above 0, and for such as numbers of this precision
    cannot solve the systems with.

    >>> corners = torch.eye(3)
    >>> local_duals(corners[:1], corners, torch.tensor([[1, 2]]), sigma=2.0, ridge=0.1).round(decimals=2)
    tensor([[1., 1.]])
    """
    positive("sigma", sigma)
    positive("ridge", ridge)
    r, m = candidates.shape
    alpha = anchors.new_zeros(r, m)
    for rows in torch.split(torch.arange(r), max(1, GROUP // max(1, m * max(m, anchors.shape[1])))):
        system = _systems(anchors[rows], points[candidates[rows]], sigma, ridge)
        counts = torch.ones_like(candidates[rows], dtype=torch.bool) if known is None else known[rows]
        try:
            alpha[rows] = _optimum(system, counts)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            raise _unsolved(sigma, ridge) from None
    total = alpha.sum(1)
    some = torch.ones_like(total, dtype=torch.bool) if known is None else known.any(1)
    # The exact optimum has a weight above 0 wherever there is a candidate.
    if m and not (torch.isfinite(total) & (~some | (total > 0))).all():
        raise _unsolved(sigma, ridge)
    return alpha


def _unsolved(sigma: float, ridge: float) -> ValueError:
    return ValueError(
        f"with ridge {ridge:g} and sigma {sigma:g} the machines cannot be solved to rounding: "
        "take a ridge near 0.1, and a sigma near the median squared distance"
    )


def _systems(anchors: Tensor, points: Tensor, sigma: float, ridge: float) -> Tensor:
    """Delta + ridge I of every anchor, `(r, m, m)`; points `(r, m, d)`.

    With L = K - 1 (expm1 of -|x - y|^2 / sigma), Delta is L - 1 l' - l 1': small distances keep their digits,
    which the ones of K would swallow.
    """
    gram = _less_one(points @ points.transpose(1, 2), sigma)
    k = _less_one(torch.einsum("rmd,rd->rm", points, anchors), sigma)
    gram.sub_(k[:, :, None]).sub_(k[:, None, :])
    gram.diagonal(dim1=1, dim2=2).add_(ridge)
    return gram


def _less_one(cosine: Tensor, sigma: float) -> Tensor:
    # Rounding must not put a point nearer than itself.
    return cosine.sub_(1).clamp_max_(0).mul_(2 / sigma).expm1_()


def _optimum(system: Tensor, known: Tensor) -> Tensor:
    r, m, _ = system.shape
    alpha = system.new_zeros(r, m)
    free = known & (torch.arange(m, device=known.device) < START)
    live = torch.arange(r, device=known.device)
    fewest = torch.full_like(live, m + 1)
    patience = torch.full_like(live, PATIENCE)
    noise = 8 * torch.finfo(system.dtype).eps
    for _ in range(ROUNDS):
        q, f = system[live], free[live]
        solved = _over_free(q, f)
        pull = torch.einsum("rij,rj->ri", q, solved) - 2
        level = noise * (2 + solved.abs().sum(1, keepdim=True))
        breaches = torch.where(f, solved < 0, known[live] & (pull < -level))
        count = breaches.sum(1)
        alpha[live] = solved.clamp_min(0)
        better = count < fewest[live]
        fewest[live] = torch.where(better, count, fewest[live])
        patience[live] = torch.where(better, PATIENCE, patience[live] - 1)
        # Moving the last breach alone cannot cycle (Murty's rule).
        last = m - 1 - breaches.flip(1).to(torch.uint8).argmax(1)
        one = torch.zeros_like(breaches).scatter_(1, last[:, None], True)
        free[live] = f ^ (breaches & (one | (patience[live] >= 0)[:, None]))
        live = live[count > 0]
        if not len(live):
            break
    return alpha


def _over_free(system: Tensor, free: Tensor) -> Tensor:
    """The solution over the free points, 0 at the others, `(r, m)`."""
    # The free points first, so that the part of the systems that is solved is as small as can be.
    order = free.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[
        :, : max(1, int(free.sum(1).max()))
    ]
    f = free.gather(1, order)
    part = system.gather(1, order[:, :, None].expand(-1, -1, system.shape[2]))
    part = part.gather(2, order[:, None, :].expand(-1, order.shape[1], -1))
    part = torch.where(f[:, :, None] & f[:, None, :], part, 0)
    part.diagonal(dim1=1, dim2=2).add_(~f)
    factor = torch.linalg.cholesky(part)
    found = torch.cholesky_solve(2 * f[:, :, None].to(part.dtype), factor).squeeze(2)
    return torch.zeros_like(system[:, 0]).scatter_(1, order, found * f)
