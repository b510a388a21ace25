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
    return a.dot(b) / lengths if float(lengths.detach()) > 0 else (a * 0).sum() + (b * 0).sum()


def mean(values: list[Tensor]) -> Tensor:
    return sum(values[1:], values[0]) / len(values)


def log_sum_exp(values: list[Tensor]) -> Tensor:
    highest = max(float(v.detach()) for v in values)
    return sum((torch.exp(v - highest) for v in values[1:]), torch.exp(values[0] - highest)).log() + highest


def are_same(ids: Tensor | None, i: int, j: int) -> bool:
    return i == j if ids is None else int(ids[i]) == int(ids[j])


def flatten(views: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
    """Every view of every sample, with the number of its sample."""
    return [(view[i], i) for view in views for i in range(len(view))]


def nearest_on_simplex(theta: list[float]) -> list[float]:
    """Sparsemax as it is printed: sort, find how many stay, subtract."""
    u = sorted(theta, reverse=True)
    k = max(k for k in range(1, len(u) + 1) if 1 + k * u[k - 1] > sum(u[:k]))
    threshold = (sum(u[:k]) - 1) / k
    return [max(0.0, x - threshold) for x in theta]


def entmax15_by_bisection(theta: list[float]) -> list[float]:
    low, high = max(theta) / 2 - 1, max(theta) / 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(0.0, x / 2 - middle) ** 2 for x in theta) > 1 else (low, middle)
    return [max(0.0, x / 2 - low) ** 2 for x in theta]


def best_of(theta: list[float]) -> list[float]:
    return [(x == max(theta)) / theta.count(max(theta)) for x in theta]


# Each map, and Omega of a distribution.
SLOW_MAPS: dict[str, tuple[Callable[[list[float]], list[float]], Callable[[list[float]], float]]] = {
    "sparsemax": (nearest_on_simplex, lambda p: (sum(q * q for q in p) - 1) / 2),
    "entmax15": (entmax15_by_bisection, lambda p: 4 / 3 * (sum(q**1.5 for q in p) - 1)),
    "argmax": (best_of, lambda p: 0.0),
}


def row_loss(logits: list[Tensor], target: list[float], map: str = "softmax", margin: float = 0.0) -> Tensor:
    """The Fenchel-Young loss of one row without Omega(target), positives lowered by a margin."""
    logits = [x - margin * y / max(target) for x, y in zip(logits, target, strict=True)]
    if map == "softmax":
        log_z = log_sum_exp(logits)
        terms = [y * (log_z - x) for x, y in zip(logits, target, strict=True) if y > 0]
        return sum(terms[1:], terms[0])
    p_of, omega = SLOW_MAPS[map]
    p = p_of([float(x.detach()) for x in logits])
    # At its maximiser p, <p, theta> - Omega(p) has the derivative p: p counts as a constant.
    terms = [(q - y) * x for q, y, x in zip(p, target, logits, strict=True)]
    return sum(terms[1:], terms[0]) - omega(p)


def all_view_losses(
    views: tuple[Tensor, ...],
    tau: float,
    weight: Callable[[int, int], float],
    map: str = "softmax",
    margin: float = 0.0,
) -> list[Tensor]:
    """Loss of each anchor that has a positive; weight(i, j) is normalised over the others."""
    flat, losses = flatten(views), []
    for a, (za, i) in enumerate(flat):
        others = [b for b in range(len(flat)) if b != a]
        logits = [cosine(za, flat[b][0]) / tau for b in others]
        weights = [weight(i, flat[b][1]) for b in others]
        total = sum(weights)
        if total > 0:
            losses.append(row_loss(logits, [w / total for w in weights], map, margin))
    return losses


def ntxent(
    *views: Tensor,
    tau: float = 0.5,
    ids: Tensor | None = None,
    reduction: str = "mean_log",
    map: str = "softmax",
) -> Tensor:
    losses = all_view_losses(views, tau, lambda i, j: float(are_same(ids, i, j)), map)
    if reduction == "log_mean":
        return -mean([torch.exp(-loss) for loss in losses]).log()
    return mean(losses)


