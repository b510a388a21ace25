"""The solvers against scipy, a machine at a time; each on the problems of `test_svm`."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from slow_mmcl import (
    SLOW_KERNELS,
    box_optimum,
    breach,
    clipped_inverse,
    gram,
    machine,
    released_gradient,
    unit,
    value,
)
from torch import Tensor

from counterpoint.objectives import svm_exact, svm_pgd
from counterpoint.objectives.svm import Machines
from counterpoint.objectives.svm_exact import optimum
from counterpoint.objectives.svm_pgd import clipped_inverse as fast_clipped_inverse
from counterpoint.objectives.svm_pgd import projected_gradient
from counterpoint.objectives.svm_pgd import released_gradient as fast_released_gradient

BOUNDS = [0.1, 1.0, 100.0, None]
SHAPES = [("linear", 1.0), ("poly", 1.0), ("min", 1.0)]
SHAPES += [(name, sigma) for name in ("rbf", "laplace") for sigma in (0.3, 10.0)]
EACH = pytest.mark.parametrize(("kernel", "sigma"), SHAPES)


@pytest.fixture(params=["exchange", "admm", "single"])
def path(request, monkeypatch):
    """The three ways of `exact`: batches of points in and out, ADMM first, and one point at a time."""
    if request.param == "admm":
        monkeypatch.setattr(svm_exact, "exchange_is_cheap", lambda free: False)
    if request.param == "single":
        monkeypatch.setattr(svm_exact, "PATIENCE", -1)
        monkeypatch.setattr(svm_exact, "ROUNDS", 2000)
    return request.param


def some_points(n: int, d: int = 6, seed: int = 0, clusters: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if clusters:
        centres = torch.randn(clusters, d, generator=generator, dtype=torch.float64)
        points = centres[torch.arange(n) % clusters] + 0.1 * points
    return torch.nn.functional.normalize(points)


@lru_cache
def slow_gram(points: tuple[tuple[float, ...], ...], kernel: str, sigma: float) -> np.ndarray:
    return gram(unit(torch.tensor(points, dtype=torch.float64)), SLOW_KERNELS[kernel], sigma)


def problem_of(
    points: Tensor,
    kernel: str = "rbf",
    sigma: float = 1.0,
    C: float | None = None,
    ridge: float = 0.1,
    two: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Machines:
    """two: the second half of the points are the other views of the first."""
    k = torch.tensor(slow_gram(tuple(map(tuple, points.tolist())), kernel, sigma))
    t = torch.arange(len(points) // (1 + two))
    own = torch.stack([t, t + len(t)], dim=1) if two else t[:, None]
    return Machines(k.to(dtype), own, C, ridge)


def anchors(problem: Machines, alpha: Tensor, most: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    """Q and alpha of some of the anchors, spread over all."""
    assert alpha.shape == (len(problem.own), len(problem.gram))
    assert (alpha >= 0).all()
    assert (alpha <= problem.upper).all()
    assert (alpha.gather(1, problem.own) == 0).all()
    k, pairs = problem.gram.double().numpy(), []
    for r in range(0, len(alpha), max(1, len(alpha) // most)):
        negatives = [j for j in range(len(k)) if j not in problem.own[r].tolist()]
        q = machine(k, int(problem.own[r, 0]), negatives, problem.ridge)
        pairs.append((q, alpha[r, negatives].double().numpy()))
    return pairs


def assert_optimal(problem: Machines, alpha: Tensor, tol: float):
    """Equal to scipy: the value to `tol`, and the weights to what that means for a ridge-convex problem."""
    for q, a in anchors(problem, alpha):
        best = box_optimum(q, problem.C)
        assert breach(q, best, problem.C) < 1e-7
        size = abs(value(q, best))
        assert value(q, a) - value(q, best) <= tol * size
        if problem.ridge > 0:
            assert np.square(a - best).sum() <= 2 * (2 * tol * size / problem.ridge)


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("C", BOUNDS)
@EACH
def test_exact_equals_scipy(path: str, kernel: str, sigma: float, C: float | None, n: int):
    problem = problem_of(some_points(n, seed=n), kernel, sigma, C)
    assert_optimal(problem, optimum(problem, 1e-12, 100).alpha, 1e-11)


@pytest.mark.parametrize("C", BOUNDS)
@EACH
def test_exact_equals_scipy_on_more_points(path: str, kernel: str, sigma: float, C: float | None):
    problem = problem_of(some_points(40, seed=3), kernel, sigma, C)
    found = optimum(problem, 1e-10, 100)
    product = problem.times(found.alpha)
    assert problem.gap(found.alpha, product).max() <= 1e-10
    for q, a in anchors(problem, found.alpha, most=10):
        assert breach(q, a, C) < 1e-4
    if C in (0.1, None):
        assert_optimal(problem, found.alpha, 1e-9)


@pytest.mark.parametrize("C", [0.3, None])
def test_exact_with_two_own_points(path: str, C: float | None):
    problem = problem_of(some_points(24, seed=5), "poly", C=C, two=True)
    assert_optimal(problem, optimum(problem, 1e-12, 100).alpha, 1e-11)


@pytest.mark.parametrize("C", [0.5, None])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-4), (torch.float64, 1e-8)], ids=str)
def test_exact_with_clusters_and_large_supports(path: str, C: float | None, dtype: torch.dtype, tol: float):
    """A small bandwidth makes nearly all points support vectors: the systems grow beyond the first 32."""
    problem = problem_of(some_points(70, clusters=7, seed=2), "rbf", 0.05, C, dtype=dtype)
    alpha = optimum(problem, tol, 100).alpha
    assert (alpha > 0).sum(1).max() > 40
    assert problem.gap(alpha, problem.times(alpha)).max() <= tol
    assert_optimal(problem, alpha, 2 * tol)


@pytest.mark.parametrize("C", [0.4, 50.0, None])
def test_exact_with_repeated_rows(path: str, C: float | None):
    points = some_points(9)[[0, 1, 2, 0, 3, 3, 3, 4, 5, 6, 7, 8]]
    problem = problem_of(points, C=C)
    alpha = optimum(problem, 1e-12, 100).alpha
    assert_optimal(problem, alpha, 1e-11)
    if C is None:
        # Anchor and negative coincide: nothing but the ridge holds the weight.
        torch.testing.assert_close(alpha[0, 3], alpha[3, 0])
        assert alpha[0, 3] > 10


@pytest.mark.parametrize("C", [0.4, 50.0, None])
@pytest.mark.parametrize("n", [2, 6, 50])
def test_exact_on_a_collapsed_batch(path: str, C: float | None, n: int):
    problem = problem_of(some_points(1).repeat(n, 1), C=C)
    expected = torch.full((n, n), min(2 / 0.1, problem.upper), dtype=torch.float64).fill_diagonal_(0)
    torch.testing.assert_close(optimum(problem, 1e-16, 100).alpha, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("kernel", "sigma", "d"), [("rbf", 0.3, 6), ("linear", 1.0, 30), ("laplace", 1.0, 3)]
)
def test_without_ridge_and_bound_the_length_is_twice_the_own_weight(
    path: str, kernel: str, sigma: float, d: int
):
    problem = problem_of(some_points(20, d, seed=4), kernel, sigma, ridge=0.0)
    alpha = optimum(problem, 1e-12, 100).alpha
    product = problem.times(alpha)
    torch.testing.assert_close((alpha * product).sum(1), 2 * alpha.sum(1), rtol=1e-8, atol=1e-8)
    assert_optimal(problem, alpha, 1e-9)


@pytest.mark.parametrize("C", [0.3, 20.0])
@pytest.mark.parametrize(("kernel", "d"), [("linear", 3), ("min", 2), ("rbf", 4)])
def test_exact_without_ridge_on_a_singular_problem(path: str, C: float, kernel: str, d: int):
    """More points than the kernel's space has room for, some of them repeated: many optima, one value."""
    points = some_points(14, d, seed=8)
    points[9], points[10] = points[3], points[4]
    problem = problem_of(points, kernel, C=C, ridge=0.0)
    alpha = optimum(problem, 1e-9, 100).alpha
    for q, a in anchors(problem, alpha, most=14):
        # A small ridge makes it regular, and moves the value by no more than it costs.
        best = box_optimum(q + 1e-9 * np.eye(len(q)), C)
        assert value(q, a) <= value(q, best) + 1e-6 * abs(value(q, best))


