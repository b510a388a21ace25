"""ResNets for small pictures: published counts, and one block against the same layers written by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from counterpoint.models.small_resnet import BasicBlock, SmallResNet

CLASSIFIER = 64 * 10 + 10
SHORTCUTS = 16 * 32 + 32 * 64 + 2 * (32 + 64)  # 1x1 convolutions and their norms; zero padding has none


@pytest.mark.parametrize(
    ("depth", "published"),
    [(20, 269_722), (32, 464_154), (56, 853_018)],  # with zero-padded shortcuts and a 10-way classifier
)
def test_parameter_counts_are_the_published_ones(depth: int, published: int) -> None:
    count = sum(p.numel() for p in SmallResNet(depth).parameters())
    assert count == published - CLASSIFIER + SHORTCUTS


@pytest.mark.parametrize("size", [(16, 16), (32, 32), (33, 47)])
@pytest.mark.parametrize(("depth", "multiplier"), [(8, 1), (20, 1), (8, 2)])
def test_shapes(size: tuple[int, int], depth: int, multiplier: int) -> None:
    network = SmallResNet(depth, multiplier)
    assert network.width == 64 * multiplier
    assert network(torch.randn(2, 3, *size)).shape == (2, 64 * multiplier)


def test_depth_counts_the_layers_with_weights() -> None:
    for depth in (8, 20, 32, 56):
        convs = [
            m for m in SmallResNet(depth).modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)
        ]
        assert len(convs) == depth - 1  # the classifier is the last layer of the count


@pytest.mark.parametrize(("c_out", "stride"), [(4, 1), (8, 2)])
def test_block_equals_its_layers(c_out: int, stride: int) -> None:
    torch.manual_seed(0)
    block = BasicBlock(4, c_out, stride=stride).double()
    x = torch.randn(3, 4, 9, 9, dtype=torch.float64)

    def normed(x: torch.Tensor, part: nn.Module, stride: int, padding: int) -> torch.Tensor:
        x = F.conv2d(x, part.conv.weight, stride=stride, padding=padding)
        return (x - x.mean((0, 2, 3), keepdim=True)) / (
            x.var((0, 2, 3), unbiased=False, keepdim=True) + 1e-5
        ).sqrt()

    inner = normed(normed(x, block.first, stride, 1).clamp_min(0), block.second, 1, 1)
    around = x if stride == 1 else normed(x, block.shortcut, stride, 0)
    assert_close(block(x), (inner + around).clamp_min(0))


def test_feature_is_the_pooled_last_stage_and_extra_linear_comes_after_it() -> None:
    torch.manual_seed(0)
    network = SmallResNet(8, extra_linear=True).eval()
    x = torch.randn(2, 3, 32, 32)
    pooled = network.stages(network.stem(x)).mean((2, 3))
    assert_close(network(x), pooled @ network.linear.weight.T + network.linear.bias)
    plain = SmallResNet(8).eval()
    plain.load_state_dict({k: v for k, v in network.state_dict().items() if not k.startswith("linear")})
    assert_close(plain(x), pooled)


@pytest.mark.parametrize("depth", [2, 9, 18])
def test_refuses_other_depths(depth: int) -> None:
    with pytest.raises(ValueError, match=f"6m \\+ 2.*got {depth}"):
        SmallResNet(depth)


def test_refuses_a_multiplier_below_one() -> None:
    with pytest.raises(ValueError, match=r"width_multiplier.*got 0"):
        SmallResNet(8, 0)