def supcon(*views: Tensor, labels: Tensor, tau: float = 0.1, map: str = "softmax") -> Tensor:
    def is_positive(i: int, j: int) -> float:
        return float(i == j or (int(labels[i]) == int(labels[j]) and int(labels[i]) != -1))

    return mean(all_view_losses(views, tau, is_positive, map))


def xclr(
    *views: Tensor,
    target: Tensor,
    tau: float = 0.1,
    tau_s: float = 0.1,
    map: str = "softmax",
    margin: float = 0.0,
) -> Tensor:
    g, flat, losses = target.double(), flatten(views), []
    for a, (za, i) in enumerate(flat):
        others = [b for b in range(len(flat)) if b != a]
        log_t = log_sum_exp([g[i, flat[b][1]] / tau_s for b in others])
        s = [math.exp(float(g[i, flat[b][1]] / tau_s - log_t)) for b in others]
        losses.append(row_loss([cosine(za, flat[b][0]) / tau for b in others], s, map, margin))
    return mean(losses)


def one_way(
    a: Tensor, b: Tensor, tau: float, ids: Tensor | None, map: str = "softmax", margin: float = 0.0
) -> Tensor:
    losses = []
    for i in range(len(a)):
        logits = [cosine(a[i], b[j]) / tau for j in range(len(b))]
        same = [float(are_same(ids, i, j)) for j in range(len(b))]
        losses.append(row_loss(logits, [y / sum(same) for y in same], map, margin))
    return mean(losses)


def infonce(*views: Tensor, tau: float = 0.1, ids: Tensor | None = None, map: str = "softmax") -> Tensor:
    return mean([one_way(a, b, tau, ids, map) for a, b in combinations(views, 2)])


def clip(
    z0: Tensor, z1: Tensor, tau: float = 0.07, ids: Tensor | None = None, map: str = "softmax"
) -> Tensor:
    return (one_way(z0, z1, tau, ids, map) + one_way(z1, z0, tau, ids, map)) / 2


def sparseclr(
    *views: Tensor,
    tau: float = 1.0,
    margin: float = 1.0,
    layout: str = "all_views",
    target: Tensor | None = None,
    tau_s: float = 0.1,
    ids: Tensor | None = None,
) -> Tensor:
    if layout == "inter_view":
        if target is None:
            both = [one_way(a, b, tau, ids, "sparsemax", margin) for a, b in permutations(views, 2)]
            return mean(both)
        losses, n = [], len(views[0])
        for a, b in permutations(views, 2):
            for i in range(n):
                log_t = log_sum_exp([target[i, j].double() / tau_s for j in range(n)])
                s = [math.exp(float(target[i, j] / tau_s - log_t)) for j in range(n)]
                logits = [cosine(a[i], b[j]) / tau for j in range(n)]
                losses.append(row_loss(logits, s, "sparsemax", margin))
        return mean(losses)
    if target is not None:
        return xclr(*views, target=target, tau=tau, tau_s=tau_s, map="sparsemax", margin=margin)
    weight = lambda i, j: float(are_same(ids, i, j))  # noqa: E731
    return mean(all_view_losses(views, tau, weight, "sparsemax", margin))


def structured_assignment(
    *views: Tensor, mining: str = "batch_hard", margin: float = 0.0, smoothing: float | None = None
) -> Tensor:
    """By trying every matching, or every choice of each row."""
    losses, samples = [], range(len(views[0]))
    for a, b in permutations(views, 2):
        cost = {(i, j): 1 - cosine(a[i], b[j]) + margin * (i == j) for i in samples for j in samples}
        true = sum(cost[i, i] for i in samples)
        if mining == "one_to_one":
            # The true matching comes first, so that it is taken where others cost the same.
            totals = [sum(cost[i, pi[i]] for i in samples) for pi in permutations(samples)]
            least = min(totals, key=float)
        elif smoothing is None:
            least = sum(min((cost[i, j] for j in samples), key=float) for i in samples)
        else:
            soft = [log_sum_exp([-cost[i, j] / smoothing for j in samples]) for i in samples]
            least = -smoothing * sum(soft)
        losses.append((true - least) / len(samples))
    return mean(losses)


