"""Planted copies, real copies and planted wrong labels of CIFAR-100: what `counterpoint audit` finds.

    python benchmarks/audit.py --data DATA/cifar100 --run runs/cifar100/simclr/seed-0 [--run ...]

The embeddings are those of a trained run. Copies: 500 of the first 10 000 training pictures are added once
more: as they are; as JPEG of quality 75; flipped; or shifted by up to 3 pixels, half of them flipped, as JPEG
of quality 60 and with noise (deviation 8 of 255). Real: 20 000 training pictures, among them all that are
pixel for pixel the same as another. Wrong labels: 5 % of 10 000 get another class at random, three draws.
Same class: pairs of one class, nothing planted. `precision` and `recall` are those of the first `budget`
pairs or rows of each method; where the budget is the number planted they are equal.

Methods for pairs, of the 32 nearest of each sample: cosine; ratio (1 - cosine over the geometric mean of both
distances to the tenth neighbour); share and weight, as the audit has them; share without the rule that puts
identical vectors first. For labels: vote of the k nearest, exp(cosine / 0.07); vote of the support vectors
among the 64 nearest; by class (mean cosine to the 5 nearest of other classes less that to the 5 nearest of
the own); and the two machines of the audit.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import versions, write_csv
from PIL import Image
from rich.console import Console
from torch import Tensor

from counterpoint.data.batches import plain_batches
from counterpoint.data.memory import in_memory
from counterpoint.data.parquet import parquet
from counterpoint.data.samples import Labels, Samples
from counterpoint.evaluate import Features, extract, neighbours
from counterpoint.evaluate.audit import suspect_labels, suspect_pairs
from counterpoint.evaluate.knn import unit_rows
from counterpoint.evaluate.local_machines import local_duals
from counterpoint.train.compare import load_trained
from counterpoint.train.run import Run

N, COPIES, REAL = 10_000, 500, 20_000
SHARE, SEEDS = 0.05, (0, 1, 2)
OUT = Path(__file__).parent / "results" / "audit.csv"
EVERY = 10_000_000


def jpeg(picture: Tensor, quality: int) -> Tensor:
    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)


def worn(picture: Tensor, g: torch.Generator) -> Tensor:
    """Shifted, perhaps flipped, compressed and noisy."""
    padded = torch.nn.functional.pad(picture[None].float(), (3, 3, 3, 3), mode="replicate")[0].byte()
    x, y = torch.randint(7, (2,), generator=g).tolist()
    picture = padded[:, y : y + picture.shape[1], x : x + picture.shape[2]]
    if float(torch.rand((), generator=g)) < 0.5:
        picture = picture.flip(-1)
    noise = 8 * torch.randn(picture.shape, generator=g)
    return (jpeg(picture, 60).float() + noise).clamp(0, 255).round().byte()


def copies(pictures: Tensor, g: torch.Generator) -> dict[str, Tensor]:
    return {
        "exact copies": pictures,
        "JPEG copies": torch.stack([jpeg(p, 75) for p in pictures]),
        "flipped copies": pictures.flip(-1),
        "worn copies": torch.stack([worn(p, g) for p in pictures]),
    }


def identical(pictures: Tensor) -> set[tuple[int, int]]:
    """Pairs that are the same pixel for pixel."""
    groups: dict[bytes, list[int]] = {}
    for i, picture in enumerate(pictures):
        groups.setdefault(hashlib.sha256(picture.numpy().tobytes()).digest(), []).append(i)
    return {(a, b) for same in groups.values() for a in same for b in same if a < b}


def embedded(run: Run, pictures: Tensor) -> Tensor:
    samples = Samples("p", [str(i) for i in range(len(pictures))], lambda i: Image.new("RGB", (1, 1)))
    samples = Samples("p", samples.keys, samples.picture, tensor=pictures)
    encoder = load_trained(run, Console(stderr=True))
    return extract(encoder, plain_batches(samples, run.recipe.views.spec.plain(), 512, workers=0), samples).h


def features(h: Tensor, y: Tensor | None = None) -> Features:
    labels = {} if y is None else {"class": Labels(y, [str(c) for c in range(int(y.max()) + 1)])}
    return Features(h, [str(i) for i in range(len(h))], labels)


def ranked_pairs(h: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Each method's pairs `(p, 2)`, the most suspicious first."""
    n = len(h)
    near, cosine = neighbours(features(h), range(n), 32)
    number, first = np.unique(
        (torch.minimum(near, torch.arange(n)[:, None]) * n + torch.maximum(near, torch.arange(n)[:, None]))
        .flatten()
        .numpy(),
        return_index=True,
    )
    pairs = torch.from_numpy(np.stack([number // n, number % n], axis=1))
    c = cosine.flatten()[torch.from_numpy(first)]
    tenth = (1 - cosine[:, 9]).clamp_min(1e-7)
    ratio = (1 - c).clamp_min(1e-7) / (tenth[pairs[:, 0]] * tenth[pairs[:, 1]]).sqrt()
    yield "cosine", pairs[c.argsort(descending=True, stable=True)]
    yield "ratio", pairs[ratio.argsort(stable=True)]
    for by in ("share", "weight"):
        found = suspect_pairs(features(h), EVERY, by=by)
        yield by, torch.stack([found.a, found.b], dim=1)
        if by == "share":
            order = found.score.argsort(descending=True, stable=True)
            yield "share alone", torch.stack([found.a, found.b], dim=1)[order]


def hits(pairs: Tensor, truth: set[tuple[int, int]], budget: int) -> int:
    return sum(tuple(pair) in truth for pair in pairs[:budget].tolist())


def row(task: str, method: str, seed: int, planted: int, budget: int, found: int) -> dict[str, Any]:
    shares = {"precision": round(found / budget, 4), "recall": round(found / planted, 4)}
    return {"task": task, "method": method, "draw": seed, "planted": planted, "budget": budget, **shares}


def pair_rows(h: Tensor, pictures: Tensor, real: Tensor, y: Tensor, run: Run) -> Iterator[dict[str, Any]]:
    g = torch.Generator().manual_seed(0)
    chosen = torch.randperm(N, generator=g)[:COPIES]
    already = identical(pictures[:N])
    for task, added in copies(pictures[chosen], g).items():
        truth = already | {(i, N + k) for k, i in enumerate(chosen.tolist())}
        if task == "exact copies":
            truth = identical(torch.cat([pictures[:N], added]))
        for method, pairs in ranked_pairs(torch.cat([h[:N], embedded(run, added)])):
            yield row(task, method, 0, len(truth), len(truth), hits(pairs, truth, len(truth)))
    truth = identical(pictures[real])
    for method, pairs in ranked_pairs(h[real]):
        yield row("real copies", method, 0, len(truth), len(truth), hits(pairs, truth, len(truth)))
    total = int((torch.bincount(y[:N]) * (torch.bincount(y[:N]) - 1) // 2).sum())
    for method, pairs in ranked_pairs(h[:N]):
        for budget in (500, 5000):
            same = int((y[pairs[:budget, 0]] == y[pairs[:budget, 1]]).sum())
            yield row("same class", method, 0, total, budget, same)


def other_share(near: Tensor, weights: Tensor, y: Tensor) -> Tensor:
    """The part of the weights that falls on other classes; of equal ones, first where one class has most."""
    votes = torch.zeros(len(y), int(y.max()) + 1).scatter_add_(1, y[near], weights)
    votes /= votes.sum(1, keepdim=True).clamp_min(1e-9)
    own = votes.gather(1, y[:, None])
    return 1 - own.squeeze(1) + 1e-3 * votes.scatter(1, y[:, None], -1).amax(1)


def by_class(unit: Tensor, y: Tensor, k: int) -> Tensor:
    scores = torch.empty(len(y))
    for start in range(0, len(y), 1000):
        rows = torch.arange(start, min(start + 1000, len(y)))
        cosine = unit[rows] @ unit.T
        cosine[torch.arange(len(rows)), rows] = -2
        same = y[rows][:, None] == y[None]
        own, other = (cosine.masked_fill(mask, -2).topk(k, 1).values.mean(1) for mask in (~same, same))
        scores[rows] = other - own
    return scores


def label_rows(h: Tensor, y: Tensor) -> Iterator[dict[str, Any]]:
    unit = unit_rows(h)
    near, cosine = neighbours(features(h), range(len(h)), 256)
    sigma = 2 - 2 * float(cosine[:, :64].median())
    alpha = local_duals(unit, unit, near[:, :64].contiguous(), sigma, 0.1)
    weights = ((cosine - cosine[:, :1]) / 0.07).exp()
    planted = round(SHARE * len(y))
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        wrong = torch.randperm(len(y), generator=g)[:planted]
        given = y.clone()
        given[wrong] = (y[wrong] + 1 + torch.randint(99, (planted,), generator=g)) % 100
        scores = {
            f"cosine vote, k={k}": other_share(near[:, :k], weights[:, :k], given) for k in (32, 64, 256)
        }
        scores["support vote"] = other_share(near[:, :64], alpha, given)
        scores["by class, cosine"] = by_class(unit, given, 5)
        ranked = {name: score.argsort(descending=True, stable=True) for name, score in scores.items()}
        ranked["two machines"] = suspect_labels(features(h, given), len(y)).row
        for method, order in ranked.items():
            for budget in (planted, 2 * planted):
                found = int(torch.isin(order[:budget], wrong).sum())
                yield row("wrong labels", method, seed, planted, budget, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    samples, _ = in_memory(parquet(options.data))
    pictures, y = samples.tensor, samples.column("fine_label").values
    assert pictures is not None
    doubled = torch.tensor(sorted({i for pair in identical(pictures) for i in pair}))
    real = torch.cat([torch.arange(REAL - len(doubled)), doubled]).unique()
    rows = []
    for folder in options.run:
        run = Run(folder)
        name = "/".join(folder.parts[-2:])
        needed = torch.cat([torch.arange(REAL), doubled]).unique()
        found = embedded(run, pictures[needed])
        h = torch.zeros(len(pictures), found.shape[1]).index_copy_(0, needed, found)
        for made in (*pair_rows(h, pictures, real, y, run), *label_rows(h[:N], y[:N])):
            rows.append({"run": name, **made})
            print(rows[-1], flush=True)
    write_csv(options.out, [{**made, **versions()} for made in rows])


if __name__ == "__main__":
    main()
