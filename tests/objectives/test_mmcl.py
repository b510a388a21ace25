"""MMCL against its slow twin, its log against loops, and what holds for any batch."""

import copy
import math
import pickle
from itertools import combinations, permutations

import numpy as np
import pytest
import slow_mmcl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import random_views
from torch import Tensor

from counterpoint.objectives import MMCL, NTXent, mmcl
from counterpoint.objectives.kernels import KERNELS, RBF, Polynomial

QUICK = settings(deadline=None, max_examples=40, derandomize=True)
TIGHT = {"tol": 1e-15}
CASES = {
    "default": {},
    "linear": {"kernel": "linear"},
    "poly-bound": {"kernel": "poly", "C": 0.3},
    "laplace": {"kernel": "laplace", "sigma": 0.7},
    "min": {"kernel": "min", "C": 100.0},
    "narrow": {"sigma": 0.2, "ridge": 0.01},
    "no-ridge": {"sigma": 0.5, "ridge": 0.0},
    "both_views": {"negatives": "both_views", "kernel": "poly"},
    "symmetric": {"symmetric": True, "sigma": 2.0},
    "symmetric-both_views": {"symmetric": True, "negatives": "both_views", "kernel": "poly", "C": 0.6},
    "hinge": {"hinge_margin": 0.6, "sigma": 1.0},
    "hinge-symmetric-both_views": {"hinge_margin": 0.5, "symmetric": True, "negatives": "both_views"},
    "inverse": {"solver": "inverse"},
    "inverse-bound": {"solver": "inverse", "C": 0.8, "kernel": "min", "negatives": "both_views"},
    "inverse-symmetric": {"solver": "inverse", "symmetric": True, "negatives": "both_views"},
    "tanh": {"solver": "inverse", "kernel": "tanh", "C": 1.0, "ridge": 1.0},
}
EACH = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


def assert_equals_slow(views: list[Tensor], options: dict):
    fast = mmcl(*views, **options, **TIGHT)
    slow = slow_mmcl.mmcl(*views, **options)
    torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-9)
    gradients = torch.autograd.grad(fast, views)
    torch.testing.assert_close(gradients, torch.autograd.grad(slow, views), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("v", "n"), [(2, 2), (2, 3), (2, 6), (3, 4)])
@EACH
def test_equals_slow(options: dict, v: int, n: int):
    assert_equals_slow(random_views(v, n, seed=n), options)


@EACH
def test_repeated_rows(options: dict):
    if options.get("ridge", 0.1) == 0:
        options = options | {"C": 5.0, "ridge": 1e-6}
    assert_equals_slow([z.detach()[[0, 1, 0, 2, 1]].requires_grad_() for z in random_views(2, 3)], options)


@EACH
def test_a_zero_vector_has_no_gradient(options: dict):
    views = [z.detach().clone() for z in random_views(2, 5)]
    views[0][1] = views[1][3] = 0
    views = [z.requires_grad_() for z in views]
    loss = mmcl(*views, **options)
    gradients = torch.autograd.grad(loss, views)
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][1] == 0).all()
    assert (gradients[1][3] == 0).all()


@EACH
def test_module_equals_function(options: dict):
    views = random_views(3, 5)
    objective, expected = MMCL(**options), mmcl(*views, **options)
    loss, log = objective.with_log(*views)
    assert torch.equal(objective(*views), expected)
    assert torch.equal(loss, expected)
    assert torch.equal(log["loss"], expected.detach())
    assert all(value.ndim == 0 and not value.requires_grad for value in log.values())


