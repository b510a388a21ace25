"""Slow twin of MMCL: one machine at a time, its Delta entry by entry in float64, its optimum by scipy.

A machine is given by the matrix Q = Delta + ridge I of its negatives. `box_optimum` and `clipped_inverse`
find its weights, `mmcl` writes the loss with a loop over anchors and one over negatives.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations, permutations

import numpy as np
import torch
from scipy.optimize import lsq_linear, nnls
from torch import Tensor

SlowKernel = Callable[[Tensor, Tensor, float], Tensor]


def distance(x: Tensor, y: Tensor) -> Tensor:
    """With a gradient of 0 where the points coincide."""
    square = (x - y).square().sum()
    return square.sqrt() if float(square.detach()) > 0 else square


SLOW_KERNELS: dict[str, SlowKernel] = {
    "linear": lambda x, y, sigma: x.dot(y),
    "rbf": lambda x, y, sigma: torch.exp(-(x - y).square().sum() / sigma),
    "laplace": lambda x, y, sigma: torch.exp(-distance(x, y) / sigma),
    "poly": lambda x, y, sigma: (x.dot(y) + 0.5) ** 3,
    "tanh": lambda x, y, sigma: torch.tanh(x.dot(y)),
    "min": lambda x, y, sigma: sum(
        (torch.minimum(a, b) for a, b in zip(x.relu(), y.relu(), strict=True)), x.new_zeros(())
    ),
}


def unit(z: Tensor) -> list[Tensor]:
    return [row / row.norm() if float(row.detach().norm()) > 0 else row * 0 for row in z]


def gram(points: Sequence[Tensor], kernel: SlowKernel, sigma: float = 10.0) -> np.ndarray:
    with torch.no_grad():
        return np.array([[float(kernel(x, y, sigma)) for y in points] for x in points], dtype=np.float64)


def machine(k: np.ndarray, anchor: int, negatives: Sequence[int], ridge: float) -> np.ndarray:
    """Q of one anchor: <phi_a - phi_i, phi_a - phi_j>, and the ridge on the diagonal."""
    k, a = k.tolist(), anchor
    return np.array(
        [[k[a][a] - k[a][i] - k[a][j] + k[i][j] + ridge * (i == j) for j in negatives] for i in negatives]
    )


def value(q: np.ndarray, alpha: np.ndarray) -> float:
    """The dual objective."""
    return float(alpha @ q @ alpha / 2 - 2 * alpha.sum())


def breach(q: np.ndarray, alpha: np.ndarray, C: float | None) -> float:
    """How far alpha is from the optimality conditions; 0 only at an optimum, as the problem is convex."""
    worst, upper = 0.0, math.inf if C is None else C
    for a, g in zip(alpha, q @ alpha - 2, strict=True):
        worst = max(worst, -a, a - upper, min(g, a) if g > 0 else min(-g, upper - a))
    return worst


def box_optimum(q: np.ndarray, C: float | None) -> np.ndarray:
    """argmin 1/2 a'Qa - 2 * 1'a over 0 <= a <= C. With a finite C, Q must have a Cholesky factor."""
    if C is not None:
        factor = np.linalg.cholesky(q).T
        target = np.linalg.solve(factor.T, np.full(len(q), 2.0))
        return lsq_linear(factor, target, bounds=(0, C), method="bvls", tol=1e-15).x
    # The nearest point of the simplex spanned by the columns of a root of Q, by non-negative least squares
    # with a row of ones; the optimum is a multiple of it. Q may be singular.
    values, vectors = np.linalg.eigh(q)
    root = np.sqrt(values.clip(0))[:, None] * vectors.T
    scale = math.sqrt(np.trace(q) / len(q)) or 1.0
    x = nnls(np.vstack([root / scale, np.ones(len(q))]), np.append(np.zeros(len(q)), 1.0))[0]
    x /= x.sum()
    length = x @ q @ x
    if length <= 1e-12 * scale**2:
        raise ValueError("the machine has no optimum: its anchor is a mean of negatives")
    return 2 * x / length


def clipped_inverse(q: np.ndarray, C: float | None) -> np.ndarray:
    return np.linalg.solve(q, np.full(len(q), 2.0)).clip(0, math.inf if C is None else C)


SLOW_SOLVERS = {"exact": box_optimum, "inverse": clipped_inverse}


def weights(
    points: Sequence[Tensor],
    anchor: int,
    own: Sequence[int],
    kernel: SlowKernel,
    sigma: float,
    C: float | None,
    ridge: float,
    solver: str,
) -> list[float]:
    """alpha of one anchor over all points, 0 at its own."""
    k = gram(points, kernel, sigma)
    negatives = [j for j in range(len(points)) if j not in own]
    found = SLOW_SOLVERS[solver](machine(k, anchor, negatives, ridge), C)
    alpha = dict(zip(negatives, found, strict=True))
    return [float(alpha.get(j, 0.0)) for j in range(len(points))]


def mmcl(
    *views: Tensor,
    kernel: str | SlowKernel = "rbf",
    sigma: float = 10.0,
    C: float | None = None,
    ridge: float = 0.1,
    solver: str = "exact",
    symmetric: bool = False,
    negatives: str = "same_view",
    hinge_margin: float | None = None,
    frozen: dict[tuple[int, int, int], list[float]] | None = None,
) -> Tensor:
    """frozen: the weights of each (view, other view, anchor); found where it has none, and put there."""
    k = kernel if callable(kernel) else SLOW_KERNELS[kernel]
    z = [unit(view) for view in views]
    frozen = {} if frozen is None else frozen
    n, losses = len(views[0]), []
    pairs = permutations(range(len(z)), 2) if symmetric else combinations(range(len(z)), 2)
    for a, b in pairs:
        points = z[a] if negatives == "same_view" else z[a] + z[b]
        for t in range(n):
            if (a, b, t) not in frozen:
                frozen[a, b, t] = weights(points, t, (t, t + n), k, sigma, C, ridge, solver)
            alpha = frozen[a, b, t]
            query, loss = z[b][t], z[b][t].new_zeros(())
            for j, weight in enumerate(alpha):
                if j not in (t, t + n):
                    loss = loss + weight * (k(points[j], query, sigma) - k(z[a][t], query, sigma))
            losses.append(loss if hinge_margin is None else (hinge_margin + loss).relu())
    return sum(losses[1:], losses[0]) / len(losses)


def released_gradient(
    k: np.ndarray,
    starts: list[np.ndarray],
    momentum: float,
    ridge: float,
    C: float | None,
    step: float = 1e-3,
    change: float = 0.01,
    most: int = 1000,
) -> tuple[list[np.ndarray], int]:
    """The released code's Nesterov solver, an anchor at a time; the change is the mean over all of them.

    starts: the random start of each anchor over its n - 1 negatives. momentum: the random first one.
    """
    n, upper = len(k), math.inf if C is None else C
    systems = [machine(k, t, [j for j in range(n) if j != t], ridge) for t in range(n)]
    alphas = [start.copy() for start in starts]
    aheads = [start.copy() for start in starts]
    count, last = 0, math.inf
    while count < most and last >= change:
        count += 1
        next_momentum = 0.5 * (math.sqrt(momentum**4 + 4 * momentum**2) - momentum**2)
        beta = momentum * (1 - momentum) / (momentum**2 + next_momentum)
        momentum, changes = next_momentum, []
        for t in range(n):
            new = (aheads[t] - step * (systems[t] @ aheads[t]) + step * 2).clip(0, upper)
            aheads[t] = new + beta * (new - alphas[t])
            changes.append(np.abs((new - alphas[t]) / (alphas[t] + 1e-7)).mean())
            alphas[t] = new
        last = float(np.mean(changes))
    return alphas, count
