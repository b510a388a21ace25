import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from slow_objectives import random_views
from torch import Tensor
from torch.nn.functional import normalize

from counterpoint.objectives import (
    StructuredAssignment,
    Triplet,
    clip,
    infonce,
    structured_assignment,
    triplet,
)
from counterpoint.objectives.structured_assignment import best_matching

QUICK = settings(deadline=None, max_examples=40)
SIZE, SEED = st.integers(1, 7), st.integers(0, 99_999)
MARGIN = st.sampled_from([0.0, 0.1, 0.5])


def near_views(n: int, seed: int, noise: float = 0.5) -> list[Tensor]:
    """Two views near enough that the true matching is a best one now and then."""
    a, b = random_views(2, n, d=4, seed=seed)
    return [a.detach().requires_grad_(), (a + noise * b).detach().requires_grad_()]


def costs(a: Tensor, b: Tensor, margin: float = 0.0) -> Tensor:
    return 1 - normalize(a, dim=1) @ normalize(b, dim=1).T + margin * torch.eye(len(a), dtype=a.dtype)


def by_enumeration(a: Tensor, b: Tensor, margin: float) -> tuple[float, list[tuple[int, ...]]]:
    """The loss over all n! matchings, and those that cost least."""
    cost = costs(a, b, margin).detach()
    n = len(a)
    every = torch.tensor(list(permutations(range(n))))
    totals = cost[torch.arange(n), every].sum(1)
    least = totals.min()
    best = every[totals <= least + 1e-12]
    return float((cost.trace() - least) / n), [tuple(p) for p in best.tolist()]


@QUICK
@given(n=SIZE, seed=SEED, margin=MARGIN, noise=st.sampled_from([0.1, 0.5, 3.0]))
def test_one_to_one_equals_enumeration(n: int, seed: int, margin: float, noise: float):
    a, b = near_views(n, seed, noise)
    loss = structured_assignment(a, b, mining="one_to_one", margin=margin)
    expected, best = by_enumeration(a, b, margin)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    # Zero exactly where the true matching is a best one.
    assert (loss.item() == 0) == (tuple(range(n)) in best)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.0, 0.2, 3.0, 1e4])
@pytest.mark.parametrize("noise", [0.05, 0.7, 1e6])
def test_best_matching_costs_what_scipy_finds_on_the_costs_as_they_are(
    dtype: torch.dtype, margin: float, noise: float
):
    a, b = (normalize(z.detach().to(dtype), dim=1) for z in near_views(120, 3, noise))
    a[7] = a[8]
    cost = costs(a.double(), b.double(), margin)
    rows = torch.arange(120)
    total = cost[rows, best_matching(a, b, margin)].sum()
    least = cost[linear_sum_assignment(cost.numpy())].sum()
    assert float(total - least) == pytest.approx(0, abs=1e-12 if dtype == torch.float64 else 1e-5)


def test_best_matching_under_autocast():
    a, b = (normalize(z.detach().float(), dim=1) for z in near_views(60, 3, 0.7))
    with torch.autocast("cpu", dtype=torch.float16):
        # e^50, which a pair of cosine 1 weighs, is beyond half precision.
        found = best_matching(a, b)
    assert found.equal(best_matching(a, b))


def test_enumeration_meets_both_cases():
    found = {tuple(range(5)) in by_enumeration(*near_views(5, seed), 0.1)[1] for seed in range(20)}
    assert found == {True, False}


@QUICK
@given(n=SIZE, seed=SEED, margin=MARGIN)
def test_one_to_one_is_never_above_batch_hard(n: int, seed: int, margin: float):
    a, b = near_views(n, seed)
    hard = structured_assignment(a, b, margin=margin).item()
    assert 0 <= structured_assignment(a, b, mining="one_to_one", margin=margin).item() <= hard + 1e-12


