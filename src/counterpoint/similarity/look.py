"""What a graph does to the target of a batch: the numbers that tau_s is chosen by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.similarity.graph import SimilarityGraph

ANCHORS = 512
PAIR_SAMPLES = 4096
TILE = 512
BINS = 60
EQUAL = 1e-6  # as far from 1 a similarity may be that counts as 1
SAME_VALUE = 1e-5
TAU_S = tuple(float(f"{10**x:.3g}") for x in np.linspace(math.log10(0.02), 0, 28))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Softness:
    """The target of X-CLR for batches of n samples, by tau_s: softmax over the other 2n - 1 views.

    share: what of the target is on the anchor's own other view. equals: what is on this view and on all that
    are as similar, such as those of its class. positives: exp of the entropy of the target, as many equal
    positives as it amounts to. All `(len(tau_s),)`, the mean over anchors.
    """

    n: int
    tau_s: tuple[float, ...]
    share: Floats
    equals: Floats
    positives: Floats

    def tau_at(self, share: float, equals: bool = False) -> float | None:
        """The tau_s at which that share is left on the own other view; None outside what was looked at.

        equals: on this view and its equals.
        """
        falling = np.minimum.accumulate(self.equals if equals else self.share)
        if not falling[-1] <= share <= falling[0]:
            return None
        logs = np.log(np.array(self.tau_s))
        return float(np.exp(np.interp(-share, -falling, logs)))


@dataclass(frozen=True)
class Pair:
    """Two samples, by their ids, and their similarity."""

    a: int
    b: int
    similarity: float


@dataclass(frozen=True)
class Look:
    """A graph looked at through samples drawn with a seed.

    edges, counts: histogram of the similarity of different samples. mean: of these. equal: the share of pairs
    with similarity 1. most, least: the most and least similar pairs that are not equal.
    """

    samples: int
    pairs: int
    edges: Floats
    counts: Floats
    mean: float
    equal: float
    most: tuple[Pair, ...]
    least: tuple[Pair, ...]
    softness: tuple[Softness, ...]


def look_at(
    graph: SimilarityGraph,
    batch_sizes: Sequence[int] = (256, 1024, 4096),
    *,
    seed: int = 0,
    tau_s: Sequence[float] = TAU_S,
    pairs: int = 12,
) -> Look:
    """Draw samples of a graph and see how alike they are, and how soft their targets.

    Batch sizes above the number of samples are left out, and the largest possible one taken instead.

    Raises ValueError for a graph of one sample, and for a batch size below 2.

    >>> from counterpoint.similarity import LabelGraph
    >>> look = look_at(LabelGraph(torch.arange(8) // 2), [8], tau_s=[0.01], pairs=1)
    >>> soft = look.softness[0]
    >>> round(look.equal, 3), soft.share.round(3).tolist(), soft.positives.round(3).tolist()
    (0.143, [0.333], [3.0])
    """
    count = len(graph)
    if count < 2:
        raise ValueError(f"graph {graph.name!r} has {count} sample: two are needed to look at pairs")
    if wrong := [n for n in batch_sizes if n < 2]:
        raise ValueError(f"a batch size must be 2 or more, got {wrong[0]}")
    if not all(math.isfinite(tau) and tau > 0 for tau in tau_s) or not tau_s:
        raise ValueError(f"tau_s must be numbers above 0, got {list(tau_s)}")
    sizes = sorted({min(n, count) for n in batch_sizes})
    generator = torch.Generator().manual_seed(seed)
    softness = tuple(_softness(graph, n, tuple(sorted(tau_s)), generator) for n in sizes)
    ids = _draw(count, min(count, PAIR_SAMPLES), generator)
    tiles = [ids[start : start + TILE] for start in range(0, len(ids), TILE)]
    values: list[NDArray[np.float32]] = []
    found: dict[bool, list[Pair]] = {True: [], False: []}
    for i, rows in enumerate(tiles):
        for j in range(i, len(tiles)):
            tile = _above(graph, rows, tiles[j], mirror=j == i)
            values.append(tile[~tile.isnan()].numpy())
            for largest in (True, False):
                found[largest] += _extremes(tile, rows, tiles[j], pairs, largest)
                found[largest] = _best(found[largest], pairs, largest)
    known = np.concatenate(values)
    counts, edges = np.histogram(known, BINS, (min(0.0, float(known.min())), max(1.0, float(known.max()))))
    return Look(
        samples=count,
        pairs=len(known),
        edges=edges.astype(np.float64),
        counts=counts.astype(np.float64),
        mean=float(known.mean(dtype=np.float64)),
        equal=float((np.abs(known - 1) <= EQUAL).mean()),
        most=tuple(found[True]),
        least=tuple(found[False]),
        softness=softness,
    )


def _draw(count: int, n: int, generator: torch.Generator) -> Tensor:
    """n different ids of `count`; of very many without listing them all."""
    if count <= 4 * n or count < 1_000_000:
        return torch.randperm(count, generator=generator)[:n].sort().values
    ids: Tensor = torch.unique(torch.randint(count, (2 * n,), generator=generator))
    return ids[torch.randperm(len(ids), generator=generator)[:n]].sort().values


def _above(graph: SimilarityGraph, rows: Tensor, columns: Tensor, mirror: bool) -> Tensor:
    """A tile of similarities; NaN where a pair would come twice or is a sample and itself."""
    tile: Tensor = graph.between(rows, columns).cpu().clone()
    if mirror:
        tile[torch.ones_like(tile, dtype=torch.bool).tril()] = torch.nan
    return tile


def _extremes(value: Tensor, rows: Tensor, columns: Tensor, count: int, largest: bool) -> list[Pair]:
    """The pairs of a tile with the largest or smallest values, 1 left out, one pair for each value."""
    worst = -torch.inf if largest else torch.inf
    ranked = value.masked_fill(value.isnan() | ((value - 1).abs() <= EQUAL), worst).flatten()
    out: list[Pair] = []
    # Pairs of the same two classes have one value; each pass takes one of them and leaves the others out.
    for _ in range(count):
        place = int(ranked.argmax() if largest else ranked.argmin())
        best = float(ranked[place])
        if not math.isfinite(best):
            break
        out.append(Pair(int(rows[place // len(columns)]), int(columns[place % len(columns)]), best))
        ranked[(ranked - best).abs() <= SAME_VALUE] = worst
    return out


def _best(pairs: list[Pair], count: int, largest: bool) -> list[Pair]:
    ranked = sorted(
        pairs, key=lambda pair: (-pair.similarity if largest else pair.similarity, pair.a, pair.b)
    )
    out: list[Pair] = []
    for pair in ranked:
        if not out or abs(out[-1].similarity - pair.similarity) > SAME_VALUE:
            out.append(pair)
    return out[:count]


def _softness(
    graph: SimilarityGraph, n: int, tau_s: tuple[float, ...], generator: torch.Generator
) -> Softness:
    """Targets of about 512 anchors, in as many batches of n as that takes."""
    share, equals, positives = np.zeros((3, len(tau_s)))
    batches = max(1, ANCHORS // n)
    for _ in range(batches):
        ids = _draw(len(graph), n, generator)
        ids = ids[torch.randperm(n, generator=generator)]
        anchors = ids[:ANCHORS]
        tile = graph.between(anchors, ids).double().cpu()
        for k, tau in enumerate(tau_s):
            own, alike, effective = target_of(tile, tau)
            share[k] += float(own.mean()) / batches
            equals[k] += float(alike.mean()) / batches
            positives[k] += float(effective.mean()) / batches
    return Softness(n, tau_s, share, equals, positives)


def target_of(tile: Tensor, tau_s: float) -> tuple[Tensor, Tensor, Tensor]:
    """For each anchor, `(a,)`: the share of the own other view, that of all which are at least as similar,
    and the effective number of positives.

    tile: `(a, n)` similarity of the first a samples of a batch to all of its n; each has two views.

    >>> [value.tolist() for value in target_of(torch.eye(2, dtype=torch.float64), 1e-3)]
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    score = tile / tau_s
    score = score - score.amax(dim=1, keepdim=True)
    views = torch.full_like(
        score, 2.0
    )  # of another sample both views are candidates, of the own one the other
    views.diagonal().fill_(1.0)
    weight = views * score.exp()
    total = weight.sum(dim=1)
    entropy = total.log() - (weight * score).sum(dim=1) / total
    alike = tile >= tile.diagonal()[:, None] - EQUAL
    return weight.diagonal() / total, (weight * alike).sum(dim=1) / total, entropy.exp()
