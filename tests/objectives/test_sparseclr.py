import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import random_views
from torch import Tensor

from counterpoint.objectives import NTXent, SparseCLR, clip, infonce, ntxent, sparseclr, xclr

QUICK = settings(deadline=None, max_examples=25)


def released(z0: Tensor, z1: Tensor) -> Tensor:
    """The released loss in words of our own: rows interleaved, positive lowered by 1, support held fixed."""
    z = torch.stack([z0, z1], 1).flatten(0, 1)
    z = z / z.norm(dim=1, keepdim=True)
    losses = []
    for i in range(len(z)):
        partner = i ^ 1
        others = [j for j in range(len(z)) if j != i]
        logits = torch.stack([z[i] @ z[j] - (1 if j == partner else 0) for j in others])
        ordered = sorted(logits.tolist(), reverse=True)
        size = max(k for k in range(1, len(ordered) + 1) if 1 + k * ordered[k - 1] > sum(ordered[:k]))
        inside = logits[logits >= ordered[size - 1]]
        threshold = (inside.sum() - 1) / size
        losses.append((inside**2 - threshold**2).sum() / 2 - logits[others.index(partner)] + 0.5)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_is_the_released_loss(n: int):
    views = random_views(2, n, seed=n)
    ours = sparseclr(*views, tau=1.0, margin=1.0, layout="all_views")
    theirs = released(*views)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(
        torch.autograd.grad(ours, views), torch.autograd.grad(theirs, views), rtol=1e-9, atol=1e-12
    )
    assert torch.equal(SparseCLR()(*views), ours)


def test_by_hand():
    # Inter-view cosines [[0.8, 0], [0.6, 1]]. Rows of z0: lead 0.8 and 0.4; rows of z1: 0.2 and 1.
    z0, z1 = torch.eye(2), torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    # A lead g below 1 leaves p = (1 + g)/2, (1 - g)/2 and the loss (1 - g)^2 / 4.
    expected = sum((1 - g) ** 2 / 4 for g in (0.8, 0.4, 0.2, 1.0)) / 4
    assert sparseclr(z0, z1, margin=0, layout="inter_view").item() == pytest.approx(expected, abs=1e-6)
    _, log = SparseCLR(margin=0, layout="inter_view").with_log(z0, z1)
    assert float(log["support"]) == 7 / 4
    assert int(log["candidates"]) == 2
    # With a margin of 2 every lead is below -1: all the mass is on the negative.
    below = sparseclr(z0, z1, margin=2.5, layout="inter_view").item()
    assert below == pytest.approx(sum(2.5 - g for g in (0.8, 0.4, 0.2, 1.0)) / 4, abs=1e-6)


