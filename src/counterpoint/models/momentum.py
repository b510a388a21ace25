"""A momentum encoder: a copy that follows the trained encoder slowly and gets no gradient.

    w_copy <- m w_copy + (1 - m) w      after each step; m constant, or by a cosine up to 1 at the last

Papers: He et al., "Momentum contrast for unsupervised visual representation learning", 2020 (constant);
Grill et al., "Bootstrap your own latent", 2020, and Chen, Xie, He, "An empirical study of training
self-supervised vision transformers", 2021 (cosine).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

SCHEDULES = ("constant", "cosine")


class MomentumEncoder(nn.Module):
    """The exponential moving average of an encoder's weights, itself an encoder.

    encoder: what it begins as a copy of, and follows.
    rate: m, from 0 (always the encoder of the last step) to 1 (the copy never changes).
    schedule: "constant", or "cosine" from `rate` at the first step to 1 at the last.

    The average is kept in float32 at least, whatever the encoder's own precision, since a step of 1 - m is
    less than bfloat16 can add. Buffers, such as BatchNorm's running moments, are copied and not averaged.

    Raises ValueError on a rate outside [0, 1] and on an unknown schedule.

    >>> encoder = nn.Linear(1, 1, bias=False)
    >>> _ = encoder.weight.data.fill_(1.0)
    >>> follower = MomentumEncoder(encoder, rate=0.75)
    >>> _ = encoder.weight.data.fill_(5.0)
    >>> follower.update(encoder, step=1, total=10)
    >>> follower(torch.ones(1, 1))
    tensor([[2.]])
    """

    def __init__(self, encoder: nn.Module, rate: float = 0.99, schedule: str = "constant") -> None:
        super().__init__()
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise ValueError(f"the rate of a momentum encoder must be within [0, 1], got {rate!r}")
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
        self.rate, self.schedule = float(rate), schedule
        self.average = copy.deepcopy(encoder).requires_grad_(False)
        for weight in self.average.parameters():
            weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:
        """What the copy gives of these inputs, without a gradient."""
        return self.average(*inputs)

    def rate_at(self, step: int, total: int) -> float:
        """m after `step` of `total` steps; ValueError where there are none.

        >>> follower = MomentumEncoder(nn.Identity(), 0.9, "cosine")
        >>> [round(follower.rate_at(step, 10), 3) for step in (0, 5, 10)]
        [0.9, 0.95, 1.0]
        """
        if total < 1 or step < 0:
            raise ValueError(f"a step must be one of 1 or more steps, got step={step} of total={total}")
        if self.schedule == "constant":
            return self.rate
        return 1 - (1 - self.rate) * (math.cos(math.pi * min(step, total) / total) + 1) / 2

    @torch.no_grad()
    def update(self, encoder: nn.Module, step: int, total: int) -> None:
        """Follow the encoder, whose weights after `step` of `total` steps these are.

        Raises ValueError where it does not have the tensors of the encoder that was copied.
        """
        keep = self.rate_at(step, total)
        for ours, theirs in _pairs(self.average.named_parameters(), encoder.named_parameters()):
            ours.lerp_(theirs.to(ours), 1 - keep)
        for ours, theirs in _pairs(self.average.named_buffers(), encoder.named_buffers()):
            ours.copy_(theirs)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, schedule={self.schedule!r}"


def _pairs(ours: Any, theirs: Any) -> list[tuple[Tensor, Tensor]]:
    left, right = dict(ours), dict(theirs)
    if left.keys() != right.keys():
        other = sorted(left.keys() ^ right.keys())
        raise ValueError(f"this is not the encoder that was copied: only one of them has {other[0]!r}")
    for name in left:
        if left[name].shape != right[name].shape:  # which might be broadcast
            shapes = f"{tuple(left[name].shape)}, not {tuple(right[name].shape)}"
            raise ValueError(f"this is not the encoder that was copied: its {name!r} was {shapes}")
    return [(left[name], right[name]) for name in left]
