"""Losses with a softmax by tiles: the scores' side by `log_sum_exp`, the target's in O(n d) or `smoothed`.

    loss_i = log sum_j exp(s_ij) - sum_j y_ij s_ij

The second sum is the product of the anchor with a mean of its candidates, by y_i: the mean of one group's
vectors for labels and ids, which takes no pairs at all, and `smoothed` for soft targets. Where an anchor's
only positives are its sample's other views, their scores are left out of the first sum, computed once and
added: the loss is as exact near 0 as anywhere.

Views are unit vectors `(n, d)`, anchors a slice with start and stop, and losses `(V * a,)` or `(a,)`, in the
order of `scores_all_views` and `scores_across_views`. A tile has so many rows, and as many columns, of all
views together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoint.objectives import triton_softmax
from counterpoint.objectives.smoothing import smoothed
from counterpoint.objectives.streaming import Plan, is_safe, log_sum_exp
from counterpoint.objectives.tiles import Tiles
from counterpoint.objectives.triton_switch import takes_triton


def all_views_losses(
    z: Sequence[Tensor],
    tau: float,
    anchors: slice,
    rows: int,
    groups: Tensor | None = None,
    negatives: Tensor | None = None,
) -> Tensor:
    """NT-Xent, and SupCon where groups `(n,)` say which samples are positives of each other, `(V * a,)`.

    negatives: `(m, d)` unit vectors that are candidates of all and positives of none.

    >>> z = torch.eye(3)
    >>> all_views_losses([z, z], 0.5, slice(0, 1), rows=2)
    tensor([0.4327, 0.4327])
    """
    step = max(1, rows // len(z))
    if groups is None and len(z) > 1:
        scored = _all_views(z, tau, anchors, step, "sample", negatives)
        q, k = scored.q, scored.k[:, anchors]
        pairs = {(u, w): (q[u] * k[w]).sum(1) for u, w in combinations(range(len(z)), 2)}
        others = [[pairs[min(u, w), max(u, w)] for w in range(len(z)) if w != u] for u in range(len(z))]
        return _from_rest(scored.rest, torch.stack([torch.stack(p) for p in others], 1)).flatten()
    scored = _all_views(z, tau, anchors, step, "itself", negatives)
    q, own = scored.q, (scored.q * scored.k[:, anchors]).sum(2)
    if groups is None:
        groups = torch.arange(len(z[0]), device=q.device)
    sums, counts = _of_groups(groups, scored.k.sum(0))
    positives = (q * sums[anchors]).sum(2) - own
    return (scored.rest - positives / (len(z) * counts[anchors] - 1).clamp_min(1)).flatten()


def soft_losses(
    z: Sequence[Tensor], tau: float, anchors: slice, rows: int, tiles: Tiles, tau_s: float
) -> Tensor:
    """X-CLR, `(V * a,)`.

    >>> from counterpoint.objectives.tiles import TensorTiles
    >>> z = torch.eye(3)
    >>> soft_losses([z, z], 0.5, slice(0, 1), 2, TensorTiles(torch.eye(3)), tau_s=0.5)
    tensor([1.1351, 1.1351])
    """
    step = max(1, rows // len(z))
    features = getattr(tiles, "features", None)
    if features is not None and takes_triton(z[0]):
        q, k = _scaled(z, tau, anchors)
        return triton_softmax.soft_losses(q, k, anchors.start, features, tau_s).flatten()
    scored = _all_views(z, tau, anchors, step, "itself", None)
    mean, own_weight = smoothed(scored.k.sum(0), tiles, tau_s, anchors, step, len(z))
    own = (scored.q * scored.k[:, anchors]).sum(2)
    return (scored.rest - (scored.q * mean).sum(2) + own_weight * own).flatten()


def across_losses(
    a: Tensor,
    b: Tensor,
    tau: float | Tensor,
    anchors: slice,
    rows: int,
    groups: Tensor | None = None,
    both_ways: bool = False,
    negatives: Tensor | None = None,
) -> Tensor:
    """InfoNCE of anchors of one view among another, `(a,)`; with `both_ways` the other way's below them.

    >>> across_losses(torch.eye(3), torch.eye(3), 0.5, slice(1, 3), rows=2)
    tensor([0.2395, 0.2395])
    """
    plan = _plan(tau, a, rows, anchors.start)
    plan = replace(plan, without=None if groups is not None else "sample")
    some = anchors != slice(0, len(a))
    if both_ways and some:
        ways = [across_losses(x, y, tau, anchors, rows, groups) for x, y in ((a, b), (b, a))]
        return torch.cat(ways)
    q, k = (a[anchors] / tau)[None], b[None]
    first, columns = log_sum_exp(q, k, replace(plan, columns=both_ways))
    rest = [_with_negatives(first, q, negatives, plan)] + ([] if columns is None else [columns])
    if groups is None:
        positives = (q * k[:, anchors]).sum(2)[None]
        return torch.cat([_from_rest(r, positives) for r in rest], 1).flatten()
    sums, counts = _of_groups(groups, b)
    losses = [rest[0][0] - (q[0] * sums[anchors]).sum(1) / counts[anchors]]
    if columns is not None:
        losses.append(rest[1][0] - (b * _of_groups(groups, q[0])[0]).sum(1) / counts)
    return torch.cat(losses)


@dataclass(frozen=True)
class _Scored:
    """Anchors `(V, a, d)` and candidates `(V, n, d)` whose products are the scores, and the first sum."""

    q: Tensor
    k: Tensor
    rest: Tensor


def _all_views(
    z: Sequence[Tensor],
    tau: float,
    anchors: slice,
    step: int,
    without: Literal["itself", "sample"],
    negatives: Tensor | None,
) -> _Scored:
    plan = replace(_plan(tau, z[0], step, anchors.start), without=without)
    q, k = _scaled(z, tau, anchors)
    rest, _ = log_sum_exp(q, k, plan)
    if negatives is not None:
        negatives = negatives * tau**-0.5
    return _Scored(q, q if k is None else k, _with_negatives(rest, q, negatives, plan))


def _scaled(z: Sequence[Tensor], tau: float, anchors: slice) -> tuple[Tensor, Tensor | None]:
    """Anchors `(V, a, d)` and candidates `(V, n, d)`, None where the same, each over the root of tau."""
    # The scale goes to both sides alike, so that they can be the same.
    k = torch.stack(list(z)) * tau**-0.5
    return (k, None) if anchors == slice(0, len(z[0])) else (k[:, anchors], k)


def _plan(tau: float | Tensor, like: Tensor, step: int, start: int) -> Plan:
    # A learned tau on an accelerator is not waited for.
    known = not isinstance(tau, Tensor) or tau.device.type == "cpu"
    tau = tau.detach() if isinstance(tau, Tensor) else tau
    return Plan(step, start, safe=known and is_safe(1.001 / float(tau), like.dtype))


def _with_negatives(rest: Tensor, q: Tensor, negatives: Tensor | None, plan: Plan) -> Tensor:
    if negatives is None or not len(negatives):
        return rest
    more, _ = log_sum_exp(q, negatives[None], replace(plan, without=None))
    return torch.logaddexp(rest, more)


def _from_rest(rest: Tensor, positives: Tensor) -> Tensor:
    """Losses `(V, a)` from the log-sum-exp of all but the positives, and the scores `(p, V, a)` of these."""
    if len(positives) == 1:
        # Beyond the threshold softplus is the identity, in float64 too.
        return softplus(rest - positives[0], threshold=60)
    return torch.logsumexp(torch.cat([rest[None], positives]), 0) - positives.mean(0)


def _of_groups(groups: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample the sum of its group's vectors `(n, d)`, and how many there are `(n,)`."""
    _, place, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    sums = z.new_zeros(len(counts), z.shape[1]).index_add(0, place, z)
    return sums[place], counts[place]
