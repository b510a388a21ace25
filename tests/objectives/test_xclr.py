import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import random_views
from torch.nn.functional import normalize

from counterpoint.objectives import XCLR, xclr


@settings(deadline=None, max_examples=25)
@given(n=st.integers(2, 8), v=st.integers(1, 3), seed=st.integers(0, 1000))
def test_kl_is_never_below_0(n: int, v: int, seed: int):
    target = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    _, log = XCLR().with_log(*random_views(v, n, seed=seed), target=target)
    assert float(log["kl"]) >= -1e-12
    assert float(log["kl"]) == pytest.approx(float(log["loss"] - log["target_entropy"]), abs=1e-12)


@pytest.mark.parametrize("v", [1, 2, 3])
def test_kl_is_0_where_scores_and_target_differ_by_a_constant(v: int):
    z = random_views(1, 6)[0].detach()
    unit = normalize(z, dim=1)
    shift = torch.randn(6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    views = [z.clone().requires_grad_() for _ in range(v)]
    loss, log = XCLR(tau=0.2, tau_s=0.2).with_log(*views, target=unit @ unit.T + shift)
    assert float(log["kl"]) == pytest.approx(0, abs=1e-12)
    assert all(g.abs().max() < 1e-12 for g in torch.autograd.grad(loss, views))


def test_gradient_of_the_scores_is_p_minus_s():
    # So the gradient of the loss is that of sum((p - s) * scores) with p - s held fixed.
    n, tau, tau_s = 4, 0.3, 0.2
    target = torch.rand(n, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    views = random_views(2, n)
    (g0, g1) = torch.autograd.grad(xclr(*views, target=target, tau=tau, tau_s=tau_s), views)
    z = torch.cat([v.detach() for v in views]).requires_grad_()
    unit = normalize(z, dim=1)
    scores = (unit @ unit.T / tau).fill_diagonal_(-math.inf)
    s = (target / tau_s).repeat(2, 2).fill_diagonal_(-math.inf).softmax(1)
    slope = (scores.softmax(1) - s).detach() / (2 * n)
    (expected,) = torch.autograd.grad((slope * (unit @ unit.T / tau)).sum(), z)
    torch.testing.assert_close(torch.cat([g0, g1]), expected, rtol=1e-10, atol=1e-12)


def test_target_gets_no_gradient():
    target = torch.eye(4, requires_grad=True)
    xclr(*random_views(2, 4), target=target).backward()
    assert target.grad is None


def test_target_of_another_precision_is_taken_in_that_of_the_views():
    views = random_views(2, 4)
    target = torch.eye(4)
    assert xclr(*views, target=target.half()).dtype == torch.float64
    torch.testing.assert_close(xclr(*views, target=target.half()), xclr(*views, target=target))


def test_accuracy_counts_the_most_similar_samples():
    z = torch.eye(4)[[0, 0, 1, 2]]
    target = torch.eye(4) + torch.tensor([[0.0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    _, log = XCLR().with_log(z, z, target=target)
    assert float(log["accuracy"]) == 1


def test_log_of_a_collapsed_batch_is_chance():
    z = torch.ones(5, 2, dtype=torch.float64)
    loss, log = XCLR().with_log(z, z, target=torch.rand(5, 5))
    assert loss.item() == pytest.approx(math.log(9), rel=1e-12)
    assert float(log["chance"]) == pytest.approx(math.log(9))
    assert int(log["candidates"]) == 9


def test_one_view_of_one_sample_is_refused():
    with pytest.raises(ValueError, match="one view of 1 sample has nothing to be compared with"):
        xclr(torch.ones(1, 2), target=torch.eye(1))