@pytest.mark.parametrize("negatives", ["same_view", "both_views"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("solver", ["pgd", "pgd_plain"])
def test_gradient_solvers_reach_the_exact_loss(solver: str, symmetric: bool, negatives: str):
    views = random_views(2, 5, seed=2)
    options = {"symmetric": symmetric, "negatives": negatives, "sigma": 1.0}
    fast = mmcl(*views, **options, solver=solver, tol=1e-9, max_iterations=5000)
    torch.testing.assert_close(fast, slow_mmcl.mmcl(*views, **options), rtol=1e-7, atol=1e-9)


def test_by_hand():
    # Delta = 1 - 0 - 0 + 1 for both anchors; w of an anchor is 2 / 2.1 at its query, which is at the anchor.
    z = torch.eye(2)
    loss, log = MMCL("linear").with_log(z, z)
    assert loss.item() == pytest.approx(-2 / 2.1)
    assert float(log["margin"]) == pytest.approx(math.sqrt(2) / 2)
    assert float(log["accuracy"]) == float(log["support"]) == float(log["inside"]) == 1
    assert mmcl(z, z, kernel="linear", hinge_margin=1.0).item() == pytest.approx(1 - 2 / 2.1)
    assert mmcl(z, z, kernel="linear", hinge_margin=0.9).item() == 0


def test_a_query_that_scores_the_margin_is_not_pulled():
    z = random_views(2, 5, d=16)
    scores = mmcl(z[0], z[0], kernel="linear", ridge=0.1)
    assert scores.item() < -0.5
    gradients = torch.autograd.grad(mmcl(z[0], z[0] + 0 * z[1], kernel="linear", hinge_margin=0.01), z)
    assert all((g == 0).all() for g in gradients)


@pytest.mark.parametrize("name", ["default", "symmetric-both_views", "hinge", "inverse"])
def test_the_weights_are_constants(name: str):
    """Finite differences of the loss at frozen weights are its gradient; those with fresh weights are not."""
    options = CASES[name]
    views = [z.detach().requires_grad_() for z in random_views(2, 4, d=3, seed=5)]
    gradients = torch.autograd.grad(mmcl(*views, **options, **TIGHT), views)
    frozen: dict = {}
    slow_mmcl.mmcl(*views, **options, frozen=frozen)
    for known, equal in ((frozen, True), (None, False)):
        numbers = []
        for view in views:
            change = torch.zeros_like(view)
            for i in range(view.numel()):
                sides = []
                for step in (1e-5, -1e-5):
                    moved = view.detach().clone()
                    moved.view(-1)[i] += step
                    pair = [moved if z is view else z.detach() for z in views]
                    sides.append(float(slow_mmcl.mmcl(*pair, **options, frozen=known)))
                change.view(-1)[i] = (sides[0] - sides[1]) / 2e-5
            numbers.append(change)
        off = max(float((g - c).abs().max()) for g, c in zip(gradients, numbers, strict=True))
        assert off < 1e-7 if equal else off > 1e-3


@pytest.mark.parametrize("solver", ["exact", "pgd", "inverse", "pgd_released"])
def test_no_gradient_through_the_solver(solver: str):
    z0, z1 = random_views(2, 6)
    assert not MMCL(solver=solver).duals(z0, z1).requires_grad
    # The weights of view 0's machines are the same whatever carries its gradient.
    loss = mmcl(z0.detach(), z1, solver="exact")
    assert torch.autograd.grad(loss, z1)[0].abs().sum() > 0


@EACH
def test_duals(options: dict):
    z0, z1 = random_views(2, 5, seed=3)
    alpha = MMCL(**options, **TIGHT).duals(z0, z1)
    both = options.get("negatives") == "both_views"
    points = slow_mmcl.unit(z0) + (slow_mmcl.unit(z1) if both else [])
    assert alpha.shape == (5, len(points))
    kernel = slow_mmcl.SLOW_KERNELS[options.get("kernel", "rbf")]
    keys = {"sigma": 10.0, "C": None, "ridge": 0.1, "solver": "exact"}
    arguments = [options.get(key, default) for key, default in keys.items()]
    for t in range(5):
        expected = slow_mmcl.weights(points, t, (t, t + 5), kernel, *arguments)
        np.testing.assert_allclose(alpha[t].numpy(), expected, rtol=1e-6, atol=1e-7)
        assert alpha[t, t] == 0
        assert not both or alpha[t, t + 5] == 0


def expected_log(views: list[Tensor], options: dict) -> dict[str, float]:
    """Every machine's numbers, straight from their definitions."""
    C, ridge, sigma = options.get("C"), options.get("ridge", 0.1), options.get("sigma", 10.0)
    kernel = slow_mmcl.SLOW_KERNELS[options.get("kernel", "rbf")]
    z = [slow_mmcl.unit(view.detach()) for view in views]
    both, symmetric = options.get("negatives") == "both_views", options.get("symmetric", False)
    n, rows = len(z[0]), []
    for a, b in permutations(range(len(z)), 2) if symmetric else combinations(range(len(z)), 2):
        points = z[a] + z[b] if both else z[a]
        k = slow_mmcl.gram(points, kernel, sigma)
        for t in range(n):
            negatives = [j for j in range(len(points)) if j not in (t, t + n)]
            delta = slow_mmcl.machine(k, t, negatives, 0)
            q = delta + ridge * np.eye(len(negatives))
            alpha = slow_mmcl.SLOW_SOLVERS[options.get("solver", "exact")](q, C)
            alpha[alpha < 1e-9] = 0
            own = float(kernel(z[b][t], z[a][t], sigma))
            others = [float(kernel(z[b][t], points[j], sigma)) for j in negatives]
            beta = alpha / alpha.sum()
            rows.append(
                {
                    "accuracy": (own >= max(others)) / (1 + others.count(own)),
                    "candidates": 1 + len(negatives),
                    "at_zero": np.mean(alpha == 0),
                    "at_C": np.mean(alpha > C - 1e-9) if C else 0.0,
                    "support": alpha.sum() ** 2 / np.square(alpha).sum(),
                    "margin": math.sqrt(beta @ delta @ beta) / 2,
                }
            )
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("name", [name for name in CASES if name != "no-ridge"])
def test_log_is_what_the_machines_say(name: str, v: int):
    options, views = CASES[name], random_views(v, 6, seed=4)
    _, log = MMCL(**options, **TIGHT).with_log(*views)
    for key, value in expected_log(views, options).items():
        assert float(log[key]) == pytest.approx(value, rel=1e-6, abs=1e-9), key
    assert float(log["at_zero"] + log["at_C"] + log["inside"]) == pytest.approx(1)
    assert 1 <= float(log["support"]) <= float(log["candidates"]) - 1 + 1e-9
    assert ("gap" in log) == (name != "tanh")
    if options.get("solver", "exact") == "exact":
        assert float(log["gap"]) < 1e-9
        assert float(log["kkt"]) < 1e-6
        assert float(log["iterations"]) >= 1
    else:
        assert float(log["kkt"]) > 1e-3
        assert float(log["iterations"]) == 0


@pytest.mark.parametrize("negatives", ["same_view", "both_views"])
def test_accuracy_shares_ties(negatives: str):
    z = torch.eye(4)[[0, 0, 1, 2]]
    _, log = MMCL(negatives=negatives).with_log(z, z)
    # Queries 0 and 1 have their anchor's twin beside the anchor, and both views of the twin with both_views.
    tie = 1 / 2 if negatives == "same_view" else 1 / 3
    assert float(log["accuracy"]) == pytest.approx((2 + 2 * tie) / 4)


def test_the_clipped_inverse_knows_how_far_it_is_off():
    views = random_views(2, 40, d=8)
    _, log = MMCL(solver="inverse").with_log(*views)
    assert float(log["gap"]) > 1


def some_batch(n: int, d: int, repeats: int, seed: int, dtype: torch.dtype, spread: float) -> list[Tensor]:
    """Rows around a common direction, some of them repeated; spread 0 collapses the batch."""
    generator = torch.Generator().manual_seed(seed)
    views = []
    for _ in range(2):
        z = torch.randn(1, d, generator=generator) + spread * torch.randn(n, d, generator=generator)
        z[torch.randint(n, (repeats,), generator=generator)] = z[0].clone()
        views.append(z.to(dtype).requires_grad_())
    return views


@QUICK
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    repeats=st.integers(0, 6),
    spread=st.sampled_from([0.0, 1e-6, 0.01, 0.3, 10.0]),
    kernel=st.sampled_from(["rbf", "linear", "laplace", "poly", "min"]),
    sigma=st.sampled_from([0.05, 1.0, 50.0]),
    C=st.sampled_from([None, 0.01, 1.0, 100.0]),
    ridge=st.sampled_from([0.01, 0.1, 2.0]),
    negatives=st.sampled_from(["same_view", "both_views"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 999),
)
def test_exact_on_any_batch(n, d, repeats, spread, kernel, sigma, C, ridge, negatives, dtype, seed):
    views = some_batch(n, d, repeats, seed, dtype, spread)
    objective = MMCL(kernel, sigma, C, ridge, negatives=negatives)
    loss, log = objective.with_log(*views)
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, views))
    alpha = objective.duals(*views)
    assert (alpha >= 0).all()
    assert C is None or (alpha <= C).all()
    assert float(log["gap"]) <= (1e-4 if dtype == torch.float32 else 1e-8)
    assert float(log["kkt"]) <= (0.05 if dtype == torch.float32 else 1e-3)
    assert math.isclose(float(log["at_zero"] + log["at_C"] + log["inside"]), 1, abs_tol=1e-5)
    assert 1 - 1e-4 <= float(log["support"]) <= float(log["candidates"]) - 1 + 1e-3


