"""Is this run learning? One line when it is not."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

AT_CHANCE = 0.01
COLLAPSED = 0.1


def spread(z: Tensor) -> float:
    """How far the directions of the rows spread: 0 when all are equal, 1 when they cancel out.

    z: `(n, d)` embeddings, n >= 1. The square root of the summed variance of the unit rows.

    >>> spread(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    0.0
    >>> spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    1.0
    """
    unit = torch.nn.functional.normalize(z.detach().float(), dim=1)
    return math.sqrt(max(0.0, 1.0 - float(unit.mean(0).square().sum())))


def verdict(row: Mapping[str, float | None]) -> str | None:
    """What is wrong with a run whose last log row this is, in one line, or None.

    row: the columns of metrics.csv; absent or empty ones are passed over.

    >>> verdict({"spread": 0.01, "loss": 6.2, "chance": 6.2})
    'collapsed: all embeddings point the same way (spread 0.010)'
    """
    width, loss, chance, entropy = (row.get(key) for key in ("spread", "loss", "chance", "target_entropy"))
    if width is not None and width < COLLAPSED:
        return f"collapsed: all embeddings point the same way (spread {width:.3f})"
    if loss is None or chance is None:
        return None
    # With soft targets the loss cannot fall below their entropy: measure the way from chance down to it.
    if chance - loss < AT_CHANCE * (chance - (entropy or 0.0)):
        return f"at chance: the loss is {loss:.3f}, a uniform guess gives {chance:.3f}"
    return None
