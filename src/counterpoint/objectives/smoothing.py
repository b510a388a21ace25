"""Means of vectors by a soft target, a tile of the target at a time.

The target-weighted score of an anchor is linear in its candidates: the sum of y_ij cos(z_i, z_j) over j is
the product of z_i with the mean of the z_j by y_i. So that mean, d numbers an anchor, is all that a loss
needs of a target, and all views of a sample share it.

A row keeps its largest similarity so far and the sum of weights less that. The backward pass computes the
tiles anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.streaming import is_safe, uncompiled
from counterpoint.objectives.tiles import Tiles, checked_tile


def smoothed(
    x: Tensor, tiles: Tiles, tau_s: float, anchors: slice, step: int, v: int
) -> tuple[Tensor, Tensor]:
    """The means `(a, d)` of x by the weights exp(G_ij / tau_s) of each anchor, and its own weight `(a,)`.

    x: `(n, d)`, for each sample the sum of its v views.
    tiles: G. step: samples a tile, of the rows and of the columns.

    Weights are scaled so that those of all v * n candidates but the anchor itself add up to 1. With v = 1 the
    anchor's own is 0; else its other views have it, and the mean still counts the anchor among them. Only x
    gets a gradient.

    >>> from counterpoint.objectives.tiles import TensorTiles
    >>> smoothed(2 * torch.eye(2), TensorTiles(torch.zeros(2, 2)), 0.1, slice(0, 2), step=1, v=2)
    (tensor([[0.6667, 0.6667],
            [0.6667, 0.6667]]), tensor([0.3333, 0.3333]))
    """
    return cast(tuple[Tensor, Tensor], uncompiled(_Smoothed, x, tiles, tau_s, anchors, step, v))


class _Smoothed(torch.autograd.Function):
    """Written by hand so that the backward pass computes the tiles anew instead of keeping them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, tiles: Tiles, tau_s: float, anchors: slice, step: int, v: int
    ) -> tuple[Tensor, Tensor]:
        weights = _Weights(tiles, tau_s, anchors, step, v, x)
        blocks = torch.split(x, step)
        mean = [x.new_zeros(rows.stop - rows.start, x.shape[1]) for rows in weights.rows]
        total = [x.new_zeros(len(block), 1) for block in mean]
        own = [x.new_full((len(block), 1), -math.inf) for block in mean]
        top = [torch.full_like(t, torch.finfo(x.dtype).min) for t in total]
        if weights.high is not None:
            top = [torch.full_like(t, weights.high) for t in total]
        with torch.autocast(x.device.type, enabled=False):
            for i, j, similarity in weights.tiles(own):
                if weights.high is None:
                    old, top[i] = top[i], torch.maximum(top[i], similarity.amax(1, keepdim=True))
                    shrink = (old - top[i]).div_(tau_s).exp_()
                    total[i] *= shrink
                    mean[i] *= shrink
                w = weights.of(similarity, top[i])
                total[i] += w.sum(1, keepdim=True)
                mean[i].addmm_(w, blocks[j])
                if weights.half and i != j:
                    total[j] += w.sum(0)[:, None]
                    mean[j].addmm_(w.T, blocks[i])
        highest, sums = torch.cat(top), torch.cat(total)
        own_weight = torch.cat(own).sub_(highest).div_(tau_s).exp_()
        sums = v * sums - own_weight
        ctx.weights = weights
        ctx.save_for_backward(highest, sums)
        share = (own_weight / sums).squeeze(1)
        ctx.mark_non_differentiable(share)
        return torch.cat(mean).div_(sums), share

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        highest, sums = ctx.saved_tensors
        weights: _Weights = ctx.weights
        tops, grads = torch.split(highest, weights.step), torch.split(grad / sums, weights.step)
        out = [grad.new_zeros(columns.stop - columns.start, grad.shape[1]) for columns in weights.columns]
        with torch.autocast(grad.device.type, enabled=False):
            for i, j, similarity in weights.tiles(None):
                w = weights.of(similarity, tops[i])
                out[j].addmm_(w.T, grads[i])
                if weights.half and i != j:
                    out[i].addmm_(w, grads[j])
        return torch.cat(out), None, None, None, None, None


class _Weights:
    """The tiles of a similarity, and the weights of an anchor that are made of them.

    high: what no entry exceeds, where the weights need no largest of a row taken off; else None.
    half: whether a tile (i, j) stands for (j, i) too, which then is not among them.
    """

    def __init__(self, tiles: Tiles, tau_s: float, anchors: slice, step: int, v: int, like: Tensor) -> None:
        self.source, self.tau_s, self.step, self.like = tiles, tau_s, step, like.detach()[:0]
        n = len(like)
        self.rows, self.columns = cut(anchors, step), cut(slice(0, n), step)
        # The anchor of a single view is left out, and what is left may lie far below the bound.
        bounds = getattr(tiles, "bounds", None)
        narrow = bounds is not None and is_safe((bounds[1] - bounds[0]) / tau_s, like.dtype)
        self.high = float(bounds[1]) if bounds is not None and narrow else None
        self.half = narrow and anchors == slice(0, n) and bool(getattr(tiles, "symmetric", False))
        self.alone = v == 1
        self.memory = like.new_empty(min(step, n) ** 2)

    def tiles(self, own: list[Tensor] | None) -> Iterator[tuple[int, int, Tensor]]:
        """The numbers of the blocks of rows and columns, and a similarity; an anchor's own goes to `own`."""
        for i, rows in enumerate(self.rows):
            for j in range(i if self.half else 0, len(self.columns)):
                columns = self.columns[j]
                tile = checked_tile(self.source, rows, columns, self.like)
                first, last = max(rows.start, columns.start), min(rows.stop, columns.stop)
                if first < last:
                    offset = rows.start - columns.start
                    if self.alone:
                        # A copy: it may be a part of what the user holds.
                        tile = tile.clone()
                        tile.diagonal(offset).fill_(-math.inf)
                    elif own is not None:
                        own[i][first - rows.start : last - rows.start, 0] = tile.diagonal(offset)
                yield i, j, tile

    def of(self, similarity: Tensor, top: Tensor) -> Tensor:
        """exp of the similarity less that, over tau_s, in memory that the next call writes over."""
        out = self.memory[: similarity.numel()].view(similarity.shape)
        return torch.sub(similarity, top, out=out).div_(self.tau_s).exp_()


def cut(samples: slice, step: int) -> list[slice]:
    """The slices of `step` samples that these are made of; the last may be shorter.

    >>> cut(slice(2, 7), 3)
    [slice(2, 5, None), slice(5, 7, None)]
    """
    return [slice(i, min(i + step, samples.stop)) for i in range(samples.start, samples.stop, step)]
