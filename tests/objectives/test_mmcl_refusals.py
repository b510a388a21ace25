"""What MMCL takes and refuses: kernels of one's own, arguments, and machines that have no one answer."""

from typing import Any

import pytest
import torch
from slow_objectives import random_views
from torch import Tensor

from counterpoint.objectives import MMCL, mmcl
from counterpoint.objectives.kernels import RBF


def test_a_kernel_of_the_users_own():
    def cubic(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.T + 0.5) ** 3

    views = random_views(2, 6)
    torch.testing.assert_close(mmcl(*views, kernel=cubic), mmcl(*views, kernel="poly"), rtol=1e-9, atol=0)
    torch.testing.assert_close(mmcl(*views, kernel=RBF(0.3)), mmcl(*views, sigma=0.3), rtol=1e-12, atol=0)
    assert "kernel='cubic'" in repr(MMCL(cubic))
    assert "kernel='rbf', sigma=2.0, C=3.0, ridge=0.5" in repr(MMCL(sigma=2, C=3, ridge=0.5))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda x, y: x @ x.T, r"must give torch.float64 \(5, 10\) here, got torch.float64 \(5, 5\)"),
        (lambda x, y: (x @ y.T).float(), r"must give torch.float64 .*, got torch.float32"),
        (lambda x, y: (x @ y.T).tolist(), "got <class 'list'>"),
        (lambda x, y: (x @ y.T).sum(), r"got torch.float64 \(\)"),
        (lambda x, y: x @ y.T + x[:, :1], "must be symmetric"),
        (lambda x, y: (x @ y.T - 2).log(), "the kernel must be finite, got NaN"),
        (lambda x, y: (x @ y.T) / 0, "the kernel must be finite"),
    ],
    ids=["shape", "dtype", "list", "scalar", "asymmetric", "nan", "infinite"],
)
def test_what_a_kernel_must_give(kernel, words: str):
    with pytest.raises(ValueError, match=words):
        MMCL(kernel, negatives="both_views")(*random_views(2, 5))


@pytest.mark.parametrize("C", [None, 1.0])
@pytest.mark.parametrize("solver", ["exact", "pgd", "inverse"])
def test_tanh_needs_a_bound_and_a_solver_that_certifies_nothing(C: float | None, solver: str):
    if C is not None and solver != "exact":
        loss, log = MMCL("tanh", C=C, ridge=1.0, solver=solver).with_log(*random_views(2, 6))
        assert loss.isfinite()
        assert "gap" not in log
        return
    with pytest.raises(ValueError, match=r"tanh is not positive semidefinite: .* give a finite C, .*'pgd'"):
        MMCL("tanh", C=C, solver=solver)


def test_a_kernel_that_says_it_is_not_semidefinite():
    def own(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.T).sin()

    own.semidefinite = False
    with pytest.raises(ValueError, match="own is not positive semidefinite"):
        MMCL(own)
    assert MMCL(own, C=1.0, solver="pgd")(*random_views(2, 5)).isfinite()


BAD = {
    "ridge": ([-0.1, float("nan"), float("inf"), "x", None], "must be 0 or a number from"),
    "C": ([0, -1, float("nan"), float("inf"), "x"], "must be a finite number above 0"),
    "sigma": ([0, -1.0, float("nan"), float("inf"), None], "must be a finite number above 0"),
    "hinge_margin": ([0, -1.0, float("nan"), "x"], "must be a finite number above 0"),
    "tol": ([0, -1e-3, float("nan"), float("inf")], "must be a finite number above 0"),
    "max_iterations": ([0, -3, 1.5, True, "x"], "must be a whole number from 1"),
    "solver": (["pdg", "", None], "must be one of exact, inverse, pgd, pgd_plain, pgd_released"),
    "kernel": (["rbff", None, 3], "must be one of laplace, linear, min, poly, rbf, tanh"),
    "negatives": (["all", None], "must be one of both_views, same_view"),
}


@pytest.mark.parametrize(
    ("name", "value", "words"), [(name, v, words) for name, (values, words) in BAD.items() for v in values]
)
def test_bad_arguments_are_refused(name: str, value: object, words: str):
    z = torch.eye(3)
    for call in (lambda: MMCL(**{name: value}), lambda: mmcl(z, z, **{name: value})):
        with pytest.raises(ValueError, match=f"{name} {words}.*, got {value!r}"):
            call()


def test_a_single_sample_has_no_negatives():
    one = random_views(2, 1)
    for call in (MMCL(), MMCL().with_log, MMCL(negatives="both_views"), MMCL().duals):
        with pytest.raises(ValueError, match=r"at least 2 samples, got 1: .* no negatives"):
            call(*one)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("negatives", ["same_view", "both_views"])
