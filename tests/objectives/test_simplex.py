import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import entmax15_by_bisection, nearest_on_simplex
from torch import Tensor

from counterpoint.objectives import entmax15, simplex, sparsemax

MAPS = {"sparsemax": (sparsemax, nearest_on_simplex), "entmax15": (entmax15, entmax15_by_bisection)}
EACH = pytest.mark.parametrize("name", MAPS)
QUICK = settings(deadline=None, max_examples=60)


def normal(r: int, c: int, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(r, c, generator=generator, dtype=torch.float64) * scale).to(dtype)


@EACH
@QUICK
@given(
    row=st.lists(st.floats(-50, 50), min_size=1, max_size=60),
    copies=st.integers(1, 8),
    scale=st.sampled_from([1e-3, 0.1, 1.0, 20.0]),
)
def test_equals_the_sorted_or_bisected_one(name: str, row: list[float], copies: int, scale: float):
    fast, slow = MAPS[name]
    x = torch.tensor(row * copies, dtype=torch.float64) * scale
    expected = torch.tensor(slow(x.tolist()), dtype=torch.float64)
    # Scores of a thousand have spacings of 1e-13 themselves.
    atol = 2e-13 + 1e-15 * float(x.abs().max())
    torch.testing.assert_close(fast(x), expected, rtol=0, atol=atol)


@EACH
@pytest.mark.parametrize("c", [255, 256, 287, 2000])
@pytest.mark.parametrize("few", [0.0, 1 / 8, 1.0])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_wide_rows(monkeypatch: pytest.MonkeyPatch, name: str, few: float, c: int, scale: float):
    monkeypatch.setattr(simplex, "FEW", few)  # all rows whole, as it comes, all gathered
    fast, slow = MAPS[name]
    x = normal(3, c, scale, seed=c)
    expected = torch.tensor([slow(row.tolist()) for row in x], dtype=torch.float64)
    torch.testing.assert_close(fast(x), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(fast(x.float()).double(), expected, rtol=0, atol=2e-7)
    assert ((fast(x.float()).sum(1) - 1).abs() < 1e-6).all()


def geometric(c: int) -> Tensor:
    """Gaps that grow from one to the next: a step of Newton's drops few candidates at a time."""
    return -torch.logspace(-6, 0.5, c, dtype=torch.float64)[None]


@EACH
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(1, 5000),
        torch.zeros(1, 1),
        torch.tensor([[3.0]]),
        torch.tensor([[0.0, -1.0, -2.0, -4.0]]),
        torch.tensor([[0.0, 0.0, 0.0, -1e-7]]),
        torch.cat([torch.ones(1, 1), torch.zeros(1, 4000)], 1),
        torch.cat([torch.zeros(1, 300), torch.full((1, 10), -math.inf)], 1),
        geometric(40),
        geometric(600),
        geometric(600).flip(1).float(),
    ],
    ids=lambda x: f"{tuple(x.shape)}",
)
def test_hard_rows(name: str, x: Tensor):
    fast, slow = MAPS[name]
    p = fast(x)
    expected = torch.tensor([slow(row) for row in x.double().tolist()])
    tolerance = 1e-14 if x.dtype == torch.float64 else 2e-7
    torch.testing.assert_close(p, expected.to(p), rtol=1e-6, atol=tolerance)
    assert p.sum().item() == pytest.approx(1, abs=2e-6)


@QUICK
@given(seed=st.integers(0, 10_000), c=st.integers(1, 12))
def test_sparsemax_is_the_nearest_point_of_the_simplex(seed: int, c: int):
    x = normal(1, c, 2.0, seed)
    p = sparsemax(x)
    others = torch.distributions.Dirichlet(torch.full((c,), 0.3, dtype=torch.float64)).sample((200,))
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-14)
    assert ((others - x).square().sum(1) >= (p - x).square().sum() - 1e-12).all()


@QUICK
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 5.0]))
def test_supports_are_nested(seed: int, scale: float):
    x = normal(4, 50, scale, seed)
    assert not ((sparsemax(x) > 0) & (entmax15(x) == 0)).any()


