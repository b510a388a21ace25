"""Slow twins of the objectives: one loop per index, straight from the formulas, sharing nothing with them.

Each takes the arguments of its fast twin and returns a 0-d tensor with a gradient. `TWINS` pairs them up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
from torch import Tensor

from counterpoint import objectives


def cosine(a: Tensor, b: Tensor) -> Tensor:
    lengths = a.norm() * b.norm()
    return a.dot(b) / lengths if float(lengths) > 0 else (a * 0).sum() + (b * 0).sum()


def mean(values: list[Tensor]) -> Tensor:
    return sum(values[1:], values[0]) / len(values)


def log_sum_exp(values: list[Tensor]) -> Tensor:
    highest = max(float(v) for v in values)
    return sum((torch.exp(v - highest) for v in values[1:]), torch.exp(values[0] - highest)).log() + highest


def are_same(ids: Tensor | None, i: int, j: int) -> bool:
    return i == j if ids is None else int(ids[i]) == int(ids[j])


def flatten(views: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
    """Every view of every sample, with the number of its sample."""
    return [(view[i], i) for view in views for i in range(len(view))]


def all_view_losses(
    views: tuple[Tensor, ...], tau: float, weight: Callable[[int, int], float]
) -> list[Tensor]:
    """Cross entropy of each anchor that has a positive; weight(i, j) is normalised over the others."""
    flat, losses = flatten(views), []
    for a, (za, i) in enumerate(flat):
        others = [b for b in range(len(flat)) if b != a]
        logits = {b: cosine(za, flat[b][0]) / tau for b in others}
        weights = {b: weight(i, flat[b][1]) for b in others}
        total = sum(weights.values())
        if total == 0:
            continue
        log_z = log_sum_exp(list(logits.values()))
        terms = [w / total * (log_z - logits[b]) for b, w in weights.items() if w > 0]
        losses.append(sum(terms[1:], terms[0]))
    return losses


def ntxent(
    *views: Tensor, tau: float = 0.5, ids: Tensor | None = None, reduction: str = "mean_log"
) -> Tensor:
    losses = all_view_losses(views, tau, lambda i, j: float(are_same(ids, i, j)))
    if reduction == "log_mean":
        return -mean([torch.exp(-loss) for loss in losses]).log()
    return mean(losses)


def supcon(*views: Tensor, labels: Tensor, tau: float = 0.1) -> Tensor:
    def is_positive(i: int, j: int) -> float:
        return float(i == j or (int(labels[i]) == int(labels[j]) and int(labels[i]) != -1))

    return mean(all_view_losses(views, tau, is_positive))


def xclr(*views: Tensor, target: Tensor, tau: float = 0.1, tau_s: float = 0.1) -> Tensor:
    g, flat, losses = target.double(), flatten(views), []
    for a, (za, i) in enumerate(flat):
        others = [b for b in range(len(flat)) if b != a]
        log_t = log_sum_exp([g[i, flat[b][1]] / tau_s for b in others])
        logits = {b: cosine(za, flat[b][0]) / tau for b in others}
        log_p = log_sum_exp(list(logits.values()))
        losses.append(
            sum(math.exp(float(g[i, flat[b][1]] / tau_s - log_t)) * (log_p - logits[b]) for b in others)
        )
    return mean(losses)


def one_way(a: Tensor, b: Tensor, tau: float, ids: Tensor | None) -> Tensor:
    losses = []
    for i in range(len(a)):
        logits = [cosine(a[i], b[j]) / tau for j in range(len(b))]
        positives = [logits[j] for j in range(len(b)) if are_same(ids, i, j)]
        losses.append(log_sum_exp(logits) - mean(positives))
    return mean(losses)


def infonce(*views: Tensor, tau: float = 0.1, ids: Tensor | None = None) -> Tensor:
    return mean([one_way(a, b, tau, ids) for a, b in combinations(views, 2)])


def clip(z0: Tensor, z1: Tensor, tau: float = 0.07, ids: Tensor | None = None) -> Tensor:
    return (one_way(z0, z1, tau, ids) + one_way(z1, z0, tau, ids)) / 2


def violations(a: Tensor, b: Tensor, i: int, margin: float, ids: Tensor | None) -> list[Tensor]:
    """How far each negative of anchor i breaks the margin; negative where it does not."""
    samples = range(len(b))
    worst = torch.stack([1 - cosine(a[i], b[j]) for j in samples if are_same(ids, i, j)]).amax()
    return [worst + margin - (1 - cosine(a[i], b[j])) for j in samples if not are_same(ids, i, j)]


def triplet(*views: Tensor, margin: float = 0.2, ids: Tensor | None = None) -> Tensor:
    losses = []
    for a, b in permutations(views, 2):
        for i in range(len(a)):
            broken = violations(a, b, i, margin, ids)
            losses.append(torch.stack(broken).amax().relu() if broken else (a[i] * 0).sum())
    return mean(losses)


def hinge(*views: Tensor, margin: float = 0.2, ids: Tensor | None = None) -> Tensor:
    losses = []
    for a, b in permutations(views, 2):
        for i in range(len(a)):
            broken = violations(a, b, i, margin, ids)
            losses.append(mean([x.relu() for x in broken]) if broken else (a[i] * 0).sum())
    return mean(losses)


def no_side(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {}


def some_ids(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"ids": torch.randint(max(1, n // 2), (n,), generator=generator)}


def some_labels(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Labels with one class that has two members at least, and some samples that have none."""
    labels = torch.randint(-1, 3, (n,), generator=generator)
    labels[:2] = 7
    return {"labels": labels}


