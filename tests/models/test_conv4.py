"""Conv-4 against the same layers written by hand, and its fixed parts: counts, names, start."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterpoint.models.conv4 import Conv4

KEYS = [
    f"blocks.{block}.{part}"
    for block in range(4)
    for part in (
        "conv.weight",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    )
]


def twin(channels: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for c in channels:
        layers += [
            nn.Conv2d(before, c, 3, 1, 1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.AvgPool2d(2, 2),
        ]
        before = c
    layers[-1] = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten())


@pytest.mark.parametrize("size", [(16, 16), (32, 32), (33, 21), (64, 64)])
@pytest.mark.parametrize("multiplier", [1, 4])
def test_equals_a_hand_written_twin_with_gradients(size: tuple[int, int], multiplier: int) -> None:
    torch.manual_seed(0)
    network = Conv4(multiplier).double()
    plain = twin([8 * multiplier, 16 * multiplier, 32 * multiplier, 64 * multiplier]).double()
    plain.load_state_dict(dict(zip(plain.state_dict(), network.state_dict().values(), strict=True)))
    x = torch.randn(5, 3, *size, dtype=torch.float64)
    weights = torch.randn(5, 64 * multiplier, dtype=torch.float64)
    for mode in (True, False):
        network.train(mode)
        plain.train(mode)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        h, expected = network(ours), plain(theirs)
        assert_close(h, expected)
        (h * weights).sum().backward()
        (expected * weights).sum().backward()
        assert_close(ours.grad, theirs.grad)
        for p, q in zip(network.parameters(), plain.parameters(), strict=True):
            assert_close(p.grad, q.grad)
    assert_close(network.blocks[3].norm.running_var, plain[13].running_var)


# 27 c + 72 c^2 (1 2, 2 4, 4 8 channels) for the convolutions, 2 numbers per channel for the norms, c = 8.
@pytest.mark.parametrize(
    ("multiplier", "count"), [(1, 216 + 1152 + 4608 + 18432 + 240), (2, 97_680), (4, 388_896)]
)
def test_parameter_counts(multiplier: int, count: int) -> None:
    assert sum(p.numel() for p in Conv4(multiplier).parameters()) == count


def test_state_dict_names_stay() -> None:
    assert list(Conv4().state_dict()) == KEYS


def test_convolutions_start_with_the_spread_of_the_reference() -> None:
    torch.manual_seed(0)
    network = Conv4(4)
    for block, c_out in zip(network.blocks, (32, 64, 128, 256), strict=True):
        spread = (2 / (9 * c_out)) ** 0.5
        assert block.conv.weight.std().item() == pytest.approx(spread, rel=0.08)
        assert torch.equal(block.norm.weight, torch.ones(c_out))


def test_weights_and_gradients_keep_the_plain_layout() -> None:
    network = Conv4()
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.is_contiguous() for p in network.parameters())


@pytest.mark.parametrize("multiplier", [0, -1])
def test_refuses_a_multiplier_below_one(multiplier: int) -> None:
    with pytest.raises(ValueError, match=f"width_multiplier.*>= 1, got {multiplier}"):
        Conv4(multiplier)


def test_refuses_pictures_too_small_to_pool() -> None:
    assert Conv4()(torch.zeros(2, 3, 8, 8)).shape == (2, 64)
    with pytest.raises(ValueError, match=r"at least 8x8 pixels, got \(2, 3, 8, 7\)"):
        Conv4()(torch.zeros(2, 3, 8, 7))
