r"""MMCL: a support vector machine tells each anchor from its negatives, and the query is to score high in it.

    w_t(q) = alpha_x K(z_t, q) - sum_j alpha_tj K(z_j, q),    alpha_x = sum_j alpha_tj
    L = mean_t -w_t(z'_t)

The anchor z_t and the negatives z_j, j != t, are of one view; the query z'_t is the anchor's sample in
another view. alpha_t solves the machine's dual (see `svm`) and is a constant: the gradient flows through the
kernel into both views. The loss is a difference of kernels and often negative. Attraction and repulsion weigh
the same, and the weight falls on the few negatives nearest to the anchor, its support vectors: of related
samples these are the related ones.

Solvers: "exact" is the optimum of the dual, to a certified relative gap. "pgd" is projected gradient, as in
the paper, stopped by its optimality conditions. "inverse" is the paper's least squares with the negative part
clipped: not an approximation of the optimum (its dual value is off by 5 to 500 times the optimum) but another
loss of the same name, with many more and far larger weights.

Limits: a collapsed batch gives 0, with a gradient of 0; samples that coincide have alpha = 2 / ridge. sigma
to infinity makes rbf linear. For C to 0 all alpha are C, and the loss is C * (n - 1) times a difference of
mean kernels.

Where the released code differs from the paper it is followed: negatives from one view (`negatives`), one
direction (`symmetric`), a ridge, no bound C, no hinge. Its K(z, z) = 1 for every kernel is not.

Paper: Shah, Sra, Chellappa, Cherian, "Max-margin contrastive learning", AAAI 2022, arXiv 2112.11450.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, permutations

import torch
from torch import Tensor

from counterpoint.objectives.base import Known, Log, Objective
from counterpoint.objectives.checks import check_views, not_negative, one_of, positive, truth
from counterpoint.objectives.first_order import once
from counterpoint.objectives.kernels import KERNELS, Kernel, semidefinite
from counterpoint.objectives.rows import unit_views
from counterpoint.objectives.svm import Duals, Machines
from counterpoint.objectives.svm_exact import optimum
from counterpoint.objectives.svm_pgd import clipped_inverse, projected_gradient, released_gradient

NEGATIVES = ("same_view", "both_views")
PGD_TOL, PGD_ITERATIONS = 1e-3, 100
EXACT_TOL = {torch.float32: 1e-4, torch.float64: 1e-8}
EXACT_ITERATIONS = 2000


def _exact(machines: Machines, tol: float | None, most: int | None) -> Duals:
    return optimum(machines, tol or EXACT_TOL[machines.gram.dtype], most or EXACT_ITERATIONS)


def _pgd(machines: Machines, tol: float | None, most: int | None, momentum: bool = True) -> Duals:
    start = clipped_inverse(machines) if machines.ridge > 0 and machines.semidefinite else None
    return projected_gradient(machines, tol or PGD_TOL, most or PGD_ITERATIONS, momentum, start)


SOLVERS: dict[str, Callable[[Machines, float | None, int | None], Duals]] = {
    "exact": _exact,
    "pgd": _pgd,
    "pgd_plain": lambda machines, tol, most: _pgd(machines, tol, most, momentum=False),
    "pgd_released": lambda machines, tol, most: released_gradient(machines),
    "inverse": lambda machines, tol, most: Duals(clipped_inverse(machines), 0),
}
"""Every solver by its name: machines, tolerance and most iterations to duals."""


class MMCL(Objective):
    """Max-margin contrastive learning of two or more views `(n, d)`.

    kernel: "rbf", "linear", "laplace", "poly", "tanh", "min", or a callable from `(r, d)` and `(m, d)` unit
        vectors to `(r, m)`, such as those of `kernels`; symmetric and positive semidefinite, unless it has an
        attribute `semidefinite` that is False.
    sigma: bandwidth of rbf, exp(-|x - y|^2 / sigma), and laplace, exp(-|x - y| / sigma).
    C: upper bound of the weights, above 0; None for none. A kernel that is not semidefinite needs it.
    ridge: added to the diagonal of the dual, from 0: a price on the square of each negative's slack.
    solver: "exact", "pgd" (with "pgd_plain", no momentum, and "pgd_released", the released code's rules and
        random start), or "inverse".
    symmetric: whether both views of a pair are anchors in turn, or only the first.
    negatives: "same_view", the n - 1 other samples in the anchor's view, or "both_views", all 2 (n - 1).
    hinge_margin: None for -w; a number t for [t - w]_+, which stops pulling once a query scores t.
    tol: the relative duality gap at which "exact" stops (1e-4, in float64 1e-8), or the distance from the
        optimality conditions at which "pgd" does (1e-3).
    max_iterations: of "pgd" (100), and of the part of "exact" that needs a bound (2000).

    With more than two views the mean is taken over all pairs of views. The log has, beside `loss` and
    `accuracy` (the share of queries nearest to their own anchor):

    at_zero, at_C, inside: shares of the weights at 0, at C, and between. support: the effective number of
        support vectors of an anchor, (sum alpha)^2 / sum alpha^2.
    margin: half the distance of the anchor from the weighted mean of its negatives in the kernel's space.
    iterations: of the solver. kkt: the largest distance from the optimality conditions of any anchor. gap:
        the largest relative duality gap, a bound; absent for a kernel that is not semidefinite.

    Raises ValueError on numbers out of range, on a single sample (it has no negatives), on embeddings or a
    kernel that are not finite, and on a singular Gram matrix where the solver needs its inverse.

    >>> z0 = torch.eye(3)
    >>> loss, log = MMCL(sigma=2.0).with_log(z0, z0)
    >>> loss, log["support"]
    (tensor(-1.2665), tensor(2.))
    """

    by_anchors = True
    largest = ("iterations", "kkt", "gap")

    def __init__(
        self,
        kernel: str | Kernel = "rbf",
        sigma: float = 10.0,
        C: float | None = None,
        ridge: float = 0.1,
        solver: str = "exact",
        symmetric: bool = False,
        negatives: str = "same_view",
        hinge_margin: float | None = None,
        tol: float | None = None,
        max_iterations: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel if callable(kernel) else one_of("kernel", kernel, KERNELS)
        self.sigma = positive("sigma", sigma)
        self.C = None if C is None else positive("C", C)
        self.ridge = not_negative("ridge", ridge)
        self.solver = one_of("solver", solver, SOLVERS)
        self.symmetric = truth("symmetric", symmetric)
        self.negatives = one_of("negatives", negatives, NEGATIVES)
        self.hinge_margin = None if hinge_margin is None else positive("hinge_margin", hinge_margin)
        self.tol = None if tol is None else positive("tol", tol)
        if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 1):
            raise ValueError(f"max_iterations must be a whole number from 1, got {max_iterations!r}")
        self.max_iterations = max_iterations
        if not semidefinite(self._kernel()) and (self.C is None or self.solver == "exact"):
            raise ValueError(
                f"kernel {self._kernel_name()} is not positive semidefinite: without a bound its dual has no "
                "least value, and none can be certified; give a finite C, such as C=1, and solver='pgd'"
            )

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        check_views("MMCL", views, fewest=2)
        with torch.autocast(views[0].device.type, enabled=False):
            return self._evaluate(self._units(views), known.anchored(len(views[0])), with_log)

    def duals(self, z0: Tensor, z1: Tensor) -> Tensor:
        """The weights alpha `(n, m)` of the anchors z0: what each thinks of every point. No gradient.

        m is n (the samples in view 0), or 2 n with both_views (view 0, then view 1); 0 at the anchor's own.

        >>> MMCL(sigma=2.0).duals(torch.eye(3), torch.eye(3)).round(decimals=2)
        tensor([[0., 1., 1.],
                [1., 0., 1.],
                [1., 1., 0.]])
        """
        check_views("MMCL", [z0, z1], fewest=2)
        with torch.no_grad(), torch.autocast(z0.device.type, enabled=False):
            a, b = self._units([z0, z1])
            points, own = self._points(a, b, slice(0, len(a)), both=False)
            return self._solve(points, own)[1].alpha

    def _units(self, views: Sequence[Tensor]) -> list[Tensor]:
        z = unit_views("MMCL", views)
        if len(z[0]) == 1:
            raise ValueError("MMCL needs at least 2 samples, got 1: a single one has no negatives")
        return z

    def _evaluate(self, z: list[Tensor], anchors: slice, with_log: bool) -> tuple[Tensor, Log]:
        joint = self.symmetric and self.negatives == "both_views"
        one_way = joint or not self.symmetric
        pairs = combinations(range(len(z)), 2) if one_way else permutations(range(len(z)), 2)
        solved: dict[int, Duals] = {}
        kept: dict[int, Machines] = {}
        losses, logs = [], []
        for a, b in pairs:
            points, own = self._points(z[a], z[b], anchors, both=joint)
            # The machines of an anchor against its own view are the same whatever the query's view.
            key = a if self.negatives == "same_view" else len(solved)
            if key not in solved:
                with torch.no_grad():
                    machines, solved[key] = self._solve(points.detach(), own)
                if with_log:
                    kept[key] = machines
                # The Gram matrix need not outlive the solution: the loss makes matrices of its own.
                del machines
            queries = torch.cat([z[b][anchors], z[a][anchors]]) if joint else z[b][anchors]
            scores = once(self._checked(queries, points))
            losses.append(self._loss(scores, own, solved[key].alpha))
            if with_log:
                with torch.no_grad():
                    logs.append(_log(scores, kept[key], solved[key]))
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        if not with_log:
            return loss, {}
        merged = {key: torch.stack([log[key] for log in logs]).to(loss.dtype) for key in logs[0]}
        return loss, {"loss": loss} | {
            key: values.amax() if key in self.largest else values.mean() for key, values in merged.items()
        }

    def _points(self, a: Tensor, b: Tensor, anchors: slice, both: bool) -> tuple[Tensor, Tensor]:
        """The points of the Gram matrix, and which are an anchor's own; both: anchors of both views."""
        t = torch.arange(anchors.start, anchors.stop, device=a.device)
        if self.negatives == "same_view":
            return a, t[:, None]
        own = torch.stack([t, t + len(a)], dim=1)
        return torch.cat([a, b]), torch.cat([own, own.flip(1)]) if both else own

    def _solve(self, points: Tensor, own: Tensor) -> tuple[Machines, Duals]:
        kernel = self._kernel()
        gram = self._checked(points, points)
        if callable(self.kernel) and not torch.allclose(gram, gram.T, rtol=1e-3, atol=1e-5):
            raise ValueError(f"kernel {self._kernel_name()} must be symmetric: K(x, y) = K(y, x)")
        machines = Machines(gram, own, self.C, self.ridge, semidefinite(kernel))
        found = SOLVERS[self.solver](machines, self.tol, self.max_iterations)
        # A product of weights this large is rounding: nothing tells them from others, and they grow for ever.
        rounding = torch.finfo(gram.dtype).eps * gram.diagonal().abs().mean() * found.alpha.sum(1).max()
        bounded = bool(rounding < 1 / 16)
        if bounded and machines.semidefinite and self.C is None and self.ridge == 0:
            bounded = bool(machines.gap(found.alpha, machines.times(found.alpha)).max() < math.inf)
        if not bounded:
            raise ValueError(
                f"MMCL: the duals have no bound that {gram.dtype} can tell from rounding, with "
                f"ridge={self.ridge} and C={self.C}: where samples coincide they need a larger ridge (0.1 is "
                "the released value) or a smaller C"
            )
        return machines, found

    def _kernel(self) -> Kernel:
        return self.kernel if callable(self.kernel) else KERNELS[self.kernel](self.sigma)

    def _kernel_name(self) -> str:
        return getattr(self.kernel, "__name__", repr(self.kernel)) if callable(self.kernel) else self.kernel

    def _checked(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self._kernel()(x, y)
        if not isinstance(scores, Tensor) or scores.shape != (len(x), len(y)) or scores.dtype != x.dtype:
            got = f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores)
            raise ValueError(
                f"kernel {self._kernel_name()} must give {x.dtype} {(len(x), len(y))} here, got {got}"
            )
        if not bool(torch.isfinite(scores).all()):
            what = (
                "the views" if not bool(torch.isfinite(y).all() & torch.isfinite(x).all()) else "the kernel"
            )
            raise ValueError(f"MMCL: {what} must be finite, got NaN or infinite values")
        return scores

    def _loss(self, scores: Tensor, own: Tensor, alpha: Tensor) -> Tensor:
        weights = alpha.scatter(1, own[:, :1], -alpha.sum(1, keepdim=True))
        if self.hinge_margin is None:
            return (weights * scores).sum() / len(alpha)
        losses: Tensor = torch.linalg.vecdot(weights, scores)
        return (self.hinge_margin + losses).relu().mean()

    def extra_repr(self) -> str:
        shown = f"kernel={self._kernel_name()!r}, sigma={self.sigma}, C={self.C}, ridge={self.ridge}"
        return f"{shown}, solver={self.solver!r}, symmetric={self.symmetric}, negatives={self.negatives!r}"


