import math

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import NTLogistic, ntlogistic


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_by_hand():
    # Cosines: positives 0.8 and 1; the four views have the negatives below.
    z0, z1 = torch.eye(2), torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    pull = (softplus(-0.8 / 0.5) + softplus(-1 / 0.5)) / 2
    negatives = [(0.0, 0.0), (0.0, 0.6), (0.6, 0.6), (0.0, 0.6)]
    push = sum((softplus(a / 0.5) + softplus(b / 0.5)) / 2 for a, b in negatives) / 4
    assert ntlogistic(z0, z1, tau=0.5).item() == pytest.approx(pull + push, abs=1e-6)


def test_two_samples_are_the_table_of_the_paper():
    # Two samples: each view has one positive and two negatives, which count half.
    views = random_views(2, 2)
    u, v = (torch.nn.functional.normalize(z, dim=1) for z in views)
    loss = ntlogistic(*views, tau=0.3)
    rows = []
    z = torch.cat([u, v])
    for i, (positive, *negatives) in enumerate([(2, 1, 3), (3, 0, 2), (0, 1, 3), (1, 0, 2)]):
        rows.append(-torch.sigmoid(z[i] @ z[positive] / 0.3).log())
        rows += [-torch.sigmoid(-(z[i] @ z[j]) / 0.3).log() / 2 for j in negatives]
    torch.testing.assert_close(loss, torch.stack(rows).sum() / 4, rtol=1e-12, atol=0)


@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_collapsed_batch(tau: float):
    z = torch.ones(5, 3, dtype=torch.float64)
    expected = math.log1p(math.exp(-1 / tau)) + 1 / tau + math.log1p(math.exp(-1 / tau))
    assert ntlogistic(z, z, tau=tau).item() == pytest.approx(expected, rel=1e-12)


def test_the_size_of_the_batch_does_not_shift_the_balance():
    # Cosines of 0 everywhere: as much pull as push, at any n.
    for n in (2, 7, 40):
        z = torch.zeros(n, 3, dtype=torch.float64)
        assert ntlogistic(z, z).item() == pytest.approx(2 * math.log(2), rel=1e-12)


def test_one_sample_has_only_its_positive():
    views = random_views(2, 1)
    u, v = (torch.nn.functional.normalize(z, dim=1)[0] for z in views)
    expected = -torch.sigmoid(u @ v / 0.5).log()
    torch.testing.assert_close(ntlogistic(*views), expected, rtol=1e-12, atol=0)


def test_all_of_one_id_have_only_positives():
    z = torch.eye(3, dtype=torch.float64, requires_grad=True)
    loss = ntlogistic(z, z, ids=torch.zeros(3, dtype=torch.int64), tau=1.0)
    loss.backward()
    assert loss.item() == pytest.approx((softplus(-1.0) + 4 * softplus(0.0)) / 5, rel=1e-12)
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("tau", [1e-3, 1e-6])
def test_a_low_temperature_does_not_overflow(tau: float):
    views = [z.float().detach().requires_grad_() for z in random_views(2, 6)]
    loss = ntlogistic(*views, tau=tau)
    loss.backward()
    assert loss.isfinite()
    assert all(z.grad.isfinite().all() for z in views)


def test_log_and_bad_arguments():
    z = torch.eye(4)
    _, log = NTLogistic().with_log(z, z)
    assert set(log) == {"loss", "accuracy", "candidates"}
    assert float(log["accuracy"]) == 1
    assert int(log["candidates"]) == 7
    with pytest.raises(ValueError, match="tau must be a finite number above 0, got -1"):
        NTLogistic(tau=-1)