def some_target(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A similarity that is not symmetric, with negative entries and a diagonal that is not all 1."""
    return {"target": torch.randn(n, n, generator=generator, dtype=torch.float64)}


@dataclass(frozen=True)
class Twin:
    """A fast objective, its slow twin, and how to call them."""

    name: str
    fast: Callable[..., Tensor]
    slow: Callable[..., Tensor]
    module: Callable[..., objectives.Objective]
    views: tuple[int, ...] = (2, 3, 4)
    side: Callable[[int, torch.Generator], dict[str, Tensor]] = no_side
    options: tuple[tuple[str, float | str], ...] = ()

    def arguments(self, n: int, seed: int) -> dict[str, Tensor]:
        return self.side(n, torch.Generator().manual_seed(seed))


LOG_MEAN = (("reduction", "log_mean"), ("tau", 0.3))
TWINS = [
    Twin("infonce", objectives.infonce, infonce, objectives.InfoNCE, options=(("tau", 0.2),)),
    Twin("infonce-ids", objectives.infonce, infonce, objectives.InfoNCE, side=some_ids),
    Twin("ntxent", objectives.ntxent, ntxent, objectives.NTXent),
    Twin("ntxent-log_mean", objectives.ntxent, ntxent, objectives.NTXent, options=LOG_MEAN),
    Twin("ntxent-ids", objectives.ntxent, ntxent, objectives.NTXent, side=some_ids),
    Twin("clip", objectives.clip, clip, objectives.CLIP, views=(2,)),
    Twin("clip-ids", objectives.clip, clip, objectives.CLIP, views=(2,), side=some_ids),
    Twin("supcon", objectives.supcon, supcon, objectives.SupCon, views=(1, 2, 3, 4), side=some_labels),
    Twin("xclr", objectives.xclr, xclr, objectives.XCLR, views=(1, 2, 3, 4), side=some_target),
    Twin(
        "xclr-warm",
        objectives.xclr,
        xclr,
        objectives.XCLR,
        side=some_target,
        options=(("tau", 0.5), ("tau_s", 1.0)),
    ),
    Twin("triplet", objectives.triplet, triplet, objectives.Triplet, options=(("margin", 0.3),)),
    Twin("triplet-ids", objectives.triplet, triplet, objectives.Triplet, side=some_ids),
    Twin("hinge", objectives.hinge, hinge, objectives.Hinge, options=(("margin", 0.3),)),
    Twin("hinge-ids", objectives.hinge, hinge, objectives.Hinge, side=some_ids),
]


def random_views(
    v: int, n: int, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Views whose rows have different lengths, as leaves that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    views = [torch.randn(n, d, generator=generator, dtype=torch.float64) * 3 for _ in range(v)]
    return [z.to(dtype).requires_grad_() for z in views]
