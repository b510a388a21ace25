"""Feature splits for the tests of evaluation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoint.data.samples import Labels
from counterpoint.evaluate import Features


def split(
    h: Tensor, y: Sequence[int] | Tensor, classes: int | None = None, name: str = "made", column: str = "kind"
) -> Features:
    """Features `(n, d)` with one label column; class c is called "c"."""
    y = torch.as_tensor(y)
    count = int(y.max()) + 1 if classes is None else classes
    labels = Labels(y, [str(c) for c in range(count)])
    return Features(h.float(), [f"{name}/{i}" for i in range(len(h))], {column: labels}, name)


def clusters(n: int, d: int, classes: int, noise: float, seed: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    """Features around class centres, and labels with every class at least once.

    The centres depend on the seed alone: another offset draws other samples of the same classes.
    """
    middle = torch.randn(classes, d, generator=torch.Generator().manual_seed(seed))
    g = torch.Generator().manual_seed(1000 * seed + offset + 1)
    y = torch.cat([torch.arange(classes), torch.randint(classes, (n - classes,), generator=g)])
    return middle[y] + noise * torch.randn(n, d, generator=g), y


def network_like(h: Tensor, seed: int = 0) -> Tensor:
    """The same features as a network might give them: correlated, not negative, of unequal size."""
    d = h.shape[1]
    mix = torch.randn(d, d, generator=torch.Generator().manual_seed(seed)) * torch.logspace(0, -2, d)[:, None]
    return (h @ mix + 1).relu()