def test_exact_reports_its_rounds_and_the_same_twice(path: str):
    problem = problem_of(some_points(40), sigma=10.0, dtype=torch.float32)
    first, again = optimum(problem, 1e-4, 100), optimum(problem, 1e-4, 100)
    assert torch.equal(first.alpha, again.alpha)
    assert first.iterations == again.iterations > 0


@pytest.mark.parametrize("most", [1, 5])
def test_admm_keeps_to_its_number_of_iterations(monkeypatch, most: int):
    monkeypatch.setattr(svm_exact, "exchange_is_cheap", lambda free: False)
    problem = problem_of(some_points(30), sigma=0.3)
    admm = svm_exact.Admm(problem)
    alpha, free, left = admm.solve(1e-12, most)
    assert admm.iterations == most
    anchors(problem, alpha)
    assert free.sum() < free.numel()
    assert len(left) == 30


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("C", [0.2, None])
@EACH
def test_gradient_reaches_its_conditions(kernel: str, sigma: float, C: float | None, momentum: bool):
    problem = problem_of(some_points(12, seed=2), kernel, sigma, C)
    for start in (None, fast_clipped_inverse(problem)):
        found = projected_gradient(problem, 1e-5, 3000, momentum, start)
        assert 0 < found.iterations < 3000
        assert problem.kkt(found.alpha, problem.times(found.alpha)).max() <= 1e-5
        for q, a in anchors(problem, found.alpha):
            assert breach(q, a, C) <= 1e-5 * max(1, *a) * 1.001
        assert_optimal(problem, found.alpha, 1e-6)


