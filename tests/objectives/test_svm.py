"""The machines of all anchors at once against one machine at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from slow_mmcl import box_optimum, breach, machine, value
from torch import Tensor

from counterpoint.objectives.kernels import KERNELS
from counterpoint.objectives.svm import Inverse, Machines

OWN = pytest.mark.parametrize("own", ["one", "two", "both"])
QUICK = settings(deadline=None, max_examples=40, derandomize=True)


def machines(
    n: int = 6,
    d: int = 4,
    own: str = "one",
    C: float | None = None,
    ridge: float = 0.1,
    kernel: str = "poly",
    sigma: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Machines:
    """Problems in the layouts of `same_view`, of `both_views`, and of that with both views as anchors."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n if own == "one" else 2 * n, d, generator=generator, dtype=torch.float64)
    points = torch.nn.functional.normalize(points).to(dtype)
    t = torch.arange(n)
    two = torch.stack([t, t + n], dim=1)
    index = {"one": t[:, None], "two": two, "both": torch.cat([two, two.flip(1)])}[own]
    gram = KERNELS[kernel](sigma)(points, points)
    return Machines((gram + gram.T) / 2, index, C, ridge)


def negatives(problem: Machines, row: int) -> list[int]:
    return [j for j in range(len(problem.gram)) if j not in problem.own[row].tolist()]


def systems(problem: Machines) -> list[np.ndarray]:
    """Q of every anchor over its negatives."""
    gram = problem.gram.double().numpy()
    return [
        machine(gram, int(problem.own[r, 0]), negatives(problem, r), problem.ridge)
        for r in range(len(problem.own))
    ]


def apart(problem: Machines, rows: Tensor) -> list[np.ndarray]:
    """The rows of an `(r, m)` matrix at each anchor's negatives; the rest must be 0."""
    parts = []
    for r in range(len(rows)):
        kept = negatives(problem, r)
        rest = rows[r].clone()
        rest[kept] = 0
        assert (rest == 0).all()
        parts.append(rows[r, kept].double().numpy())
    return parts


