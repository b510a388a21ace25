import math

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import NTXent, ntxent


@pytest.mark.parametrize("n", [1, 2, 3, 17, 128])
@pytest.mark.parametrize("reduction", ["mean_log", "log_mean"])
def test_collapsed_batch_is_ln_of_2n_minus_1(n: int, reduction: str):
    row = torch.tensor([[0.3, -2.0, 1.0]], dtype=torch.float64)
    z = row.repeat(n, 1)
    value = ntxent(z, z, tau=0.07, reduction=reduction).item()
    assert value == pytest.approx(math.log(2 * n - 1), rel=1e-13, abs=1e-13)


def test_by_hand_on_the_circle():
    # Samples at 0 and 90 degrees, second views turned by 60 degrees: the four angles are 0, 90, 60, 150.
    angles = torch.deg2rad(torch.tensor([[0.0, 90.0], [60.0, 150.0]], dtype=torch.float64))
    z0, z1 = torch.stack([angles.cos(), angles.sin()], dim=2)
    cos = {turn: math.cos(math.radians(turn)) for turn in (30, 60, 90, 150)}

    def loss(positive: int, *others: int) -> float:
        return -cos[positive] + math.log(sum(math.exp(cos[turn]) for turn in (positive, *others)))

    expected = (loss(60, 90, 150) + loss(60, 90, 30) + loss(60, 30, 90) + loss(60, 150, 90)) / 4
    assert ntxent(z0, z1, tau=1.0).item() == pytest.approx(expected, rel=1e-12)


def test_log_mean_is_the_log_of_the_mean_probability():
    z0, z1 = random_views(2, 6)
    z = torch.nn.functional.normalize(torch.cat([z0, z1]), dim=1)
    logits = (z @ z.T / 0.5).exp().fill_diagonal_(0)
    p = logits[torch.arange(12), torch.arange(12).roll(6)] / logits.sum(1)
    torch.testing.assert_close(ntxent(z0, z1, reduction="log_mean"), -p.mean().log())
    torch.testing.assert_close(ntxent(z0, z1, reduction="mean_log"), -p.log().mean())


def test_duplicates_with_one_id_are_positives():
    z0, z1 = (z.detach()[[0, 1, 2, 0]] for z in random_views(2, 3))
    ids = torch.tensor([5, 6, 7, 5])
    _, log = NTXent(tau=0.05).with_log(z0, z0, ids=ids)
    assert float(log["accuracy"]) == 1
    assert ntxent(z0, z1, ids=ids).item() != pytest.approx(ntxent(z0, z1).item())


def test_log():
    z = torch.eye(4)
    _, log = NTXent(reduction="log_mean").with_log(z, z)
    assert int(log["candidates"]) == 7
    assert float(log["chance"]) == pytest.approx(math.log(7))
    assert float(log["accuracy"]) == 1
    assert float(log["target_entropy"]) == 0
    _, log = NTXent().with_log(z, z, z)
    assert float(log["target_entropy"]) == pytest.approx(math.log(2))
    assert float(log["kl"]) == pytest.approx(float(log["loss"]) - math.log(2))


def test_float32_is_near_float64_at_a_low_temperature():
    views = random_views(2, 64, d=16)
    views[1] = views[0] + 0.05 * views[1]
    exact = ntxent(*views, tau=0.01).item()
    assert ntxent(*[z.float() for z in views], tau=0.01).item() == pytest.approx(exact, rel=1e-4, abs=1e-6)