@pytest.mark.parametrize("layout", ["all_views", "inter_view"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_zero_exactly_where_every_positive_leads_by_1_and_the_margin(layout: str, margin: float):
    z = torch.eye(4, dtype=torch.float64)
    exact = 1 / (1 + margin)  # cosines 1 and 0, so the lead over tau is 1 + margin
    assert sparseclr(z, z, tau=exact, margin=margin, layout=layout).item() == 0
    assert sparseclr(z, z, tau=exact * 1.05, margin=margin, layout=layout).item() > 0


@pytest.mark.parametrize("layout", ["all_views", "inter_view"])
@pytest.mark.parametrize(("n", "margin"), [(2, 1.0), (5, 1.0), (32, 0.05), (5, 0.0)])
def test_collapsed_batch_and_chance(layout: str, n: int, margin: float):
    z = torch.ones(n, 3, dtype=torch.float64)
    loss, log = SparseCLR(margin=margin, layout=layout).with_log(z, z)
    c = int(log["candidates"])
    expected = margin + (1 - 1 / (c - 1)) / 2 if margin >= 1 / (c - 1) else (1 - 1 / c) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert float(log["chance"]) == pytest.approx(expected, abs=1e-12)
    # Cosines of 0 are as much at chance.
    _, log = SparseCLR(margin=margin, layout=layout).with_log(z, 0 * z + torch.eye(n, 3, dtype=z.dtype))
    assert float(log["chance"]) == pytest.approx(expected, abs=1e-12)


@QUICK
@given(n=st.integers(2, 8), v=st.integers(2, 4), seed=st.integers(0, 9999))
def test_without_a_margin_it_is_a_cell_of_the_table(n: int, v: int, seed: int):
    views = random_views(v, n, seed=seed)
    tau = 0.3
    assert torch.equal(sparseclr(*views, tau=tau, margin=0), ntxent(*views, tau=tau, map="sparsemax"))
    target = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    soft = sparseclr(*views, tau=tau, margin=0, target=target, tau_s=0.4)
    assert torch.equal(soft, xclr(*views, target=target, tau=tau, tau_s=0.4, map="sparsemax"))
    inter = sparseclr(*views[:2], tau=tau, margin=0, layout="inter_view")
    torch.testing.assert_close(inter, clip(*views[:2], tau=tau, map="sparsemax"), rtol=1e-12, atol=1e-14)


def test_one_direction_of_the_paper():
    z0, z1 = (z.detach() for z in random_views(2, 6))
    scores = torch.nn.functional.normalize(z0, dim=1) @ torch.nn.functional.normalize(z1, dim=1).T
    p = torch.stack([(row - threshold(row)).relu() for row in scores])
    torch.testing.assert_close(p.sum(1), torch.ones(6, dtype=torch.float64))
    costs, t = -scores, torch.stack([threshold(row) for row in scores])
    inside = p > 0
    paper = (costs.diagonal() + (inside * (costs**2 - t[:, None] ** 2)).sum(1) / 2 + 0.5).sum()
    assert 6 * infonce(z0, z1, tau=1.0, map="sparsemax").item() == pytest.approx(paper.item(), rel=1e-12)


def threshold(row: Tensor) -> Tensor:
    low, high = row.max() - 1, row.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (row - middle).relu().sum() > 1 else (low, middle)
    return low


@QUICK
@given(n=st.integers(2, 8), seed=st.integers(0, 9999), margin=st.sampled_from([0.0, 0.5, 1.0]))
def test_more_margin_is_never_less_loss(n: int, seed: int, margin: float):
    views = random_views(2, n, seed=seed)
    assert sparseclr(*views, margin=margin).item() <= sparseclr(*views, margin=margin + 0.3).item() + 1e-12


def test_a_sharp_target_is_the_hard_one_with_the_same_margin():
    views = random_views(3, 5)
    for layout in ("all_views", "inter_view"):
        soft = sparseclr(*views, target=torch.eye(5, dtype=torch.float64), tau_s=1e-3, layout=layout)
        torch.testing.assert_close(soft, sparseclr(*views, layout=layout), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", ["all_views", "inter_view"])
def test_a_target_far_from_0_over_a_small_tau_s_stays_in_the_range_of_numbers(layout: str):
    views = random_views(2, 4, dtype=torch.float32)
    target = 1e10 * torch.eye(4) - 1e10
    sharp = sparseclr(*views, target=target, tau_s=1e-30, layout=layout)
    torch.testing.assert_close(sharp, sparseclr(*views, layout=layout))
    torch.testing.assert_close(sparseclr(*views, target=target + 2e10, tau_s=1e-30, layout=layout), sharp)


def test_duplicates_with_one_id_are_positives():
    z = torch.eye(3)[[0, 1, 2, 0]]
    ids = torch.tensor([5, 6, 7, 5])
    _, log = SparseCLR(tau=0.25).with_log(z, z, ids=ids)
    assert float(log["accuracy"]) == 1
    assert float(log["kl"]) == pytest.approx(0, abs=1e-6)
    assert float(log["support"]) == pytest.approx((4 * 3 + 4 * 1) / 8)
    assert sparseclr(z, z, tau=0.25).item() > 0.5


def test_support_is_that_of_the_lowered_scores():
    z = torch.eye(4)
    assert float(SparseCLR(margin=0).with_log(z, z)[1]["support"]) == 1
    assert float(SparseCLR(margin=1).with_log(z, z)[1]["support"]) == 7
    assert "support" not in NTXent().with_log(z, z)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tau": 0}, "tau must be a finite number above 0, got 0"),
        ({"margin": -0.1}, "margin must be 0 or a number from 1e-30 to 1e30, got -0.1"),
        ({"margin": math.nan}, "margin must be 0 or"),
        ({"layout": "both"}, "layout must be one of all_views, inter_view, got 'both'"),
        ({"tau_s": -1}, "tau_s must be"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, float | str], words: str):
    with pytest.raises(ValueError, match=words):
        SparseCLR(**arguments)
    with pytest.raises(ValueError, match=words):
        sparseclr(torch.eye(3), torch.eye(3), **arguments)


def test_target_and_ids_together_are_refused():
    z = torch.eye(3)
    with pytest.raises(ValueError, match="SparseCLR takes target or ids, not both"):
        SparseCLR()(z, z, target=torch.eye(3), ids=torch.arange(3))
    with pytest.raises(ValueError, match=r"target must be a floating tensor of shape \(3, 3\)"):
        SparseCLR()(z, z, target=torch.eye(4))
    with pytest.raises(ValueError, match="needs at least 2 view"):
        SparseCLR()(z)