def some_alpha(problem: Machines, seed: int = 1, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    alpha = torch.randn(len(problem.own), len(problem.gram), generator=generator, dtype=torch.float64)
    alpha = alpha.mul(scale).clamp(0, problem.upper).to(problem.gram.dtype)
    return problem.clear_own(alpha)


def best_alpha(problem: Machines) -> Tensor:
    alpha = torch.zeros(len(problem.own), len(problem.gram), dtype=torch.float64)
    for r, q in enumerate(systems(problem)):
        alpha[r, negatives(problem, r)] = torch.from_numpy(box_optimum(q, problem.C))
    return alpha


@OWN
@pytest.mark.parametrize("C", [None, 0.4])
def test_times_value_and_kkt(own: str, C: float | None):
    problem = machines(own=own, C=C)
    alpha = some_alpha(problem)
    product = problem.times(alpha)
    assert torch.equal(problem.times(alpha, out=torch.full_like(alpha, math.nan)), product)
    worst, values = problem.kkt(alpha, product), problem.value(alpha, product)
    for r, (q, a, p) in enumerate(
        zip(systems(problem), apart(problem, alpha), apart(problem, product), strict=True)
    ):
        np.testing.assert_allclose(p, q @ a, rtol=1e-12, atol=1e-12)
        assert float(values[r]) == pytest.approx(value(q, a), rel=1e-12)
        moved = [abs(x - min(max(x - g, 0), problem.upper)) for x, g in zip(a, q @ a - 2, strict=True)]
        assert float(worst[r]) == pytest.approx(max(moved) / max(1, *a), rel=1e-10)


@OWN
def test_machine_of_all_weights(own: str):
    """1/2 v'Kv - 1'v with v = (1'alpha, alpha), K signed, is the objective without the eliminated one."""
    problem = machines(own=own, ridge=0, kernel="min")
    alpha = some_alpha(problem)
    values = problem.value(alpha, problem.times(alpha))
    for r, a in enumerate(apart(problem, alpha)):
        order = [int(problem.own[r, 0]), *negatives(problem, r)]
        k = problem.gram.numpy()[np.ix_(order, order)].copy()
        k[0, 1:] *= -1
        k[1:, 0] *= -1
        v = np.append(a.sum(), a)
        assert float(values[r]) == pytest.approx(v @ k @ v / 2 - v.sum(), rel=1e-12)


@QUICK
@given(
    n=st.integers(2, 8),
    d=st.integers(1, 9),
    own=st.sampled_from(["one", "two", "both"]),
    C=st.sampled_from([None, 0.05, 1.0, 100.0]),
    ridge=st.sampled_from([0.01, 0.1, 3.0]),
    kernel=st.sampled_from(["rbf", "linear", "laplace", "poly", "min"]),
    sigma=st.sampled_from([0.3, 2.0, 50.0]),
    scale=st.sampled_from([0.0, 0.01, 0.3, 1.0, 10.0]),
    near=st.sampled_from([0.0, 0.9, 0.999]),
    seed=st.integers(0, 999),
)
def test_gap_bounds_the_distance_from_the_optimum(n, d, own, C, ridge, kernel, sigma, scale, near, seed):
    problem = machines(n, d, own, C, ridge, kernel, sigma, seed)
    best = best_alpha(problem)
    alpha = torch.lerp(some_alpha(problem, seed + 1, scale), best, near)
    product = problem.times(alpha)
    gaps = problem.gap(alpha, product)
    assert (gaps >= 0).all()
    for q, a, b, gap in zip(systems(problem), apart(problem, alpha), apart(problem, best), gaps, strict=True):
        assert breach(q, b, C) < 1e-8
        optimum = value(q, b)
        assume(optimum < 0)
        assert float(gap) >= (value(q, a) - optimum) / abs(optimum) - 1e-9


@OWN
@pytest.mark.parametrize("C", [None, 0.1, 1.0])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_gap_and_kkt_are_0_at_the_optimum_and_nowhere_else(own: str, C: float | None, ridge: float):
    problem = machines(own=own, C=C, ridge=ridge, kernel="rbf")
    best = best_alpha(problem)
    product = problem.times(best)
    assert problem.gap(best, product).max() < 1e-9
    assert problem.kkt(best, product).max() < 1e-9
    for scale in (0.0, 0.5, 0.9):
        alpha = best * scale
        product = problem.times(alpha)
        assert problem.gap(alpha, product).min() > (1 - scale) ** 2 / 2
        assert problem.kkt(alpha, product).min() > 1e-3


def test_gap_certifies_nothing_it_does_not_know():
    """Without a ridge and a bound, weights that pull nowhere have no known distance: infinite, not NaN."""
    problem = machines(ridge=0.0)
    nothing = torch.zeros_like(problem.columns)
    assert (problem.gap(nothing, problem.times(nothing)) == math.inf).all()


@OWN
@pytest.mark.parametrize("kernel", ["rbf", "poly", "min", "tanh"])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_inverse_of_ones(own: str, kernel: str, dtype: torch.dtype, tol: float, ridge: float):
    problem = machines(10, 6, own, None, ridge, kernel, dtype=dtype)
    if kernel == "tanh":
        problem = Machines(problem.gram, problem.own, 1.0, ridge, semidefinite=False)
    for q, a in zip(systems(problem), apart(problem, Inverse(problem).ones()), strict=True):
        expected = np.linalg.solve(q, np.full(len(q), 2.0))
        # Not semidefinite, some of its eigenvalues are near 0.
        lost = max(1, np.linalg.cond(q) / 100) if kernel == "tanh" else 1
        np.testing.assert_allclose(a, expected, rtol=0, atol=lost * tol * abs(expected).max())


@OWN
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_inverse_of_any_right_hand_side(own: str, dtype: torch.dtype, tol: float, rho: float):
    problem = machines(10, 6, own, kernel="min", dtype=dtype)
    right = problem.clear_own(
        torch.randn(len(problem.own), len(problem.gram), generator=torch.Generator().manual_seed(3)).to(dtype)
    )
    solved = Inverse(problem, rho).solve(right, out=torch.full_like(right, math.nan))
    for q, a, b in zip(systems(problem), apart(problem, solved), apart(problem, right), strict=True):
        expected = np.linalg.solve(q + rho * np.eye(len(q)), b)
        np.testing.assert_allclose(a, expected, rtol=0, atol=tol * max(1, abs(expected).max()))


@OWN
@pytest.mark.parametrize("rows", [[2], [4, 0], [1, 3, 5]], ids=str)
def test_some_of_the_anchors(own: str, rows: list[int]):
    problem = machines(own=own, C=0.4)
    some, index = problem.part(torch.tensor(rows)), torch.tensor(rows)
    alpha = some_alpha(problem)
    product = problem.times(alpha)
    torch.testing.assert_close(some.times(alpha[index]), product[index], rtol=1e-13, atol=1e-13)
    for name in ("value", "kkt", "gap"):
        expected = getattr(problem, name)(alpha, product)[index]
        got = getattr(some, name)(alpha[index], product[index])
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(Inverse(some).ones(), Inverse(problem).ones()[index], rtol=1e-11, atol=1e-11)
    right = some_alpha(problem, seed=5)
    expected = Inverse(problem, 0.5).solve(right, torch.empty_like(right))[index]
    got = Inverse(some, 0.5).solve(right[index], torch.empty_like(right[index]))
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


def test_a_part_of_a_part():
    problem = machines(7)
    rows = problem.part(torch.tensor([6, 2, 4])).part(torch.tensor([2, 0]))
    assert rows.own.flatten().tolist() == [4, 6]
    torch.testing.assert_close(rows.columns, problem.gram[[4, 6]])
    torch.testing.assert_close(rows.self_kernel, problem.gram.diagonal()[[4, 6]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_singular_gram_matrix_says_what_to_do(dtype: torch.dtype):
    problem = machines(6, 2, ridge=0.0, kernel="linear", dtype=dtype)
    with pytest.raises(
        ValueError, match=r"plus ridge=0.* is not positive definite.* give a larger ridge .* solver='pgd'"
    ):
        Inverse(problem)
    zeros = Machines(torch.zeros(3, 3, dtype=dtype), torch.arange(3)[:, None], 1.0, 0.0, semidefinite=False)
    with pytest.raises(ValueError, match=r"not positive definite.* give a larger ridge"):
        Inverse(zeros)


def test_nothing_given_is_changed():
    problem = machines(own="both", C=0.4)
    gram, own, alpha = problem.gram.clone(), problem.own.clone(), some_alpha(problem)
    before, product = alpha.clone(), problem.times(alpha)
    kept = product.clone()
    problem.value(alpha, product), problem.kkt(alpha, product), problem.gap(alpha, product)
    Inverse(problem).ones()
    Inverse(problem).solve(alpha, torch.empty_like(alpha))
    assert torch.equal(problem.gram, gram)
    assert torch.equal(problem.own, own)
    assert torch.equal(alpha, before)
    assert torch.equal(product, kept)
