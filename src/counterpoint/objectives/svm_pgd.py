r"""Projected gradient for the machines of all anchors at once: one product of matrices a step.

    alpha <- clip(beta - step * ((Delta + ridge I) beta - 2)),    beta = alpha + weight * (alpha - last alpha)

The weight is Nesterov's, (t_k - 1) / t_{k+1}, and begins anew for an anchor whose objective rises; without
momentum it is 0.

The step of an anchor is 1 over an estimate of its largest eigenvalue, by power iteration. Where the objective
rises after a plain step, the estimate was too low: the step is halved. It starts from the clipped inverse,
scaled to the best multiple, and stops when every anchor meets its optimality conditions to `tol`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoint.objectives.svm import Duals, Inverse, Machines

POWER_STEPS = 6
SAFETY = 1.05
LOOK_EVERY = 5
"""Steps between two looks at the conditions: a look costs as much as a fifth of a step."""

RELEASED_STEP, RELEASED_CHANGE, RELEASED_STEPS = 1e-3, 0.01, 1000


def clipped_inverse(machines: Machines) -> Tensor:
    """clip(2 (Delta + ridge I)^-1 1) of every anchor, `(r, m)`: the released "inv" solver.

    Not the optimum: of the unconstrained problem the negative part is cut off.
    """
    return Inverse(machines).ones().clamp_(0, machines.upper)


def projected_gradient(
    machines: Machines, tol: float, most: int, momentum: bool = True, start: Tensor | None = None
) -> Duals:
    """Duals `(r, m)` by projected gradient from `start`, or from 0.

    tol: the largest distance from optimality (`Machines.kkt`) at which it stops. most: the most steps.
    """
    alpha = torch.zeros_like(machines.columns) if start is None else start
    product = machines.times(alpha)
    if start is not None:
        # The best multiple of the start: the clipped inverse has the right shape but is far too large.
        curve = torch.linalg.vecdot(alpha, product)
        best = torch.where(curve > 0, 2 * alpha.sum(1) / curve.clamp_min(torch.finfo(alpha.dtype).tiny), 1)
        if machines.C is not None:
            best = best.minimum(machines.C / alpha.amax(1).clamp_min(torch.finfo(alpha.dtype).tiny))
        alpha, product = alpha * best[:, None], product * best[:, None]
    step = 1 / (SAFETY * _largest_eigenvalue(machines))
    value = machines.value(alpha, product)
    t = torch.ones_like(step)
    ahead, ahead_product = alpha, product
    iterations = 0
    for iterations in range(1, most + 1):
        new = machines.clear_own((ahead - step[:, None] * (ahead_product - 2)).clamp_(0, machines.upper))
        new_product = machines.times(new)
        new_value = machines.value(new, new_product)
        rose = new_value > value + 1e-6 * value.abs()
        # A rise with momentum costs the momentum, one without it the length of the step.
        step = torch.where(rose & (t == 1), step / 2, step)
        if bool(rose.any()):
            new = torch.where(rose[:, None], alpha, new)
            new_product = torch.where(rose[:, None], product, new_product)
            new_value = torch.where(rose, value, new_value)
        if momentum:
            next_t = (1 + (1 + 4 * t * t).sqrt()) / 2
            weight = torch.where(rose, 0, (t - 1) / next_t)
            t = torch.where(rose, 1, next_t)
            ahead = torch.lerp(alpha, new, 1 + weight[:, None])
            ahead_product = torch.lerp(product, new_product, 1 + weight[:, None])
        else:
            ahead, ahead_product = new, new_product
        alpha, product, value = new, new_product, new_value
        if iterations % LOOK_EVERY == 0 and float(machines.kkt(alpha, product).max()) <= tol:
            break
    return Duals(alpha, iterations)


def _largest_eigenvalue(machines: Machines) -> Tensor:
    """An estimate of the largest eigenvalue of Delta + ridge I of every anchor, `(r,)`, from below."""
    # The largest eigenvector of Delta has entries of one sign, mostly: all the machines pull the same way.
    vector = machines.clear_own(torch.ones_like(machines.columns))
    for _ in range(POWER_STEPS):
        vector = machines.times(torch.nn.functional.normalize(vector, dim=1))
    length: Tensor = torch.linalg.vector_norm(vector, dim=1)
    return length.clamp_min(torch.finfo(vector.dtype).tiny)


def released_gradient(machines: Machines) -> Duals:
    """As the released code has it: step 1e-3, random start, and a stop on the relative change of alpha.

    The change is mean |alpha - last| / (last + 1e-7) < 0.01, after at most 1000 steps; one entry that leaves
    0 keeps it large. The momentum starts from a random number. Uses torch's global generator.
    """
    alpha = machines.clear_own(torch.randn_like(machines.columns).relu_().clamp_(0, machines.upper))
    ahead = alpha
    a = float(torch.rand(())) * (1 - 1e-8) + 1e-8
    for iterations in range(1, RELEASED_STEPS + 1):  # noqa: B007
        gradient = machines.times(ahead) - 2
        new = machines.clear_own((ahead - RELEASED_STEP * gradient).clamp_(0, machines.upper))
        a_next = ((a**4 + 4 * a * a) ** 0.5 - a * a) / 2
        ahead = torch.lerp(alpha, new, 1 + a * (1 - a) / (a * a + a_next))
        change = ((new - alpha).abs() / (alpha + 1e-7)).sum() / (alpha.numel() - machines.own.numel())
        alpha, a = new, a_next
        if float(change) < RELEASED_CHANGE:
            break
    return Duals(alpha, iterations)
