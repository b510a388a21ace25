"""The momentum encoder against the average written out in float64."""

import copy

import pytest
import torch
from torch import nn

from counterpoint.models.encoder import build_encoder
from counterpoint.models.momentum import MomentumEncoder


def moved(encoder, seed):
    """The encoder with other weights and other running moments."""
    other = copy.deepcopy(encoder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator))
            else:
                tensor.add_(1)
    return other


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_weights_are_averaged_and_buffers_copied(schedule):
    encoder = build_encoder("conv4", head=(8,), seed=0)
    follower = MomentumEncoder(encoder, rate=0.9, schedule=schedule)
    slow = {name: weight.detach().double() for name, weight in encoder.named_parameters()}
    for step in range(1, 6):
        encoder = moved(encoder, step)
        rate = follower.rate_at(step, 5)
        for name, weight in encoder.named_parameters():
            slow[name] = rate * slow[name] + (1 - rate) * weight.detach().double()
        follower.update(encoder, step, 5)
        for name, weight in follower.average.named_parameters():
            torch.testing.assert_close(weight.double(), slow[name], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(follower.average.buffers(), encoder.buffers(), strict=True):
            assert torch.equal(ours, theirs)
    assert follower.rate_at(5, 5) == (0.9 if schedule == "constant" else 1)


def test_rates_at_the_ends():
    encoder = build_encoder("conv4", head=(8,), seed=0)
    still, quick = MomentumEncoder(encoder, rate=1), MomentumEncoder(encoder, rate=0)
    other = moved(encoder, 1)
    for follower, wanted in ((still, encoder), (quick, other)):
        follower.update(other, 1, 10)
        assert all(
            torch.equal(a, b) for a, b in zip(follower.average.parameters(), wanted.parameters(), strict=True)
        )


def test_a_bfloat16_encoder_is_averaged_in_float32():
    encoder = nn.Linear(1, 1, bias=False).bfloat16()
    encoder.weight.data.fill_(1.0)
    follower = MomentumEncoder(encoder, rate=0.999)
    encoder.weight.data.fill_(2.0)
    for step in range(100):
        follower.update(encoder, step, 100)
    # In bfloat16 1.0 + 0.001 is 1.0, and the copy would never move.
    assert float(follower.average.weight) == pytest.approx(2 - 0.999**100, rel=1e-4)


def test_no_gradient_goes_through_and_the_encoder_is_its_own():
    encoder = build_encoder("conv4", head=(8,), seed=0)
    follower = MomentumEncoder(encoder)
    _, z = follower(torch.randn(2, 3, 16, 16))
    assert not z.requires_grad
    assert not any(weight.requires_grad for weight in follower.parameters())
    assert all(weight.requires_grad for weight in encoder.parameters())
    ours = {weight.data_ptr() for weight in follower.parameters()}
    assert not ours & {weight.data_ptr() for weight in encoder.parameters()}


@pytest.mark.parametrize("rate", [-0.1, 1.01, float("nan"), True, "0.9"])
def test_a_rate_outside_is_refused(rate):
    with pytest.raises(ValueError, match=r"must be within \[0, 1\], got"):
        MomentumEncoder(nn.Identity(), rate=rate)


def test_other_mistakes_are_refused():
    with pytest.raises(ValueError, match="schedule must be one of constant, cosine, got 'linear'"):
        MomentumEncoder(nn.Identity(), schedule="linear")
    with pytest.raises(ValueError, match="not the encoder that was copied: only one of them has 'bias'"):
        MomentumEncoder(nn.Linear(1, 1)).update(nn.Linear(1, 1, bias=False), 1, 2)
    with pytest.raises(ValueError, match=r"its 'weight' was \(2, 3\), not \(2, 1\)"):
        MomentumEncoder(nn.Linear(3, 2)).update(nn.Linear(1, 2), 1, 2)
    for step, total in ((1, 0), (-1, 5)):
        with pytest.raises(ValueError, match=f"got step={step} of total={total}"):
            MomentumEncoder(nn.Identity(), schedule="cosine").update(nn.Identity(), step, total)