@QUICK
@given(n=SIZE, v=st.integers(2, 4), seed=SEED, margin=st.sampled_from([0.05, 0.2, 1.0]))
def test_batch_hard_with_a_margin_is_triplet(n: int, v: int, seed: int, margin: float):
    views = random_views(v, n, seed=seed)
    ours, theirs = structured_assignment(*views, margin=margin), triplet(*views, margin=margin)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(ours, views), torch.autograd.grad(theirs, views))
    _, log = StructuredAssignment(margin=margin).with_log(*views)
    _, expected = Triplet(margin=margin).with_log(*views)
    torch.testing.assert_close(log, expected, check_dtype=False)


def test_batch_hard_is_its_formula():
    a, b = random_views(2, 6)
    s = costs(a, b)
    rows = (s.diagonal() - s.amin(1)).sum()
    columns = (s.diagonal() - s.amin(0)).sum()
    expected = (rows + columns) / 12
    torch.testing.assert_close(structured_assignment(a, b, margin=0), expected, rtol=1e-12, atol=0)


@QUICK
@given(n=SIZE, seed=SEED, tau=st.sampled_from([0.05, 0.5, 2.0]))
def test_smoothed_rows_are_tau_n_infonce(n: int, seed: int, tau: float):
    a, b = random_views(2, n, seed=seed)
    s = costs(a, b)
    # The sum over the n rows of one direction, as the paper writes it.
    one_way = s.trace() + tau * torch.logsumexp(-s / tau, 1).sum()
    torch.testing.assert_close(one_way, tau * n * infonce(a, b, tau=tau), rtol=1e-10, atol=1e-12)
    smoothed = structured_assignment(a, b, margin=0, smoothing=tau)
    both = tau * n * (infonce(a, b, tau=tau) + infonce(b, a, tau=tau))
    torch.testing.assert_close(2 * n * smoothed, both, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(smoothed, tau * clip(a, b, tau=tau), rtol=1e-10, atol=1e-12)


def test_smoothing_to_0_is_batch_hard_and_never_below_it():
    a, b = random_views(2, 6)
    hard = structured_assignment(a, b, margin=0.3)
    for smoothing in (1.0, 0.1, 1e-3, 1e-5):
        smooth = structured_assignment(a, b, margin=0.3, smoothing=smoothing)
        assert smooth.item() >= hard.item()
    assert smooth.item() == pytest.approx(hard.item(), abs=1e-4)


@QUICK
@given(n=st.integers(2, 6), seed=SEED, margin=MARGIN)
def test_subgradient(n: int, seed: int, margin: float):
    # Convex in the scores: the loss elsewhere is never below the tangent. And it is (Y_true - Y_best) / n.
    a, b = near_views(n, seed)
    partner = best_matching(normalize(a, dim=1), normalize(b, dim=1), margin)
    moved = torch.zeros(n, n, dtype=torch.float64)
    moved[torch.arange(n), partner] = 1
    slope = (torch.eye(n, dtype=torch.float64) - moved) / n
    loss = structured_assignment(a, b, mining="one_to_one", margin=margin)
    expected = torch.autograd.grad((slope * costs(a, b)).sum(), (a, b))
    torch.testing.assert_close(torch.autograd.grad(loss, (a, b)), expected, rtol=1e-9, atol=1e-12)
    c, d = near_views(n, seed + 1)
    other = structured_assignment(c, d, mining="one_to_one", margin=margin)
    tangent = loss + (slope * (costs(c, d) - costs(a, b))).sum()
    assert other.item() >= tangent.item() - 1e-10


@pytest.mark.parametrize("mining", ["batch_hard", "one_to_one"])
def test_gradcheck_away_from_ties(mining: str):
    views = random_views(3, 4, seed=6)
    assert torch.autograd.gradcheck(lambda *z: structured_assignment(*z, mining=mining, margin=0.3), views)


@pytest.mark.parametrize("mining", ["batch_hard", "one_to_one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_collapsed_batch_is_the_margin(mining: str, dtype: torch.dtype):
    z = torch.full((6, 3), 0.7, dtype=dtype, requires_grad=True)
    loss = structured_assignment(z, z, mining=mining, margin=0.3)
    loss.backward()
    assert loss.item() == pytest.approx(0.3, abs=1e-6)
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("mining", ["batch_hard", "one_to_one"])
def test_one_sample_is_0(mining: str):
    views = random_views(2, 1)
    loss, log = StructuredAssignment(mining=mining).with_log(*views)
    loss.backward()
    assert loss.item() == 0
    assert float(log["active"]) == 0
    assert all((z.grad == 0).all() for z in views)


def test_repeated_samples_tie_and_cost_nothing_without_a_margin():
    z = torch.nn.functional.normalize(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    z = z[[0, 1, 0, 2, 1, 3]]
    assert structured_assignment(z, z, mining="one_to_one", margin=0).item() == pytest.approx(0, abs=1e-6)
    assert structured_assignment(z, z, mining="one_to_one", margin=0).item() >= 0


def test_a_taken_candidate_is_no_rival():
    # Anchor 1 is nearest to b0, which anchor 0 needs more: row by row that costs, as a matching it does not.
    a = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    b = torch.tensor([[1.0, 0.0], [0.28, 0.96]])
    assert structured_assignment(a, b, margin=0.1, mining="one_to_one").item() == 0
    a = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    b = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    hard, log = StructuredAssignment(margin=0.3).with_log(a, b)
    whole, log_one = StructuredAssignment(margin=0.3, mining="one_to_one").with_log(a, b)
    assert whole.item() < hard.item()
    assert set(log) == set(log_one) == {"loss", "active", "accuracy", "candidates"}


def test_three_views_are_averaged_over_pairs():
    x, y, z = random_views(3, 5)
    pairs = [structured_assignment(p, q, mining="one_to_one") for p, q in ((x, y), (x, z), (y, z))]
    torch.testing.assert_close(structured_assignment(x, y, z, mining="one_to_one"), torch.stack(pairs).mean())


def test_active_is_the_share_that_is_paired_with_another():
    z = torch.eye(4)
    swapped = z[[1, 0, 2, 3]]
    loss, log = StructuredAssignment(mining="one_to_one", margin=0).with_log(z, swapped)
    assert loss.item() == pytest.approx(0.5)
    assert float(log["active"]) == 0.5
    assert float(log["accuracy"]) == 0.5


def test_none_is_moved_where_another_matching_is_only_as_good():
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        z = normalize(torch.randn(30, 3, generator=g), dim=1)[torch.randint(30, (60,), generator=g)]
        loss, log = StructuredAssignment(mining="one_to_one", margin=0).with_log(z, z)
        assert (float(loss), float(log["active"])) == (0, 0)


def test_nan_gives_nan_and_not_an_error():
    z = torch.eye(3)
    bad = z.clone()
    bad[1, 1] = math.nan
    for mining in ("batch_hard", "one_to_one"):
        assert structured_assignment(z, bad, mining=mining).isnan()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mining": "hungarian"}, "mining must be one of batch_hard, one_to_one, got 'hungarian'"),
        ({"margin": -1}, "margin must be 0 or"),
        ({"smoothing": 0}, "smoothing must be a finite number above 0, got 0"),
        ({"mining": "one_to_one", "smoothing": 0.1}, "logarithm of a permanent.*got smoothing=0.1"),
        ({"margin": 1e20, "smoothing": 1e-30}, r"at most 1e30 times smoothing, got 1e\+20 and 1e-30"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, float | str], words: str):
    with pytest.raises(ValueError, match=words):
        StructuredAssignment(**arguments)
    with pytest.raises(ValueError, match=words):
        structured_assignment(torch.eye(3), torch.eye(3), **arguments)


def test_sets_of_different_size_and_ids_are_refused():
    with pytest.raises(
        ValueError, match=r"all views must have the same shape \(n, d\), got \(3, 3\), \(2, 3\)"
    ):
        StructuredAssignment(mining="one_to_one")(torch.eye(3), torch.eye(3)[:2])
    with pytest.raises(ValueError, match="StructuredAssignment does not use ids; it accepts only views"):
        StructuredAssignment()(torch.eye(3), torch.eye(3), ids=torch.arange(3))