def test_gradient_is_quicker_with_momentum_and_from_a_warm_start():
    problem = problem_of(some_points(30), sigma=10.0)
    plain = projected_gradient(problem, 1e-4, 5000, momentum=False).iterations
    ahead = projected_gradient(problem, 1e-4, 5000).iterations
    assert ahead < plain / 2
    best = optimum(problem, 1e-12, 100).alpha
    kept = best.clone()
    assert projected_gradient(problem, 1e-4, 5000, start=best).iterations == svm_pgd.LOOK_EVERY
    assert torch.equal(best, kept)


def test_gradient_stops_at_its_number_of_steps():
    problem = problem_of(some_points(30), sigma=10.0)
    found = projected_gradient(problem, 1e-12, 7)
    assert found.iterations == 7
    nothing = torch.zeros_like(found.alpha)
    assert (problem.value(found.alpha, problem.times(found.alpha)) < problem.value(nothing, nothing)).all()


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("wrong", [0.02, 0.3])
def test_gradient_halves_a_step_that_is_too_long(monkeypatch, wrong: float, momentum: bool):
    estimate = svm_pgd._largest_eigenvalue
    monkeypatch.setattr(svm_pgd, "_largest_eigenvalue", lambda problem: wrong * estimate(problem))
    problem = problem_of(some_points(15), sigma=1.0)
    found = projected_gradient(problem, 1e-5, 3000, momentum)
    assert found.iterations < 3000
    assert_optimal(problem, found.alpha, 1e-6)


@EACH
def test_estimate_of_the_largest_eigenvalue(kernel: str, sigma: float):
    problem = problem_of(some_points(20, seed=6), kernel, sigma)
    estimates = svm_pgd._largest_eigenvalue(problem)
    for (q, _), estimate in zip(
        anchors(problem, torch.zeros_like(problem.columns), most=20), estimates, strict=True
    ):
        largest = np.linalg.eigvalsh(q)[-1]
        assert 0.7 * largest < float(estimate) < 1.0001 * largest


@pytest.mark.parametrize("C", [0.3, None])
def test_clipped_inverse(C: float | None):
    problem = problem_of(some_points(12), C=C)
    for q, a in anchors(problem, fast_clipped_inverse(problem), most=12):
        np.testing.assert_allclose(a, clipped_inverse(q, C), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("sigma", "C", "ridge", "n"),
    [(0.3, None, 0.1, 8), (10.0, 0.6, 0.1, 12), (0.3, 0.05, 3.0, 5), (0.3, 0.5, 300.0, 9)],
)
def test_released_gradient_is_that_of_the_released_code(sigma: float, C: float | None, ridge: float, n: int):
    problem = problem_of(some_points(n), sigma=sigma, C=C, ridge=ridge)
    torch.manual_seed(11)
    found = fast_released_gradient(problem)
    torch.manual_seed(11)
    start = torch.randn(n, n, dtype=torch.float64).relu().clamp(0, problem.upper)
    momentum = float(torch.rand(())) * (1 - 1e-8) + 1e-8
    starts = [np.delete(row.numpy(), t) for t, row in enumerate(start)]
    alphas, iterations = released_gradient(problem.gram.numpy(), starts, momentum, ridge, C)
    assert found.iterations == iterations
    for (_, a), expected in zip(anchors(problem, found.alpha, most=n), alphas, strict=True):
        np.testing.assert_allclose(a, expected, rtol=1e-8, atol=1e-10)


def test_released_gradient_is_random_only_by_the_generator():
    problem = problem_of(some_points(8), sigma=0.3)
    torch.manual_seed(0)
    first, other = fast_released_gradient(problem), fast_released_gradient(problem)
    torch.manual_seed(0)
    again = fast_released_gradient(problem)
    assert torch.equal(first.alpha, again.alpha)
    assert not torch.equal(first.alpha, other.alpha)


@pytest.mark.parametrize(
    "solve",
    [
        fast_clipped_inverse,
        lambda p: projected_gradient(p, 1e-3, 200).alpha,
        lambda p: projected_gradient(p, 1e-3, 200, momentum=False, start=fast_clipped_inverse(p)).alpha,
        lambda p: optimum(p, 1e-4, 100).alpha,
    ],
)
def test_the_others_draw_nothing_and_give_the_same_bits_twice(solve):
    problem = problem_of(some_points(40), sigma=2.0, dtype=torch.float32)
    before = torch.get_rng_state()
    assert torch.equal(solve(problem), solve(problem))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_free_grows_too_large_for_exchanging():
    few = torch.zeros(10, 1000, dtype=torch.bool)
    few[:, :10] = True
    assert svm_exact.exchange_is_cheap(few)
    assert not svm_exact.exchange_is_cheap(torch.ones_like(few))
    assert math.isfinite(svm_exact.RHO)