def mmcl(
    *views: Tensor,
    kernel: str | Kernel = "rbf",
    sigma: float = 10.0,
    C: float | None = None,
    ridge: float = 0.1,
    solver: str = "exact",
    symmetric: bool = False,
    negatives: str = "same_view",
    hinge_margin: float | None = None,
    tol: float | None = None,
    max_iterations: int | None = None,
) -> Tensor:
    """MMCL of two or more views `(n, d)`, a scalar; the arguments and errors are those of `MMCL`.

    >>> mmcl(torch.eye(3), torch.eye(3), sigma=2.0)
    tensor(-1.2665)
    """
    objective = MMCL(kernel, sigma, C, ridge, solver, symmetric, negatives, hinge_margin, tol, max_iterations)
    loss: Tensor = objective(*views)
    return loss


def _log(scores: Tensor, machines: Machines, duals: Duals) -> Log:
    alpha = duals.alpha
    product = machines.times(alpha)
    total, squares = alpha.sum(1), alpha.square().sum(1)
    tiny = torch.finfo(alpha.dtype).tiny
    length = (torch.linalg.vecdot(alpha, product) - machines.ridge * squares).clamp_min(0).sqrt()
    r, m = alpha.shape
    candidates = r * (m - machines.own.shape[1])
    at_zero = ((alpha == 0).sum() - r * machines.own.shape[1]).to(alpha)
    at_c = (alpha == machines.upper).sum().to(alpha)
    # The query's own view is not a candidate, where it is among the points.
    seen = scores.scatter(1, machines.own[:, 1:], -math.inf)
    best = seen.amax(1, keepdim=True)
    hits = (seen.gather(1, machines.own[:, :1]) == best).squeeze(1) / (seen == best).sum(1).to(alpha)
    log = {
        "accuracy": hits.mean(),
        "candidates": torch.full((), m - machines.own.shape[1] + 1, device=alpha.device),
        "at_zero": at_zero / candidates,
        "at_C": at_c / candidates,
        "inside": 1 - (at_zero + at_c) / candidates,
        "support": (total.square() / squares.clamp_min(tiny)).mean(),
        "margin": (length / (2 * total).clamp_min(tiny)).mean(),
        "iterations": torch.full((), duals.iterations, device=alpha.device),
        "kkt": machines.kkt(alpha, product).amax(),
    }
    if machines.semidefinite:
        log["gap"] = machines.gap(alpha, product).amax()
    return log
