"""Slow twin of QARe: n x n matrices entry by entry, eigenvalues by torch with autograd, loops over pairs."""

from itertools import combinations, permutations

import torch
from slow_objectives import cosine, mean
from torch import Tensor


def shifted(z: Tensor, shift: float, clamp_min: float | None) -> Tensor:
    rows = []
    for a in z:
        row = [cosine(a, b) for b in z]
        rows.append(torch.stack(row if clamp_min is None else [torch.clamp(c, min=clamp_min) for c in row]))
    s = torch.stack(rows) + shift
    return (s + s.T) / 2


def trace(a: Tensor, b: Tensor, order: tuple[int, ...]) -> Tensor:
    """tr(A Y B Y^T) of the permutation that puts `order[i]` in place i."""
    n = len(a)
    return sum((a[i, j] * b[order[i], order[j]] for i in range(n) for j in range(n)), a.new_zeros(()))


def traces(a: Tensor, b: Tensor) -> list[float]:
    """tr(A Y B Y^T) of every permutation."""
    return [float(trace(a, b, order)) for order in permutations(range(len(a)))]


def product(a: Tensor, b: Tensor, descending: bool) -> Tensor:
    first, second = a.sort().values, b.sort(descending=descending).values
    return sum((x * y for x, y in zip(first, second, strict=True)), a.new_zeros(()))


def qare(
    *views: Tensor,
    target: Tensor | None = None,
    form: str = "code",
    shift: float = 1.0,
    clamp_min: float | None = None,
    reference: str = "view",
) -> Tensor:
    s = [shifted(z, shift, clamp_min) for z in views]
    spectra = [torch.linalg.eigvalsh(one) for one in s]
    n = len(views[0])
    pairs = n * (n - 1)
    if reference == "graph":
        assert target is not None
        wanted = torch.linalg.eigvalsh(
            shift + (target if clamp_min is None else target.clamp(min=clamp_min)).to(s[0])
        )
        return mean([sum((x - y) ** 2 for x, y in zip(lam, wanted, strict=True)) for lam in spectra]) / pairs
    values = []
    for a, b in combinations(range(len(views)), 2):
        low, high = (product(spectra[a], spectra[b], descending) for descending in (True, False))
        value = {"code": high, "gap": high - low, "gt": trace(s[a], s[b], tuple(range(n))) - low}[form]
        values.append(value)
    return mean(values) / pairs
