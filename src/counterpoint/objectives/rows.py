"""From views to rows: each anchor's scores against its candidates, and its target over them.

Words: n samples, V views, d width. Two layouts of the rows:

* *all views*: every view of every sample is an anchor and a candidate, r = c = V * n. Views are stacked in
  blocks (all of view 0, then all of view 1, ...). An anchor is not its own candidate: the self pair is
  excluded from scores (-inf) and from targets (0), both.
* *across views*: the samples of one view are anchors, those of another are candidates, c = n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor

from counterpoint.objectives.checks import check_views, is_dense, sample_integers
from counterpoint.objectives.first_order import first_order

SHORTEST = 1e-12
"""A vector shorter than this has no direction: it scores 0 with everything and gets no gradient."""


@dataclass(frozen=True)
class Rows:
    """What a row-wise objective is a function of.

    scores: `(r, c)`, -inf at the self pair.
    target: int64 `(r,)`, the one positive of each anchor, or `(r, c)`, a distribution over its candidates.
    candidates: how many candidates each anchor has, the self pair not counted.
    anchors_skipped: how many anchors have no positive and are not among the rows; of all samples, also where
        only some of them are anchors.
    count: what a sum over the rows is divided by for their mean; None for the number of rows.
    """

    scores: Tensor
    target: Tensor
    candidates: int
    anchors_skipped: int = 0
    count: float | None = None

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the anchors of one value for each `(r,)`.

        Where only some samples are anchors, means of the parts average to the mean of the whole, each
        counting with its share of the samples.
        """
        return mean_of(values, self.count)


def mean_of(values: Tensor, count: float | None) -> Tensor:
    """The mean over the anchors of one value for each `(r,)`, with the count of `Rows`."""
    return values.mean() if count is None else values.sum() / count


def unit_views(objective: str, views: Sequence[Tensor], fewest: int = 2) -> list[Tensor]:
    """The views with rows of length 1, in float32 or better; ValueError where they do not fit together."""
    check_views(objective, views, fewest)
    dtype = torch.float32
    for z in views:
        dtype = torch.promote_types(dtype, z.dtype)
    return [_unit(shrunk(z.to(dtype))) for z in views]


def shrunk(z: Tensor) -> Tensor:
    """The rows of z, those too long to be squared made shorter by a power of two, which rounds nothing.

    >>> shrunk(torch.tensor([[3.0, 4.0], [3e30, 4e30]])).norm(dim=1).isfinite()
    tensor([True, True])
    """
    largest = torch.finfo(z.dtype).max
    too_long = z.detach().abs().amax(1, keepdim=True) > largest**0.25
    exponent = -round(math.log2(largest) * 0.625)
    return z * torch.where(too_long, 2.0**exponent, 1.0).to(z.dtype)