@QUICK
@given(
    n=st.integers(2, 12),
    repeats=st.integers(0, 3),
    spread=st.sampled_from([0.0, 0.3, 10.0]),
    solver=st.sampled_from(["inverse", "pgd", "pgd_plain"]),
    kernel=st.sampled_from(["rbf", "linear", "min", "tanh"]),
    C=st.sampled_from([0.05, 1.0, 100.0]),
    ridge=st.sampled_from([0.05, 1.0]),
    seed=st.integers(0, 999),
)
def test_the_other_solvers_on_any_batch(n, repeats, spread, solver, kernel, C, ridge, seed):
    views = some_batch(n, 5, repeats, seed, torch.float32, spread)
    if kernel == "tanh" and solver == "inverse":
        ridge += 1.0
    objective = MMCL(kernel, 1.0, C, ridge, solver)
    loss, log = objective.with_log(*views)
    assert loss.isfinite()
    assert all(value.isfinite() for value in log.values())
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, views))
    alpha = objective.duals(*views)
    assert (alpha >= 0).all()
    assert (alpha <= C).all()


@pytest.mark.parametrize("name", ["default", "symmetric-both_views", "hinge", "inverse-bound"])
def test_order_of_samples_does_not_matter(name: str):
    views, order = random_views(2, 9), torch.randperm(9, generator=torch.Generator().manual_seed(1))
    objective = MMCL(**CASES[name], **TIGHT)
    loss, log = objective.with_log(*views)
    moved, moved_log = objective.with_log(*[z[order] for z in views])
    torch.testing.assert_close(moved, loss, rtol=1e-9, atol=1e-11)
    for key in log.keys() - {"iterations", "kkt", "gap"}:
        torch.testing.assert_close(moved_log[key], log[key], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("negatives", ["same_view", "both_views"])
def test_order_of_views_matters_unless_symmetric(negatives: str):
    z0, z1 = random_views(2, 6)
    both = {"negatives": negatives, "kernel": "poly"} | TIGHT
    one, other = mmcl(z0, z1, **both), mmcl(z1, z0, **both)
    assert abs(float((one - other).detach())) > 1e-3
    for views in ((z0, z1), (z1, z0)):
        together = mmcl(*views, symmetric=True, **both)
        torch.testing.assert_close(together, (one + other) / 2, rtol=1e-9, atol=1e-10)


def test_lengths_of_rows_do_not_matter():
    views = random_views(2, 6)
    scaled = [z * torch.linspace(0.01, 100, 6, dtype=z.dtype)[:, None] for z in views]
    torch.testing.assert_close(mmcl(*scaled), mmcl(*views), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n", [2, 7])
@pytest.mark.parametrize("solver", ["exact", "inverse"])
def test_collapsed_batch_is_0_with_a_gradient_of_0(solver: str, n: int):
    views = [torch.ones(n, 3, requires_grad=True) for _ in range(2)]
    loss, log = MMCL(solver=solver, sigma=1.0).with_log(*views)
    assert loss.item() == pytest.approx(0, abs=1e-4)
    assert all(g.abs().max() < 1e-4 for g in torch.autograd.grad(loss, views))
    assert float(log["margin"]) == pytest.approx(0, abs=1e-3)
    torch.testing.assert_close(
        MMCL(solver=solver, sigma=1.0).duals(*views), 20 * (1 - torch.eye(n)), rtol=0.02, atol=0
    )


def test_limits():
    views = random_views(2, 6)
    # A wide rbf is linear: Delta is 2 / sigma times that of the linear one, and so is the ridge here.
    wide = mmcl(*views, sigma=2e4, ridge=1e-5)
    torch.testing.assert_close(wide, mmcl(*views, kernel="linear", ridge=0.1), rtol=1e-3, atol=0)
    # A small bound holds everywhere, and what is left is a difference of mean kernels.
    small = MMCL(C=1e-4, sigma=1.0)
    assert (small.duals(*views) == 1e-4 * (1 - torch.eye(6, dtype=torch.float64))).all()
    z0, z1 = (torch.nn.functional.normalize(z) for z in views)
    k = RBF(1.0)(z1, z0)
    expected = 1e-4 * (k.sum(1) - k.diagonal() - 5 * k.diagonal()).mean()
    torch.testing.assert_close(small(*views), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("solver", ["exact", "pgd", "inverse"])
def test_half_precision_views_are_solved_in_single(dtype: torch.dtype, solver: str):
    views = [z.detach().to(dtype).requires_grad_() for z in random_views(2, 12)]
    single = [z.detach().float().requires_grad_() for z in views]
    half_loss, loss = mmcl(*views, solver=solver), mmcl(*single, solver=solver)
    assert half_loss.dtype == torch.float32
    assert torch.equal(half_loss, loss)
    for half_g, g in zip(
        torch.autograd.grad(half_loss, views), torch.autograd.grad(loss, single), strict=True
    ):
        assert half_g.dtype == dtype
        torch.testing.assert_close(half_g, g.to(dtype))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("hinge_margin", [None, 1.0], ids=str)
def test_autocast_does_not_round_a_backward_pass_inside_it(kernel: str, hinge_margin: float | None):
    views = random_views(2, 12, dtype=torch.float32)
    options = {"kernel": kernel, "hinge_margin": hinge_margin, "C": 1.0, "solver": "pgd"}
    plain = torch.autograd.grad(mmcl(*views, **options), views)
    assert any(g.abs().max() > 0 for g in plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(mmcl(*views, **options), views)
    assert all(map(torch.equal, plain, inside))


@pytest.mark.parametrize("options", [{}, {"solver": "inverse"}, {"negatives": "both_views"}], ids=str)
def test_autocast_changes_nothing(options: dict):
    views = random_views(2, 12, dtype=torch.float32)
    plain, plain_log = MMCL(**options).with_log(*views)
    alpha = MMCL(**options).duals(*views)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, log = MMCL(**options).with_log(*views)
        assert torch.equal(MMCL(**options).duals(*views), alpha)
    assert torch.equal(loss, plain)
    assert log == plain_log
    assert all(map(torch.equal, torch.autograd.grad(loss, views), torch.autograd.grad(plain, views)))


@pytest.mark.parametrize("solver", ["exact", "pgd", "pgd_plain", "inverse"])
def test_any_batch_size_and_no_state(solver: str):
    objective = MMCL(solver=solver)
    before = dict(vars(objective))
    large, small = random_views(2, 17), random_views(2, 4)
    first, other, again = objective(*large), objective(*small), objective(*large)
    assert torch.equal(first, again)
    assert torch.equal(other, MMCL(solver=solver)(*small))
    assert vars(objective) == before
    assert objective.state_dict() == {}


def test_released_differs_only_by_the_generator():
    views, objective = random_views(2, 8), MMCL(solver="pgd_released", sigma=0.5)
    torch.manual_seed(3)
    first, other = objective(*views), objective(*views)
    torch.manual_seed(3)
    assert torch.equal(objective(*views), first)
    assert not torch.equal(other, first)


def test_term_of_a_sum():
    views = random_views(2, 6)
    total = NTXent(tau=0.3) + 0.25 * MMCL(sigma=1.0)
    loss, log = total.with_log(*views)
    torch.testing.assert_close(loss, NTXent(tau=0.3)(*views) + 0.25 * MMCL(sigma=1.0)(*views))
    expected = MMCL(sigma=1.0).with_log(*views)[1]
    assert {key for key in log if key.startswith("mmcl/")} == {f"mmcl/{key}" for key in expected}
    assert torch.equal(log["mmcl/margin"], expected["margin"])
    assert torch.equal(log["support"], expected["support"])


@pytest.mark.parametrize("options", [CASES["poly-bound"], {"kernel": Polynomial(degree=2)}], ids=str)
def test_copies_give_the_same(options: dict):
    views, objective = random_views(2, 6), MMCL(**options)
    for twin in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):
        assert torch.equal(twin(*views), objective(*views))
        assert repr(twin) == repr(objective)
    objective.load_state_dict(objective.state_dict())


def test_exact_goes_on_where_many_weights_change_sides():
    """Two directions, 34 points near each other and a low bound: 60 rounds left a gap of 0.66."""
    views = some_batch(17, 2, 0, 0, torch.float64, spread=0.3)
    _, log = MMCL("linear", C=1.0, ridge=0.01, negatives="both_views").with_log(*views)
    assert float(log["gap"]) <= 1e-8
    assert float(log["kkt"]) <= 1e-4