def ntlogistic(*views: Tensor, tau: float = 0.5, ids: Tensor | None = None) -> Tensor:
    flat, losses = flatten(views), []
    for a, (za, i) in enumerate(flat):
        logits = [(cosine(za, zb) / tau, are_same(ids, i, j)) for b, (zb, j) in enumerate(flat) if b != a]
        loss = mean([torch.log1p(torch.exp(-x)) for x, same in logits if same])
        negatives = [torch.log1p(torch.exp(x)) for x, same in logits if not same]
        losses.append(loss + mean(negatives) if negatives else loss)
    return mean(losses)


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


SPARSEMAX = (("map", "sparsemax"), ("tau", 0.3))
ENTMAX = (("map", "entmax15"), ("tau", 0.3))
ARGMAX = (("map", "argmax"), ("tau", 0.3))
INTER = (("layout", "inter_view"), ("margin", 0.4), ("tau", 0.5))
COOL = (("margin", 0.3), ("tau", 0.3), ("tau_s", 0.5))
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
    Twin("infonce-entmax15", objectives.infonce, infonce, objectives.InfoNCE, options=ENTMAX),
    Twin("ntxent-sparsemax", objectives.ntxent, ntxent, objectives.NTXent, options=SPARSEMAX),
    Twin("ntxent-entmax15-ids", objectives.ntxent, ntxent, objectives.NTXent, side=some_ids, options=ENTMAX),
    Twin("clip-sparsemax", objectives.clip, clip, objectives.CLIP, (2,), options=SPARSEMAX),
    Twin("supcon-sparsemax", objectives.supcon, supcon, objectives.SupCon, (1, 2, 3), some_labels, SPARSEMAX),
    Twin("supcon-argmax", objectives.supcon, supcon, objectives.SupCon, (2,), some_labels, ARGMAX),
    Twin("xclr-sparsemax", objectives.xclr, xclr, objectives.XCLR, (1, 2, 3), some_target, SPARSEMAX),
    Twin("xclr-entmax15", objectives.xclr, xclr, objectives.XCLR, (2,), some_target, ENTMAX),
    Twin("sparseclr", objectives.sparseclr, sparseclr, objectives.SparseCLR),
    Twin("sparseclr-ids", objectives.sparseclr, sparseclr, objectives.SparseCLR, side=some_ids),
    Twin("sparseclr-soft", objectives.sparseclr, sparseclr, objectives.SparseCLR, (2, 3), some_target, COOL),
    Twin("sparseclr-inter", objectives.sparseclr, sparseclr, objectives.SparseCLR, options=INTER),
    Twin(
        "sparseclr-inter-soft",
        objectives.sparseclr,
        sparseclr,
        objectives.SparseCLR,
        side=some_target,
        options=INTER,
    ),
    Twin(
        "assignment-hard",
        objectives.structured_assignment,
        structured_assignment,
        objectives.StructuredAssignment,
        options=(("margin", 0.3),),
    ),
    Twin(
        "assignment-smooth",
        objectives.structured_assignment,
        structured_assignment,
        objectives.StructuredAssignment,
        options=(("margin", 0.2), ("smoothing", 0.3)),
    ),
    Twin(
        "assignment-one",
        objectives.structured_assignment,
        structured_assignment,
        objectives.StructuredAssignment,
        options=(("mining", "one_to_one"), ("margin", 0.3)),
    ),
    Twin("ntlogistic", objectives.ntlogistic, ntlogistic, objectives.NTLogistic, options=(("tau", 0.2),)),
    Twin("ntlogistic-ids", objectives.ntlogistic, ntlogistic, objectives.NTLogistic, side=some_ids),
]


def random_views(
    v: int, n: int, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Views whose rows have different lengths, as leaves that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    views = [torch.randn(n, d, generator=generator, dtype=torch.float64) * 3 for _ in range(v)]
    return [z.to(dtype).requires_grad_() for z in views]
