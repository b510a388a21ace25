"""Is this run learning? One line when it is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

AT_CHANCE = 0.01
COLLAPSED = 0.1
STEPS_TO_TELL = 20  # before them a run is near chance by nature
ROWS_TO_TELL = 3
TOO_SHORT = "too short to tell"


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
    margin = AT_CHANCE * (chance - (entropy or 0.0))
    if chance - loss >= margin:
        return None
    where = "above" if loss - chance > margin else "at"
    return f"{where} chance: the loss is {loss:.3f}, a uniform guess gives {chance:.3f}"


def last_verdict(rows: Sequence[Mapping[str, float | None]]) -> str | None:
    """The verdict on a run whose whole log this is; a run too short to leave chance is only called short.

    >>> last_verdict([{"step": 3.0, "spread": 0.9, "loss": 2.9, "chance": 0.5}])
    'too short to tell: 3 steps, 1 of them logged; the loss is 2.900, a uniform guess gives 0.500'
    """
    found = verdict(rows[-1]) if rows else None
    if found is None or "chance: " not in found:
        return found
    steps = int(rows[-1].get("step") or 0)
    if len(rows) >= ROWS_TO_TELL and steps >= STEPS_TO_TELL:
        return found
    count = "1 step" if steps == 1 else f"{steps} steps"
    return f"{TOO_SHORT}: {count}, {len(rows)} of them logged; {found.split(': ', 1)[1]}"