@EACH
def test_excluded_and_far_candidates_are_exactly_0_and_get_no_gradient(name: str):
    x = normal(20, 300, 2.0).masked_fill(normal(20, 300, seed=1) > 1, -math.inf).requires_grad_()
    p = MAPS[name][0](x)
    (gradient,) = torch.autograd.grad((p * normal(20, 300, seed=2)).sum(), x)
    assert (p[x.isinf()] == 0).all()
    assert (p == 0).sum() > 4000
    assert (gradient[p == 0] == 0).all()
    assert (gradient[p > 0] != 0).any()


@EACH
def test_gradcheck(name: str):
    x = normal(5, 9).requires_grad_()
    assert torch.autograd.gradcheck(MAPS[name][0], (x,))
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(MAPS[name][0](x).square().sum(), x, create_graph=True)


@EACH
def test_adding_a_constant_changes_nothing_and_large_scores_lose_no_digits(name: str):
    x = torch.tensor([[0.0, -0.25, -0.5, -3.0]])
    assert torch.equal(MAPS[name][0](x + 1024), MAPS[name][0](x))


@EACH
def test_leading_dimensions_and_precision(name: str):
    fast = MAPS[name][0]
    x = normal(6, 7)
    assert torch.equal(fast(x.reshape(2, 3, 7)), fast(x).reshape(2, 3, 7))
    assert torch.equal(fast(x[0]), fast(x[:1])[0])
    for dtype in (torch.float16, torch.bfloat16):
        assert fast(x.to(dtype)).dtype == torch.float32
        assert torch.equal(fast(x.to(dtype)), fast(x.to(dtype).float()))


@EACH
def test_nan_stays_in_its_row_and_ends(name: str):
    x = normal(3, 400)
    x[1, 7] = math.nan
    p = MAPS[name][0](x)
    assert p[1].isnan().all()
    torch.testing.assert_close(p[[0, 2]], MAPS[name][0](x[[0, 2]]), rtol=1e-14, atol=1e-15)


@EACH
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("block", [1, 900, 10**6])
def test_blocks_and_unread_steps_change_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, block: int, steps: int
):
    x = normal(7, 300, 0.3)
    expected = MAPS[name][0](x)
    monkeypatch.setitem(simplex.BLOCK, "cpu", block)
    monkeypatch.setitem(simplex.STEPS_UNREAD, "cpu", steps)
    torch.testing.assert_close(MAPS[name][0](x), expected, rtol=1e-13, atol=1e-15)
    assert sum(len(x[rows]) for rows in simplex.row_blocks(x)) == 7


NO_SCORES = [
    torch.zeros(2, 3, dtype=torch.int64),
    torch.zeros(2, 0),
    torch.tensor(1.0),
    np.zeros((2, 3)),
    torch.eye(3).to_sparse(),
    [1.0, 2.0],
    None,
]


@EACH
@pytest.mark.parametrize("x", NO_SCORES, ids=lambda x: type(x).__name__)
def test_bad_scores_are_refused(name: str, x: Tensor):
    with pytest.raises(ValueError, match=r"scores must be floating \(\.\.\., c\) with c >= 1, got"):
        MAPS[name][0](x)


@EACH
@pytest.mark.parametrize("c", [3, 400])
@pytest.mark.parametrize("worst", [-math.inf, math.inf])
def test_rows_without_a_largest_score_are_refused(name: str, c: int, worst: float):
    x = torch.zeros(2, 2, c)
    x[1, 0] = -math.inf
    x[1, 0, 1] = worst
    with pytest.raises(ValueError, match=f"one finite score in every row.* got {worst} .* of row 2"):
        MAPS[name][0](x)


@EACH
@pytest.mark.parametrize("c", [3, 400])
def test_nan_makes_its_row_nan_and_no_rows_give_none(name: str, c: int):
    x = torch.zeros(2, c)
    x[1, 1] = math.nan
    assert MAPS[name][0](x).isnan().all(1).tolist() == [False, True]
    assert MAPS[name][0](x[:0]).shape == (0, c)


def test_a_threshold_takes_few_steps(monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []

    def counted(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(x.shape[1])
        return step(x, t)

    for name in ("_sparsemax_step", "_entmax15_step"):
        step = getattr(simplex, name)
        for scale in (0.01, 0.1, 1.0):
            taken.clear()
            simplex._fit(normal(64, 4096, scale), counted, lambda p: p.sum(1), 1.0)
            assert len(taken) <= 16
            # After the first guess from 64 maxima, only those that may be in the support are looked at.
            assert 4096 not in taken or scale == 0.01
