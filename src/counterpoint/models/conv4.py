"""Conv-4: the small convolutional backbone of the relational-reasoning and QARe experiments.

Four blocks of 3x3 convolution (no bias), batch norm and ReLU, with 8, 16, 32 and 64 channels. The first three
end in a 2x2 average pool, the last in a global one, so the feature has 64 numbers whatever the picture size.

Source: Patacchiola and Storkey, Self-Supervised Relational Reasoning for Representation Learning (2020), and
its code base, from which QARe (2023) takes it. Average pooling follows the code; many other networks called
Conv-4 (few-shot learning) use max pooling and 64 channels throughout, and are not this one.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

CHANNELS = (8, 16, 32, 64)
SMALLEST = 8  # three 2x2 pools leave one pixel


class Conv4(nn.Module):
    """Pictures `(n, 3, h, w)` to features `(n, width)`, `h` and `w` at least 8.

    width_multiplier: factor on all channel counts. 1 is the paper's network (64-d features), 4 gives
    32-64-128-256 channels.

    Raises ValueError on a multiplier below 1 and on pictures too small to pool three times.

    >>> import torch
    >>> network = Conv4()
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """

    def __init__(self, width_multiplier: int = 1) -> None:
        super().__init__()
        if width_multiplier < 1:
            raise ValueError(f"width_multiplier must be a whole number >= 1, got {width_multiplier}")
        channels = [c * width_multiplier for c in CHANNELS]
        self.width = channels[-1]
        self.blocks = nn.Sequential(
            *(
                _block(c_in, c_out, nn.AdaptiveAvgPool2d(1) if i == 3 else nn.AvgPool2d(2))
                for i, (c_in, c_out) in enumerate(zip([3, *channels], channels, strict=False))
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) < SMALLEST:
            raise ValueError(
                f"conv4 needs pictures of at least {SMALLEST}x{SMALLEST} pixels, got {tuple(x.shape)}"
            )
        h: Tensor = self.blocks(x)
        return h.flatten(1)


def _block(c_in: int, c_out: int, pool: nn.Module) -> nn.Sequential:
    layers: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(c_in, c_out, kernel_size=3, padding=1, bias=False)),
        ("norm", nn.BatchNorm2d(c_out)),
        ("relu", nn.ReLU(inplace=True)),
        ("pool", pool),
    ]
    return nn.Sequential(OrderedDict(layers))
