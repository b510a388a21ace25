"""AutoAugment on a batch: torchvision's policies and kernels, for all samples that drew the same at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

BINS = 10  # magnitude levels, as the paper and torchvision have them


@dataclass(frozen=True)
class Operation:
    """An operation of a sub-policy: torchvision's name, likelihood and strength, whether it has a sign."""

    name: str
    share: float
    magnitude: float
    signed: bool


@cache
def policy_table(policy: str, size: int) -> list[tuple[Operation, Operation]]:
    """The 25 sub-policies of a policy for pictures of `size` pixels, read from torchvision.

    policy: 'imagenet' or 'cifar10'. Raises ValueError for another.

    >>> policy_table("imagenet", 224)[0]
    (Operation(name='Posterize', share=0.4, magnitude=4.0, signed=False), Operation(name='Rotate', ...))
    """
    transform = _torchvision(policy)
    return [
        (_operation(transform, first, size), _operation(transform, second, size))
        for first, second in transform._policies
    ]


def _operation(transform: Any, entry: tuple[str, float, int | None], size: int) -> Operation:
    name, share, level = entry
    levels, signed = transform._AUGMENTATION_SPACE[name]
    values = levels(BINS, size, size)
    magnitude = 0.0 if values is None or level is None else float(values[level])
    return Operation(name, share, magnitude, signed)


@cache
def _torchvision(policy: str) -> Any:
    from torchvision.transforms import v2

    known = {"imagenet": v2.AutoAugmentPolicy.IMAGENET, "cifar10": v2.AutoAugmentPolicy.CIFAR10}
    if policy not in known:
        raise ValueError(f"auto_augment must be one of {', '.join(known)}, got {policy!r}")
    return v2.AutoAugment(known[policy])


def draw_auto_augment(n: int, generator: torch.Generator) -> Tensor:
    """What n samples draw, `(n, 5)` float, uniform in [0, 1).

    A number for the sub-policy, then per operation one for whether it is applied and one for its sign.
    """
    return torch.rand(n, 5, generator=generator)


def auto_augment(pictures: Tensor, draws: Tensor, policy: str) -> Tensor:
    """AutoAugment each picture by its own draws.

    torchvision's private table and kernel dispatch are used, so that every operation is torchvision's own,
    called once for all samples that drew it with the same magnitude and sign.

    pictures: `(n, 3, s, s)` uint8. draws: `(n, 5)` from `draw_auto_augment`, on the CPU.
    Returns `(n, 3, s, s)` uint8.

    >>> pictures = torch.arange(256, dtype=torch.uint8).expand(2, 3, 256, 256)
    >>> draws = torch.tensor([[0.53, 0.5, 0.0, 0.0, 0.0], [0.53, 0.9, 0.0, 0.0, 0.0]])
    >>> auto_augment(pictures, draws, "imagenet")[:, 0, 0, :3].tolist()
    [[255, 254, 253], [0, 1, 2]]
    """
    size = pictures.shape[-1]
    table = policy_table(policy, size)
    transform = _torchvision(policy)
    out = pictures
    rows = draws.tolist()
    for step in range(2):
        groups: dict[tuple[str, float], list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            operation = table[int(row[0] * len(table))][step]
            if row[1 + 2 * step] <= operation.share:
                negative = operation.signed and row[2 + 2 * step] <= 0.5
                groups[operation.name, -operation.magnitude if negative else operation.magnitude].append(i)
        if groups and out is pictures:
            out = pictures.clone()
        for (name, magnitude), members in groups.items():
            index = torch.tensor(members).to(out.device, non_blocking=True)
            changed = transform._apply_image_or_video_transform(
                out.index_select(0, index), name, magnitude, transform.interpolation, transform._fill
            )
            out.index_copy_(0, index, changed)
    return out
