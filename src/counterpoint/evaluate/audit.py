r"""What the support vector machines of `MMCL` know of a data set: copies, false negatives, doubtful labels.

MMCL puts a machine behind each anchor that tells it from its negatives; the weight alpha falls on the few
that are hardest to tell from it. In a random batch of b of n samples a pair meets with chance b / n, so a
pass in random batches would miss nearly all pairs. Here each anchor has a machine of its own against its
`candidates` nearest others of the whole set, found by an exact search: every pair in which one is among the
nearest of the other is judged, whatever the order of the samples. The cost is that search (n^2 d) and n
problems of m points (some m^3 each).

*Pairs.* The share of anchor a's weight that falls on b is alpha_ab / alpha_a, with alpha_a the sum over its
candidates. A pair's score is the smaller of its two shares: each is the other's main support. That measures a
distance by what is usual near both, so that a dense region does not fill the list as it does with cosines.

*Labels.* Two machines per labelled row: one against the nearest of its own class, one against as many of the
nearest of other classes. Each one's sum of weights is 2 over the squared distance to the (softened) hull of
its points. The score is the others' part of both sums: above 0.5 the row lies nearer to other classes.

Limits: what lies apart in the embedding is not found. Pairs of one class are no fault of the data where a
class has thousands of look-alikes, only of an objective that takes them for negatives.

Source: Shah et al., "Max-margin contrastive learning", AAAI 2022, for the machines; the scores are ours,
chosen by `benchmarks/audit.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoint.data.samples import Labels
from counterpoint.evaluate.features import Features
from counterpoint.evaluate.knn import nearest, unit_rows
from counterpoint.evaluate.local_machines import local_duals
from counterpoint.evaluate.similarity_map import neighbours

BY = ("share", "weight")
KINDS = ("identical", "same label", "other label", "unlabelled")
IDENTICAL = 1e-9
"""Unit vectors at a smaller squared distance are one vector: a network repeats itself only to rounding."""

LABEL_BANDWIDTH = 5.0


@dataclass(frozen=True)
class Pairs:
    """Pairs of samples, the most suspicious first; one entry per pair in each `(p,)` tensor.

    a, b: positions in the features, a < b. score: from 0 to 1 by share, from 0 by weight. cosine: of the
    features. alpha_ab: the weight of b in the machine of a; alpha_ba the other way round.
    kind: positions in `KINDS`.
    """

    a: Tensor
    b: Tensor
    score: Tensor
    cosine: Tensor
    alpha_ab: Tensor
    alpha_ba: Tensor
    kind: Tensor

    def __len__(self) -> int:
        return len(self.a)

    def columns(self, features: Features, column: str | None = None) -> dict[str, list[object]]:
        """The table by columns, with keys, and with labels where there are any."""
        table: dict[str, list[object]] = {
            "a": [features.keys[i] for i in self.a.tolist()],
            "b": [features.keys[i] for i in self.b.tolist()],
            "score": self.score.tolist(),
            "cosine": self.cosine.tolist(),
            "alpha_ab": self.alpha_ab.tolist(),
            "alpha_ba": self.alpha_ba.tolist(),
        }
        if features.labels:
            labels = features.column(column)[1]
            table |= {"label_a": _names(labels, self.a), "label_b": _names(labels, self.b)}
        return table | {"kind": [KINDS[kind] for kind in self.kind.tolist()]}


@dataclass(frozen=True)
class LabelDoubts:
    """Rows whose label is in doubt, the most doubtful first; one entry per row in each `(p,)` tensor.

    row: position in the features. score: from 0 to 1; above 0.5 other classes lie nearer than its own.
    given: its label. suggested: the other class that most of the other machine's weight falls on, and
    agreement, which part of it. own, other: the strongest support vectors of the two machines.
    alone: how many labelled rows were not judged, being the only one of their class. judged: how many were;
    nearer: how many of those score above 0.5, listed or not.
    """

    row: Tensor
    score: Tensor
    given: Tensor
    suggested: Tensor
    agreement: Tensor
    own: Tensor
    other: Tensor
    alone: int
    judged: int
    nearer: int

    def __len__(self) -> int:
        return len(self.row)

    def columns(self, features: Features, column: str | None = None) -> dict[str, list[object]]:
        """The table by columns, with keys and class names."""
        names = features.column(column)[1].names
        return {
            "key": [features.keys[i] for i in self.row.tolist()],
            "label": [names[c] for c in self.given.tolist()],
            "suggested": [names[c] for c in self.suggested.tolist()],
            "score": self.score.tolist(),
            "agreement": self.agreement.tolist(),
            "own_support": [features.keys[i] for i in self.own.tolist()],
            "other_support": [features.keys[i] for i in self.other.tolist()],
        }


def suspect_pairs(
    features: Features,
    count: int = 500,
    candidates: int = 32,
    by: str = "share",
    column: str | None = None,
    sigma: float | None = None,
    ridge: float = 0.1,
) -> Pairs:
    """The `count` pairs that are support vectors against each other most strongly, or fewer.

    Use when you look for copies of one picture, and for samples that an objective should not push apart.
    Relations: with candidates = n - 1 a machine is that of `MMCL` in one batch of all samples.

    by: "share" scores a pair by the smaller of its two shares, which finds copies best; "weight" by the
        smaller of its two alphas, which finds pairs of one class better. Identical vectors stand first.
    column: the labels to show; None takes the first column, if there is one.
    sigma: squared bandwidth; None takes the median squared distance to a candidate. ridge: above 0.

    Raises ValueError for fewer than two samples, candidates outside 1..n-1, numbers out of range (a ridge or
    sigma too small to solve with, too), an unknown column, and a row of zeros, which has no direction.

    >>> h = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.9, 0.1], [0.6, 0.0, 0.8]])
    >>> pairs = suspect_pairs(Features(h, keys=list("abcd")), count=1, candidates=3)
    >>> pairs.columns(Features(h, keys=list("abcd")))["a"], pairs.a.tolist(), pairs.b.tolist()
    (['b'], [1], [2])
    """
    _whole("count", count)
    if by not in BY:
        raise ValueError(f"by must be one of {', '.join(BY)}, got {by!r}")
    labels = features.column(column)[1] if features.labels or column is not None else None
    n = len(features)
    _check_candidates(candidates, n)
    unit = _unit(features)
    near, cosine = neighbours(features, torch.arange(n), candidates)
    alpha = local_duals(unit, unit, near, _bandwidth(cosine, sigma), ridge)
    pairs = _both_ways(near, cosine, alpha)
    total = alpha.sum(1)
    shares = pairs.alpha_ab / total[pairs.a], pairs.alpha_ba / total[pairs.b]
    score = torch.minimum(*shares) if by == "share" else torch.minimum(pairs.alpha_ab, pairs.alpha_ba)
    same = pairs.cosine > 1 - 1e-5
    same[same.clone()] = (unit[pairs.a[same]] - unit[pairs.b[same]]).square().sum(1) <= IDENTICAL
    order = _order(same, score, pairs.cosine)[:count]
    order = order[(score[order] > 0) | same[order]]
    a, b = pairs.a[order], pairs.b[order]
    kind = _kinds(labels, a, b).masked_fill(same[order], KINDS.index("identical"))
    return Pairs(a, b, score[order], pairs.cosine[order], pairs.alpha_ab[order], pairs.alpha_ba[order], kind)


def suspect_labels(
    features: Features,
    count: int = 500,
    candidates: int = 32,
    column: str | None = None,
    sigma: float | None = None,
    ridge: float = 0.1,
) -> LabelDoubts:
    """The `count` labelled rows that lie nearest to other classes, as against their own; or fewer.

    Use when you want to look through the labels that are most likely wrong.

    column: the labels; None takes the first column. Rows without a label are left out.
    candidates: the nearest of each side; of a class with fewer, as many of the other classes.
    sigma: squared bandwidth; None takes 5 times the median squared distance to a candidate of another class.

    Raises ValueError for features without labels, one class only, and as `suspect_pairs`.

    >>> h = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0], [0.1, 0.9], [0.9, 0.15]])
    >>> kinds = Labels(torch.tensor([0, 0, 0, 1, 1, 1]), ["x", "y"])
    >>> features = Features(h, keys=list("abcdef"), labels={"kind": kinds})
    >>> doubts = suspect_labels(features, count=1, candidates=2)
    >>> doubts.columns(features)["key"], doubts.columns(features)["suggested"]
    (['f'], ['x'])
    """
    _whole("count", count)
    labels = features.column(column)[1]
    rows = labels.known.nonzero().flatten()
    y = labels.values[rows]
    missing = no_doubts(features, column)
    if missing is not None:
        raise ValueError(missing)
    unit = _unit(features)[rows]
    _check_candidates(candidates, len(rows))
    size = torch.bincount(y)[y] - 1
    # As many points on both sides: with more of them a hull is nearer.
    most = torch.minimum(size, len(y) - 1 - size).clamp_max(candidates)
    counts = torch.arange(candidates) < most[:, None]
    (own, _), (other, cosine) = _two_sides(unit, y, candidates)
    bandwidth = sigma if sigma is not None else LABEL_BANDWIDTH * _bandwidth(cosine[counts], None)
    to_own, to_other = (local_duals(unit, unit, side, bandwidth, ridge, counts) for side in (own, other))
    judged = most > 0
    near, far = to_other.sum(1), to_own.sum(1)
    score = torch.where(judged, near / (near + far).clamp_min(torch.finfo(near.dtype).tiny), -1.0)
    order = score.argsort(descending=True, stable=True)[: min(count, int(judged.sum()))]
    votes = torch.zeros(len(order), len(labels.names)).scatter_add_(1, y[other[order]], to_other[order])
    share, suggested = votes.max(1)
    return LabelDoubts(
        row=rows[order],
        score=score[order],
        given=y[order],
        suggested=suggested,
        agreement=share / near[order],
        own=rows[_strongest(own, to_own, order)],
        other=rows[_strongest(other, to_other, order)],
        alone=int((~judged).sum()),
        judged=int(judged.sum()),
        nearer=int((score > 0.5).sum()),
    )


def no_doubts(features: Features, column: str | None = None) -> str | None:
    """Why no label of that column can be doubted, or None where `suspect_labels` can judge.

    >>> kinds = Labels(torch.tensor([0, 0]), ["x"])
    >>> no_doubts(Features(torch.eye(2), ["a", "b"], {"kind": kinds}))
    "column 'kind' has one class, 'x'; doubtful labels need two classes to compare"
    """
    if not features.labels and column is None:
        return "there are no labels"
    name, labels = features.column(column)
    classes = torch.unique(labels.values[labels.known]).tolist()
    if len(classes) > 1:
        return None
    found = f"one class, {labels.names[classes[0]]!r}" if classes else "no labelled row"
    return f"column {name!r} has {found}; doubtful labels need two classes to compare"


def _strongest(candidates: Tensor, alpha: Tensor, order: Tensor) -> Tensor:
    return candidates[order].gather(1, alpha[order].argmax(1, keepdim=True)).squeeze(1)


def _two_sides(unit: Tensor, y: Tensor, m: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """For each row the m nearest others of its class, and the m nearest of other classes, with cosines.

    Places that a small class leaves empty hold the row 0 and a cosine of -1.
    """
    sides = tuple(
        (torch.zeros(len(y), m, dtype=torch.int64), torch.full((len(y), m), -1.0)) for _ in range(2)
    )
    for label in torch.unique(y).tolist():
        members, rest = (y == label).nonzero().flatten(), (y != label).nonzero().flatten()
        for side, base, own in ((sides[0], members, True), (sides[1], rest, False)):
            for ids, near, cosine in _search(unit, members, base, m, own):
                side[0][ids, : near.shape[1]] = near
                side[1][ids, : near.shape[1]] = cosine
    return sides[0], sides[1]


def _search(
    unit: Tensor, queries: Tensor, base: Tensor, m: int, own: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Block by block the rows of `queries` and their nearest of `base`; own: which has the queries too."""
    k = min(m + own, len(base))
    if k <= own:
        return
    for start, places, cosine in nearest(unit[queries], unit[base], k):
        ids, near = queries[start : start + len(places)], base[places]
        if own:
            itself = near == ids[:, None]
            # Among more than k equals a row may be missing from its own list: then the last one goes.
            itself[:, -1] |= ~itself.any(dim=1)
            near, cosine = near[~itself].view(-1, k - 1), cosine[~itself].view(-1, k - 1)
        yield ids, near, cosine


