"""ResNets for small pictures: 6m + 2 layers in three stages of 16, 32 and 64 channels.

A 3x3 stride-1 stem, then three stages of m basic blocks; the second and third halve the picture. Global
average pooling gives a 64-d feature. Where the size changes the shortcut is a strided 1x1 convolution with
batch norm, as in the code base of the relational-reasoning and QARe experiments; He et al. pad with zeros
there ("option A"), which has 2752 parameters fewer.

Sources: He et al., Deep Residual Learning for Image Recognition (2016), section 4.2; Patacchiola and Storkey,
Self-Supervised Relational Reasoning for Representation Learning (2020).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = (16, 32, 64)


class SmallResNet(nn.Module):
    """Pictures `(n, 3, h, w)` of any size to features `(n, width)`.

    depth: 8, 20, 32, 56, or any other 6m + 2.
    width_multiplier: factor on all channel counts; 1 is the paper's network (64-d features).
    extra_linear: a linear map from the pooled feature to a feature of the same width, as QARe's variants
        carry.

    Raises ValueError on a depth that is not 6m + 2 and on a multiplier below 1.

    >>> import torch
    >>> network = SmallResNet(8)
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """

    def __init__(self, depth: int, width_multiplier: int = 1, extra_linear: bool = False) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6m + 2 with m >= 1 (8, 14, 20, 26, 32, ...), got {depth}")
        if width_multiplier < 1:
            raise ValueError(f"width_multiplier must be a whole number >= 1, got {width_multiplier}")
        channels = [c * width_multiplier for c in CHANNELS]
        self.width = channels[-1]
        self.stem = nn.Sequential(_conv_norm(3, channels[0]), nn.ReLU(inplace=True))
        stages = []
        c_in = channels[0]
        for stage, c_out in enumerate(channels):
            first = BasicBlock(c_in, c_out, stride=1 if stage == 0 else 2)
            stages.append(
                nn.Sequential(first, *(BasicBlock(c_out, c_out) for _ in range((depth - 2) // 6 - 1)))
            )
            c_in = c_out
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(self.width, self.width) if extra_linear else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.stages(self.stem(x)).mean((2, 3))
        h: Tensor = self.linear(pooled)
        return h


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut: `(n, c_in, h, w)` to `(n, c_out, h / stride, w / stride)`.

    >>> import torch
    >>> BasicBlock(4, 8, stride=2)(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, c_in: int, c_out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = _conv_norm(c_in, c_out, stride=stride)
        self.second = _conv_norm(c_out, c_out)
        same = stride == 1 and c_in == c_out
        self.shortcut = nn.Identity() if same else _conv_norm(c_in, c_out, stride=stride, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first(x), inplace=True)
        return F.relu(self.second(inner) + self.shortcut(x), inplace=True)


def _conv_norm(c_in: int, c_out: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    layers: list[tuple[str, nn.Module]] = [("conv", conv), ("norm", nn.BatchNorm2d(c_out))]
    return nn.Sequential(OrderedDict(layers))