def _unit(z: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z.div(length.masked_fill(length < SHORTEST, math.inf))


def products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, itself and its gradient in the type of a and b, under autocast too."""
    return cast(Tensor, _Products.apply(a, b))


class _Products(torch.autograd.Function):
    """a @ b.T, written by hand because autocast would round its gradient too, and overflow in float16."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        with torch.autocast(a.device.type, enabled=False):
            return a @ b.T

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            return (
                grad @ b if ctx.needs_input_grad[0] else None,
                grad.T @ a if ctx.needs_input_grad[1] else None,
            )


def own_places(anchors: slice, n: int, v: int, device: torch.device) -> Tensor:
    """Where each of the anchors of `scores_all_views` finds itself among the candidates, int64 `(V*a, 1)`.

    >>> own_places(slice(1, 3), n=4, v=2, device=torch.device("cpu")).T
    tensor([[1, 2, 5, 6]])
    """
    places = torch.arange(anchors.start, anchors.stop, device=device)
    return (places + n * torch.arange(v, device=device)[:, None]).reshape(-1, 1)


def scores_all_views(views: Sequence[Tensor], tau: float, anchors: slice | None = None) -> Tensor:
    """Cosine over tau of every view of every sample with every other, `(V*n, V*n)`; the self pair is -inf.

    anchors: with start and stop; the rows are those of these samples alone, `(V*a, V*n)`.
    """
    z, n = torch.cat(list(views)), len(views[0])
    if anchors is None or anchors == slice(0, n):
        return products(z / tau, z).fill_diagonal_(-math.inf)
    scores = products(torch.cat([view[anchors] for view in views]) / tau, z)
    return scores.scatter_(1, own_places(anchors, n, len(views), z.device), -math.inf)


def scores_across_views(
    views: Sequence[Tensor],
    tau: float | Tensor = 1.0,
    both_ways: bool = True,
    anchors: slice | None = None,
) -> Tensor:
    """Cosine over tau between the samples of two views, `(k*n, n)`: k pairs of views, one below the other.

    The pairs are (a, b) with a < b: anchors from view a, candidates from view b. With `both_ways` each is
    followed by (b, a).

    anchors: with start and stop; the rows are those of these samples alone, `(k*a, n)`.
    """
    some = anchors is not None and anchors != slice(0, len(views[0]))
    blocks = []
    for a, b in combinations(views, 2):
        scores = products((a[anchors] if some else a) / tau, b)
        blocks.append(scores)
        if both_ways:
            blocks.append(products(b[anchors] / tau, a) if some else scores.T)
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def add_negatives(rows: Rows, anchors: Sequence[Tensor], negatives: Tensor | None, tau: float) -> Rows:
    """The rows with further candidates `(m, d)` that are no positives; anchors: their vectors, in order."""
    if negatives is None or not len(negatives):
        return rows
    scores = torch.cat([rows.scores, products(torch.cat(list(anchors)) / tau, negatives)], 1)
    target = rows.target
    if target.ndim == 2:
        target = torch.cat([target, target.new_zeros(len(target), len(negatives))], 1)
    return replace(rows, scores=scores, target=target, candidates=rows.candidates + len(negatives))


def unit_negatives(negatives: Tensor | None, like: Tensor) -> Tensor | None:
    """Further candidates `(m, d)` as unit vectors of the type of `like` `(n, d)`, without a gradient."""
    if negatives is None:
        return None
    fits = isinstance(negatives, Tensor) and negatives.ndim == 2 and is_dense(negatives)
    if not fits or negatives.shape[1] != like.shape[1] or negatives.device != like.device:
        got = (
            f"{tuple(negatives.shape)}, {negatives.dtype}, {negatives.device}"
            if fits
            else repr(negatives)[:60]
        )
        raise ValueError(
            f"negatives must be a floating tensor (m, {like.shape[1]}) on {like.device}, got {got}"
        )
    return _unit(shrunk(negatives.detach().to(like.dtype)))


def same_id(ids: Tensor | None, like: Tensor, anchors: slice | None = None) -> Tensor | None:
    """Which samples are the same, `(n, n)` bool; None where no ids are given: all are different.

    anchors: the rows are those of these samples alone, `(a, n)`.
    """
    if ids is None:
        return None
    ids = sample_integers("ids", ids, like)
    return (ids if anchors is None else ids[anchors])[:, None] == ids


def target_all_views(same: Tensor | None, views: Sequence[Tensor], anchors: slice | None = None) -> Tensor:
    """The target for `scores_all_views`: uniform over an anchor's positives.

    same: `(n, n)` bool with a true diagonal, which samples are positives of each other; None: only views of
        one sample are. An anchor without a positive gets a row of zeros.
    anchors: with start and stop, as for the scores; `same` is then `(a, n)`.
    """
    z, n, v = views[0], len(views[0]), len(views)
    anchors = slice(0, n) if anchors is None else anchors
    own = own_places(anchors, n, v, z.device)
    if same is None:
        if v == 2:
            return (own.squeeze(1) + n) % (2 * n)
        same = own[: anchors.stop - anchors.start] == torch.arange(n, device=z.device)
    positives = v * same.sum(1, keepdim=True) - 1
    return (same.to(z.dtype) / positives.clamp_min(1)).repeat(v, v).scatter_(1, own, 0)


def target_across_views(same: Tensor | None, scores: Tensor, anchors: slice | None = None) -> Tensor:
    """The target for `scores_across_views`: the anchor's other view, or uniform over all that are `same`.

    anchors: with start and stop, as for the scores; `same` is then `(a, n)`.
    """
    rows, n = scores.shape
    anchors = slice(0, n) if anchors is None else anchors
    pairs = rows // (anchors.stop - anchors.start)
    if same is None:
        return torch.arange(anchors.start, anchors.stop, device=scores.device).repeat(pairs)
    return (same.to(scores.dtype) / same.sum(1, keepdim=True)).repeat(pairs, 1)


def target_soft(similarity: Tensor, tau_s: float, v: int, anchors: slice | None = None) -> Tensor:
    """The target for `scores_all_views`: softmax of a similarity of samples `(n, n)`, without the self pair.

    Candidates that are another view of the anchor's own sample have the similarity on the diagonal.

    anchors: with start and stop, as for the scores; the similarity is then `(a, n)`.
    """
    n = similarity.shape[1]
    own = own_places(slice(0, n) if anchors is None else anchors, n, v, similarity.device)
    own_sample = own[: len(similarity)]
    if v == 1:
        similarity = similarity.scatter(1, own_sample, -math.inf)
    # All views of a sample share one row of weights, so the softmax is taken once, over samples. The
    # largest is taken off before the division, which could leave the range of numbers.
    weight = (similarity - similarity.amax(1, keepdim=True)).div_(tau_s).exp_()
    mass = v * weight.sum(1, keepdim=True) - weight.gather(1, own_sample)
    return weight.div_(mass).repeat(v, v).scatter_(1, own, 0)


def positive_and_negatives(rows: Rows) -> tuple[Tensor, Tensor]:
    """Each anchor's lowest-scored positive `(r,)`, and the scores with -inf at its positives `(r, c)`."""
    if rows.target.ndim == 1:
        index = rows.target[:, None]
        return rows.scores.gather(1, index).squeeze(1), rows.scores.scatter(1, index, -math.inf)
    positive = rows.target > 0
    return rows.scores.masked_fill(~positive, math.inf).amin(1), rows.scores.masked_fill(positive, -math.inf)
