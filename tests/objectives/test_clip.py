import math

import pytest
import torch
from slow_objectives import random_views
from torch.nn.functional import cross_entropy, normalize

from counterpoint.objectives import CLIP, clip


@pytest.mark.parametrize("count", [1, 3])
def test_takes_exactly_two_views(count: int):
    with pytest.raises(ValueError, match=rf"exactly 2 views, .+ got {count}"):
        CLIP()(*random_views(count, 4))


def test_equals_the_published_pseudo_code():
    images, texts = random_views(2, 6)
    logits = normalize(images, dim=1) @ normalize(texts, dim=1).T / 0.07
    labels = torch.arange(6)
    expected = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
    torch.testing.assert_close(clip(images, texts), expected)


def test_collapsed_batch_is_ln_n():
    z = torch.ones(9, 2, dtype=torch.float64)
    assert clip(z, z).item() == pytest.approx(math.log(9), rel=1e-13)


def test_learnable_temperature_starts_at_tau():
    views = random_views(2, 5, dtype=torch.float32)
    learned = CLIP(tau=0.2, learnable=True)
    torch.testing.assert_close(learned(*views), clip(*views, tau=0.2))
    assert float(learned.with_log(*views)[1]["tau"]) == pytest.approx(0.2)
    assert [name for name, _ in learned.named_parameters()] == ["log_scale"]
    assert list(CLIP(tau=0.2).parameters()) == []


def test_gradient_of_the_temperature_is_right():
    views = [z.detach() for z in random_views(2, 5)]
    objective = CLIP(tau=0.2, learnable=True).double()

    def at(log_scale: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(objective, {"log_scale": log_scale}, tuple(views))

    start = objective.log_scale.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(at, start)


def test_start_may_not_be_below_the_least_temperature():
    with pytest.raises(ValueError, match=r"must start at min_tau=0\.01 or above, got 0\.001"):
        CLIP(tau=0.001, learnable=True)
    CLIP(tau=0.001)


def test_gradient_at_the_ceiling_only_points_inwards():
    agreeing, opposed = torch.eye(4), torch.eye(4).roll(1, dims=0)
    objective = CLIP(tau=0.01, learnable=True, min_tau=0.01)
    # The views agree: the loss would fall with a larger scale, which is not allowed.
    noisy = agreeing + 0.9 * opposed
    (outwards,) = torch.autograd.grad(objective(agreeing, noisy), objective.parameters())
    assert float(outwards) == 0
    # The views disagree: the loss falls with a smaller scale.
    (inwards,) = torch.autograd.grad(objective(agreeing, opposed), objective.parameters())
    assert float(inwards) > 0


def test_a_plain_loop_keeps_the_temperature_in_bounds_and_brings_it_back():
    objective = CLIP(tau=0.1, learnable=True, min_tau=0.05)
    optimiser = torch.optim.SGD(objective.parameters(), lr=5.0)

    def step(z0: torch.Tensor, z1: torch.Tensor) -> float:
        optimiser.zero_grad()
        loss, log = objective.with_log(z0, z1)
        loss.backward()
        optimiser.step()
        return float(log["tau"])

    agreeing, opposed = torch.eye(4), torch.eye(4).roll(1, dims=0)
    noisy = agreeing + 0.9 * opposed
    falling = [step(agreeing, noisy) for _ in range(50)]
    assert min(falling) == pytest.approx(0.05)
    assert falling[-1] == pytest.approx(0.05)
    assert step(agreeing, opposed) == pytest.approx(0.05)
    assert step(agreeing, opposed) > 0.06