def _both_ways(near: Tensor, cosine: Tensor, alpha: Tensor) -> Pairs:
    """Each pair once, with both its weights: 0 where one is not among the other's candidates."""
    n, m = near.shape
    anchor, other = torch.arange(n).repeat_interleave(m), near.flatten()
    number = torch.minimum(anchor, other) * n + torch.maximum(anchor, other)
    # In NumPy, whose types say what it gives.
    pair, place = map(torch.from_numpy, np.unique(number.numpy(), return_inverse=True))
    forth = anchor < other
    ab, ba, cosines = (torch.zeros(len(pair)) for _ in range(3))
    ab[place[forth]] = alpha.flatten()[forth]
    ba[place[~forth]] = alpha.flatten()[~forth]
    # Both directions give the same number to rounding; the last one written would hang on the order.
    cosines.scatter_reduce_(0, place, cosine.flatten(), "amax", include_self=False)
    return Pairs(pair // n, pair % n, torch.zeros(0), cosines, ab, ba, torch.zeros(0))


def _order(same: Tensor, score: Tensor, cosine: Tensor) -> Tensor:
    """Identical pairs first, then by score, then by cosine, then in the order of the samples."""
    keys = (-cosine.numpy(), -score.numpy(), ~same.numpy())
    return torch.from_numpy(np.lexsort(keys))


def _kinds(labels: Labels | None, a: Tensor, b: Tensor) -> Tensor:
    if labels is None:
        return torch.full_like(a, KINDS.index("unlabelled"))
    known = labels.known[a] & labels.known[b]
    same = labels.values[a] == labels.values[b]
    kind = torch.where(same, KINDS.index("same label"), KINDS.index("other label"))
    return torch.where(known, kind, KINDS.index("unlabelled"))


def _names(labels: Labels, rows: Tensor) -> list[object]:
    return [labels.names[c] if c >= 0 else None for c in labels.values[rows].tolist()]


def _unit(features: Features) -> Tensor:
    unit = unit_rows(features.h)
    empty = (~features.h.any(dim=1)).nonzero().flatten()
    if len(empty):
        raise ValueError(
            f"{len(empty)} of {len(unit)} feature rows are all zeros and have no direction; "
            f"the first is {features.keys[int(empty[0])]!r}"
        )
    return unit


def _bandwidth(cosine: Tensor, sigma: float | None) -> float:
    """sigma, or the median squared distance, which for a collapsed set is taken as 1."""
    if sigma is not None:
        return sigma
    return 2 * (1 - float(cosine.median())) if float(cosine.median()) < 1 - 1e-6 else 1.0


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1, got {value!r}")


def _check_candidates(candidates: int, n: int) -> None:
    if n < 2:
        raise ValueError(f"an audit compares samples and needs at least two, got {n}")
    _whole("candidates", candidates)
    if candidates > n - 1:
        raise ValueError(f"candidates must be at most {n - 1}, the other samples there are, got {candidates}")