@pytest.mark.parametrize("which", [0, 1])
def test_embeddings_must_be_finite(which: int, negatives: str, value: float):
    views = [z.detach().clone() for z in random_views(2, 5)]
    views[which][3, 1] = value
    with pytest.raises(ValueError, match="MMCL: the views must be finite, got NaN or infinite"):
        MMCL(negatives=negatives)(*views)
    with pytest.raises(ValueError, match=f"MMCL: view {which} must be finite, got 1 of 25"):
        MMCL(negatives=negatives).with_log(*views)


def test_only_views_are_accepted():
    views = random_views(2, 5)
    with pytest.raises(ValueError, match="MMCL does not use ids; it accepts only views"):
        MMCL()(*views, ids=torch.arange(5))
    with pytest.raises(ValueError, match=r"MMCL needs at least 2 view"):
        MMCL()(views[0])
    with pytest.raises(ValueError, match="same shape"):
        MMCL().duals(views[0], views[1][:4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_singular_gram_matrix_says_what_to_do(dtype: torch.dtype):
    views = random_views(2, 12, d=3, dtype=dtype)
    for objective in (
        MMCL("linear", ridge=0, solver="inverse"),
        MMCL("min", ridge=0, C=1.0, solver="inverse"),
    ):
        with pytest.raises(
            ValueError, match=r"plus ridge=0\.0 is not positive definite.* give a larger ridge"
        ):
            objective(*views)
    # The others need no inverse.
    for solver in ("exact", "pgd"):
        loss, log = MMCL("linear", ridge=0, C=1.0, solver=solver).with_log(*views)
        assert loss.isfinite()
        assert float(log["gap"]) < 1e-3 or solver == "pgd"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", ["collapsed", "repeated", "min"])
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_without_a_bound_are_refused(seed: int, case: str, dtype: torch.dtype):
    """Where an anchor coincides with a negative, nothing but a ridge or C holds the weight."""
    z = random_views(1, 40, d=2, dtype=dtype, seed=seed)[0].detach()
    if case == "min":
        z[[3, 7]] = -z[[3, 7]].abs()  # no positive part: one point for this kernel
    else:
        z = z[:1].repeat(40, 1) if case == "collapsed" else z[[0, 0, 1, 2]]
    kernel = "min" if case == "min" else "rbf"
    with pytest.raises(ValueError, match=r"no bound that torch\.float\d\d can tell from rounding"):
        MMCL(kernel, ridge=0)(z, z)
    assert MMCL(kernel, ridge=0.1)(z, z).isfinite()
    assert MMCL(kernel, ridge=0, C=2.0)(z, z).isfinite()


def test_samples_that_nearly_coincide_need_no_ridge():
    views = [z.detach() for z in random_views(2, 12, d=4)]
    views[0][5] = views[0][2] + 1e-3
    _, log = MMCL("linear", ridge=0).with_log(*views)
    assert float(log["gap"]) <= 1e-8
    assert float(MMCL("linear", ridge=0).duals(*views)[5, 2]) > 1e5


@pytest.mark.parametrize(("kernel", "n", "ridge", "c"), [("rbf", 60, 0, 1), ("linear", 40, 1e-3, 10)])
def test_exact_ends_and_is_certified_where_exchange_alone_would_not(
    kernel: str, n: int, ridge: float, c: float
):
    z = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    _, log = MMCL(kernel=kernel, ridge=ridge, C=c).with_log(z, z.flip(0))
    assert float(log["gap"]) <= 1e-4
    assert float(log["iterations"]) < 2000


def test_exact_warns_where_it_could_not_get_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("counterpoint.objectives.svm_exact.ROUNDS", 1)
    monkeypatch.setattr("counterpoint.objectives.svm_exact.exchange_is_cheap", lambda free: False)
    z = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    objective = MMCL(kernel="linear", ridge=1e-3, C=10, max_iterations=5)
    with pytest.warns(UserWarning, match=r"duals are not solved to tol=0\.0001 after 5 iterations"):
        objective(z, z.flip(0))


@pytest.mark.parametrize("options", [{"solver": "pgd", "ridge": 0}, {"ridge": 1e-6}, {"ridge": 0, "C": 1e30}])
def test_weights_that_only_rounding_bounds_are_refused(options: dict[str, Any]):
    z = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).repeat(10, 1)
    with pytest.raises(ValueError, match=r"no bound that torch\.float32 can tell from rounding"):
        MMCL(**options)(z, z)


@pytest.mark.parametrize(
    "views", [(None, torch.eye(2)), ([1.0], [2.0]), (torch.eye(2).numpy(), torch.eye(2))]
)
def test_views_that_are_no_tensors_are_refused(views: tuple[Any, Any]):
    with pytest.raises(ValueError, match=r"MMCL: view \d must be a tensor"):
        MMCL()(*views)


@pytest.mark.parametrize("value", ["a", 1, None, torch.ones(2)])
def test_symmetric_is_true_or_false(value: Any):
    with pytest.raises(ValueError, match="symmetric must be True or False"):
        MMCL(symmetric=value)
