"""Matching: does the same identity come out alike in two views, two cameras, say, or two modalities?

Three numbers, all on cosines of frozen features. Nothing is trained.

* recall@k: share of the rows of one side with a row of their own identity among the k nearest of the other.
* mAP: mean over the rows of one side of the average precision of the other side's ranking.
* assignment: identities are matched one to one so that the sum of cosines is largest
  (`scipy.optimize.linear_sum_assignment`), and the share that found itself counts.

Ties go against the encoder. A row of another identity that is as near as one of the same, to 1e-9, stands
before it, and among the best assignments the one with the fewest right pairs counts: a collapsed encoder
scores 0.

The search compares every pair, in float64, in tiles of queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from counterpoint.data.samples import Labels, Samples
from counterpoint.evaluate.features import Features
from counterpoint.evaluate.knn import unit_rows
from counterpoint.evaluate.record import Result
from counterpoint.names import hint

PROTOCOL = "matching"
VERSION = 1
USUAL_K = (1, 5, 10)
TIE = 1e-9
"""Cosines in float64 that differ by less are equal: how a product rounds depends on where its row stands."""


def matching(
    a: Features,
    b: Features,
    column: str | None = "identity",
    k: int | Sequence[int] | None = None,
    assignment: bool = True,
    tile: int = 256,
    sides: tuple[str, str] = ("a", "b"),
) -> list[Result]:
    """Recall at each k and mAP from a to b, the same from b to a, and the share that assignment matches.

    Use when the two sides show the same identities, and what counts is to find one in the other.
    Relations: with one row per identity on each side recall@1 is nearest-neighbour matching accuracy, and
    mAP the mean reciprocal rank.

    column: the label column that says who is who, compared by class name; None compares keys, for two sides
        of paired samples. Rows without a label and identities that one side lacks are left out and counted
        in the settings.
    k: at most the number of rows left on either side; None for those of 1, 5 and 10 that are.
    assignment: also match identities one to one, each by the mean direction of its rows. It takes time that
        grows with the cube of their number: a second for 1000, minutes for 10 000.
    tile: queries per tile. It moves memory and time, not the number.
    sides: what the results call the two, as in "a to b".

    Raises ValueError for sides of different layer or width, for fewer than two identities on both sides, a
    column that is missing and a k out of range.

    >>> def side(h, name):
    ...     return Features(torch.tensor(h), keys=["ann", "bob", "cy"], name=name)
    >>> front = side([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], "front")
    >>> back = side([[0.9, 0.1], [-0.8, 0.7], [-0.9, 0.6]], "back")
    >>> results = matching(front, back, column=None, k=1)
    >>> [(r.metric, r.settings["direction"], round(r.value, 2)) for r in results[2:]]
    [('recall', 'b to a', 0.67), ('mAP', 'b to a', 0.83), ('assignment', 'one to one', 1.0)]
    """
    pairs = _pairs(a, b, column)
    ks = _ks(k, min(len(pairs.a), len(pairs.b)))
    if type(tile) is not int or tile < 1:
        raise ValueError(f"tile must be at least 1, a whole number, got {tile!r}")
    results = []
    first, second = sides
    for direction, (queries, query_ids, base, base_ids) in {
        f"{first} to {second}": (pairs.a, pairs.a_ids, pairs.b, pairs.b_ids),
        f"{second} to {first}": (pairs.b, pairs.b_ids, pairs.a, pairs.a_ids),
    }.items():
        before, precision = ranks(queries, query_ids, base, base_ids, tile)
        settings = {**pairs.settings, "direction": direction}
        results += [
            _result("recall", float((before < one).double().mean()), len(queries), {**settings, "k": one})
            for one in ks
        ]
        results.append(_result("mAP", float(precision.mean()), len(queries), settings))
    if assignment:
        settings = {**pairs.settings, "direction": "one to one"}
        right = assigned(pairs.a, pairs.a_ids, pairs.b, pairs.b_ids)
        results.append(_result("assignment", float(right.double().mean()), len(right), settings))
    return results


def by_camera(
    features: Features,
    column: str = "camera",
    names: tuple[Sequence[str], Sequence[str]] | None = None,
) -> tuple[Features, Features]:
    """The two sides of one split: the rows of the first half of its cameras, and those of the others.

    Cameras stand in label order; of an odd number the one in the middle is on the first side. Rows without a
    camera are on neither.

    names: the cameras of each side, to choose them yourself.

    Raises ValueError where there are fewer than two cameras, or one that is named has no row.

    >>> cameras = Labels(torch.tensor([1, 0, 2]), ["left", "right", "top"])
    >>> split = Features(torch.eye(3), keys=["x", "y", "z"], labels={"camera": cameras})
    >>> [list(side.keys) for side in by_camera(split)]
    [['x', 'y'], ['z']]
    """
    _, labels = features.column(column)
    sides = []
    for rows, side in camera_sides(labels, column, names):
        chosen = rows.tolist()
        sides.append(
            Features(
                features.h[rows],
                [features.keys[i] for i in chosen],
                {name: Labels(one.values[rows], one.names) for name, one in features.labels.items()},
                f"{features.name}, {column} {_listed(side)}",
                features.layer,
                None if features.captions is None else [features.captions[i] for i in chosen],
            )
        )
    return sides[0], sides[1]


def camera_sides(
    labels: Labels, column: str = "camera", names: tuple[Sequence[str], Sequence[str]] | None = None
) -> list[tuple[Tensor, list[str]]]:
    """The positions of the rows on each of the two sides, and the names of the cameras there.

    >>> camera_sides(Labels(torch.tensor([1, 0, 2]), ["left", "right", "top"]))
    [(tensor([0, 1]), ['left', 'right']), (tensor([2]), ['top'])]
    """
    found: Tensor = torch.unique(labels.values[labels.known])
    if len(found) < 2:
        raise ValueError(f"column {column!r} has {len(found)} value(s): matching is between two sides")
    if names is not None:
        _check_names(names)
    there = [labels.names[i] for i in found.tolist()]
    half = -(-len(there) // 2)
    sides = []
    for side in names or (there[:half], there[half:]):
        for name in side:
            if name not in there:
                raise ValueError(f"column {column!r} has no row of {name!r}: {hint(name, there)}")
        chosen = found[[there.index(name) for name in side]]
        sides.append((torch.isin(labels.values, chosen).nonzero().flatten(), list(side)))
    return sides


def _check_names(names: tuple[Sequence[str], Sequence[str]]) -> None:
    """ValueError unless these are the cameras of two sides, each with one at least and none on both."""
    sides = [list(side) if isinstance(side, list | tuple) else [] for side in names] if _many(names) else []
    if len(sides) != 2 or not all(sides) or not all(isinstance(one, str) for side in sides for one in side):
        raise ValueError(f"names must be two lists of one or more names of cameras, got {names!r}")
    if both := [name for name in sides[0] if name in sides[1]]:
        raise ValueError(f"names has {both[0]!r} on both sides: rows would be matched with themselves")


def _many(names: object) -> bool:
    return isinstance(names, list | tuple)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]}, ... {names[-1]} ({len(names)})"


def check_sides(samples: Samples, column: str, identity: str = "identity") -> None:
    """ValueError where `matching` could not be asked of the sides that `by_camera` would make.

    Of the pictures so many are read as it takes to find two identities that both sides can show.
    """
    who = samples.column(identity).values
    sides = [rows for rows, _ in camera_sides(samples.column(column), column)]
    first, second = (torch.unique(who[rows]) for rows in sides)
    shared = first[torch.isin(first, second) & (first >= 0)].tolist()
    seen = 0
    for one in shared:
        seen += all(any(_readable(samples, i) for i in rows[who[rows] == one].tolist()) for rows in sides)
        if seen == 2:
            return
    unread = f", {len(shared) - seen} more without a picture that can be read" if seen < len(shared) else ""
    raise ValueError(
        f"data {samples.name!r} has {seen} identities on both halves of {column!r}{unread}: "
        "matching needs two"
    )


def _readable(samples: Samples, i: int) -> bool:
    try:
        samples.picture(i)
    except ValueError:
        return False
    return True


def ranks(
    queries: Tensor, query_ids: Tensor, base: Tensor, base_ids: Tensor, tile: int = 256
) -> tuple[Tensor, Tensor]:
    """For each query the rows of other identities before its first own one, and its average precision.

    queries `(q, d)` and base `(m, d)` unit rows; ids `(q,)`, `(m,)` int64. Every query must have a row of its
    identity in the base. Gives `(q,)` int64 and `(q,)` float64.

    >>> x = torch.eye(3)
    >>> ranks(x[:1], torch.tensor([5]), x[[1, 0]], torch.tensor([4, 5]))
    (tensor([0]), tensor([1.], dtype=torch.float64))
    """
    firsts, precisions = [], []
    for start in range(0, len(queries), tile):
        block, ids = queries[start : start + tile], query_ids[start : start + tile]
        cosine = block @ base.T
        own = ids[:, None] == base_ids
        count = own.sum(1, keepdim=True)
        most = int(count.max())
        # Own rows, ascending, with infinity in the places that a query has no row for.
        mine = cosine.masked_fill(~own, torch.inf).topk(most, dim=1, largest=False, sorted=True).values
        # How many own rows each other row stands before: those it is as near as.
        beaten = torch.searchsorted(mine, cosine.masked_fill(own, -torch.inf) + TIE, right=True)
        beaten = torch.zeros(len(block), most + 1, dtype=torch.int64, device=block.device).scatter_add_(
            1, beaten, torch.ones_like(beaten)
        )
        before = beaten[:, 1:].flip(1).cumsum(1).flip(1)
        place = count - torch.arange(most, device=block.device)
        real = place > 0
        precision = torch.where(real, place.double() / (place + before), 0).sum(1) / count[:, 0]
        firsts.append(before.gather(1, count - 1)[:, 0])
        precisions.append(precision)
    return torch.cat(firsts), torch.cat(precisions)


def assigned(a: Tensor, a_ids: Tensor, b: Tensor, b_ids: Tensor) -> Tensor:
    """Which identities `(i,)` bool find themselves in the one-to-one matching with the largest sum.

    a, b: `(n, d)`, `(m, d)` unit rows; ids count from 0, and every one is on both sides.

    >>> assigned(torch.eye(3), torch.arange(3), torch.eye(3)[[0, 2, 1]], torch.arange(3))
    tensor([ True, False, False])
    """
    # scipy takes half a second to import.
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    cosine = (_means(a, a_ids) @ _means(b, b_ids).T).cpu().numpy()
    # A right pair must be worth more than a tie: else the solver would find the diagonal first.
    np.fill_diagonal(cosine, cosine.diagonal() - TIE)
    rows, columns = linear_sum_assignment(cosine, maximize=True)
    return torch.from_numpy(rows == columns)


def _means(h: Tensor, ids: Tensor) -> Tensor:
    total = h.new_zeros(int(ids.max()) + 1, h.shape[1])
    return unit_rows(total.index_add_(0, ids, h))


@dataclass(frozen=True)
class _Pairs:
    """The rows of both sides whose identity is on both, as unit rows, and their identities from 0."""

    a: Tensor
    a_ids: Tensor
    b: Tensor
    b_ids: Tensor
    settings: dict[str, JsonValue]


def _pairs(a: Features, b: Features, column: str | None) -> _Pairs:
    if a.layer != b.layer:
        raise ValueError(f"a has features of layer {a.layer!r}, b of layer {b.layer!r}")
    if a.width != b.width:
        raise ValueError(f"features of a are {a.width} wide, those of b {b.width}")
    names = _names(a, column), _names(b, column)
    found = [{name for name in side if name is not None} for side in names]
    shared = {name: number for number, name in enumerate(sorted(found[0] & found[1]))}
    if len(shared) < 2:
        what = "keys" if column is None else f"identities of column {column!r}"
        raise ValueError(
            f"{a.name or 'a'} and {b.name or 'b'} share {len(shared)} {what} "
            f"({len(found[0])} and {len(found[1])} there): matching needs two"
        )
    sides = []
    for features, side in zip((a, b), names, strict=True):
        kept = [i for i, name in enumerate(side) if name in shared]
        rows = unit_rows(features.h[kept].double())
        sides.append((rows, torch.tensor([shared[str(side[i])] for i in kept], device=rows.device)))
    settings: dict[str, JsonValue] = {
        "layer": a.layer,
        "column": column,
        "a": a.name,
        "b": b.name,
        "identities": len(shared),
        "a_n": len(sides[0][0]),
        "b_n": len(sides[1][0]),
        "a_unlabelled": sum(name is None for name in names[0]),
        "b_unlabelled": sum(name is None for name in names[1]),
        "a_only": len(found[0]) - len(shared),
        "b_only": len(found[1]) - len(shared),
    }
    return _Pairs(*sides[0], *sides[1], settings)


def _names(features: Features, column: str | None) -> list[str | None]:
    """Who each row shows; None where that is not known."""
    if column is None:
        if len(set(features.keys)) < len(features.keys):
            raise ValueError(f"keys of {features.name or 'a side'} come twice: give the column that says who")
        return list(features.keys)
    _, labels = features.column(column)
    return [labels.names[value] if value >= 0 else None for value in labels.values.tolist()]


def _ks(k: int | Sequence[int] | None, n: int) -> list[int]:
    if k is None:
        return [one for one in USUAL_K if one <= n]
    ks = list(k) if isinstance(k, Sequence) and not isinstance(k, str) else [k]
    if not ks:
        raise ValueError("k must name at least one number of neighbours, got none")
    for one in ks:
        if type(one) is not int or not 1 <= one <= n:
            raise ValueError(f"k must be between 1 and the {n} rows of the smaller side, got {one!r}")
    return ks


def _result(metric: str, value: float, n: int, settings: dict[str, JsonValue]) -> Result:
    # A mean of ones may round to just above 1.
    return Result(
        protocol=PROTOCOL, version=VERSION, metric=metric, value=min(value, 1.0), n=n, settings=settings
    )
