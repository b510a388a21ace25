"""The objectives that can do without their table of scores: how they run a tile, or a few rows, at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.checks import check_length, sample_similarity
from counterpoint.objectives.first_order import first_order
from counterpoint.objectives.row_objective import RowObjective
from counterpoint.objectives.rows import Rows, unit_views
from counterpoint.objectives.smoothing import cut
from counterpoint.objectives.streaming import ROWS, uncompiled
from counterpoint.objectives.tiles import TensorTiles, Tiles

ChunkSize = int | Literal["auto"] | None

FROM = 512
"""Rows, one a view of a sample, from which "auto" takes tiles: below, a table is as fast, and small."""

TABLE = 2**22
"""Scores from which "auto" takes blocks of rows, where the map is no softmax: 16 MiB in float32."""

BLOCK = 2**21
"""Scores of a block of rows where "auto" chooses: they stay in the cache. A quarter faster than the table."""


def chunk_size_of(value: ChunkSize) -> ChunkSize:
    """None, "auto" or an integer of at least 1, or a ValueError.

    >>> chunk_size_of(0)
    Traceback (most recent call last):
    ValueError: chunk_size must be None, 'auto' or an integer of at least 1, got 0
    """
    is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is not None and value != "auto" and not is_size:
        raise ValueError(f"chunk_size must be None, 'auto' or an integer of at least 1, got {value!r}")
    return value


class StreamedObjective(RowObjective):
    """An objective over rows that may take a few of them, or a tile, at a time; see `chunk_size`.

    chunk_size: None for a table of all scores; or how many anchors, and candidates, are taken at a time, at
        least 1; or "auto", which chooses by the size of the batch. Value, gradient and log are those of the
        table, up to rounding.

    With map="softmax" those are tiles of rows and columns. Other maps need a whole row of scores at a time,
    and so take blocks of whole rows, chunk_size x n.

    To write one, fill in `unit_rows`, and `tile_losses` where it has a softmax.
    """

    fewest = 2

    def __init__(self, map: str = "softmax", margin: float = 0.0, chunk_size: ChunkSize = "auto") -> None:
        super().__init__(map, margin)
        self.chunk_size = chunk_size_of(chunk_size)

    @abstractmethod
    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        """Scores and targets of views that have rows of length 1."""

    def tile_losses(self, z: Sequence[Tensor], known: Known, rows: int) -> tuple[Tensor, float | None]:
        """The losses `(r,)` with map="softmax" and the count of `Rows`, by tiles of so many rows and columns.

        `known.anchors` has its start and stop, and `known.target` is `Tiles` where it is given.
        """
        raise NotImplementedError(f"{self.name} has no softmax to take by tiles")

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        return self.unit_rows(unit_views(self.name, views, self.fewest), known)

    def streams(self, n: int, views: int = 2) -> bool:
        """Whether a batch of so many views of n samples is taken by tiles or blocks, without a table."""
        if self.chunk_size != "auto":
            return self.chunk_size is not None
        rows = views * n
        return rows >= FROM if self.map == "softmax" and self.margin == 0 else rows * rows >= TABLE

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        z = unit_views(self.name, views, self.fewest)
        n = len(z[0])
        if not self.streams(n, len(z)):
            return self.evaluate_rows(self.unit_rows(z, known), with_log)
        known = self._tiled(z, known)
        if self.map != "softmax" or self.margin:
            return self._by_blocks(z, known, with_log)
        step = ROWS if self.chunk_size == "auto" else min(cast(int, self.chunk_size), len(z) * n)
        losses, count = self.tile_losses(z, known, step)
        loss = self.reduce(losses, count)
        if not with_log:
            return loss, {}
        with torch.no_grad():
            _, log = self._by_blocks(z, known, True)
        return loss, {**log, "loss": loss}

    def _tiled(self, z: Sequence[Tensor], known: Known) -> Known:
        """The same with anchors written out, and a target that is sure to fit and gives tiles."""
        anchors = known.anchored(len(z[0]))
        if known.target is None:
            return replace(known, anchors=anchors)
        return replace(known, anchors=anchors, target=sample_tiles("target", known.target, z[0], anchors))

    def _by_blocks(self, z: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        """Loss and log from blocks of whole rows: parts of the anchors, which average to the whole."""
        anchors = cast(slice, known.anchors)
        step = cast(int, self.chunk_size)
        if self.chunk_size == "auto":
            step = BLOCK // (len(z) * len(z[0]))
        parts = cut(anchors, max(1, step // len(z)))
        log: Log = {}

        def part_loss(z: Sequence[Tensor], part: slice) -> Tensor:
            share = (part.stop - part.start) / (anchors.stop - anchors.start)
            loss, part_log = self.evaluate_rows(self.unit_rows(z, replace(known, anchors=part)), with_log)
            for key, value in part_log.items():
                value = value.detach().double() * share
                log[key] = log[key] + value if key in log else value
            return cast(Tensor, loss * share)

        loss = in_parts(part_loss, parts, list(z), list(self.parameters()))
        rounded = {key: value.round() if key in WHOLE else value for key, value in log.items()}
        return loss, {key: value.to(loss) for key, value in rounded.items()}

    @property
    def _map_repr(self) -> str:
        chunk = "" if self.chunk_size == "auto" else f", chunk_size={self.chunk_size}"
        return f"{super()._map_repr}{chunk}"


WHOLE = ("candidates", "anchors_skipped")


def in_parts(
    part_loss: Callable[[Sequence[Tensor], slice], Tensor],
    parts: list[slice],
    z: list[Tensor],
    parameters: list[Tensor],
) -> Tensor:
    """The sum of `part_loss(z, part)` over all parts, with a gradient to z and to the parameters it uses."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in [*z, *parameters])
    return cast(Tensor, uncompiled(_InParts, part_loss, parts, wanted, len(z), *z, *parameters))


class _InParts(torch.autograd.Function):
    """Written by hand so that no part is computed twice: each one's gradient is taken in the forward pass.

    It can be, because the loss is a sum over parts. What waits for the backward pass is of the size of z.
    """

    @staticmethod
    def forward(
        ctx: Any,
        part_loss: Callable[[Sequence[Tensor], slice], Tensor],
        parts: list[slice],
        wanted: bool,
        views: int,
        *inputs: Tensor,
    ) -> Tensor:
        total = inputs[0].new_zeros(())
        sums: list[Tensor | None] = [None] * len(inputs)
        z = [x.detach().requires_grad_(x.requires_grad) for x in inputs[:views]]
        leaves = [x for x in [*z, *inputs[views:]] if x.requires_grad] if wanted else []
        place = [i for i, x in enumerate([*z, *inputs[views:]]) if x.requires_grad] if wanted else []
        # The views are in the type to compute in; autocast would take the gradient's products in another.
        with torch.set_grad_enabled(wanted), torch.autocast(total.device.type, enabled=False):
            for part in parts:
                loss = part_loss(z, part)
                total += loss.detach()
                if not (wanted and loss.requires_grad):
                    continue
                for i, g in zip(place, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
                    if g is not None:
                        sums[i] = g if sums[i] is None else cast(Tensor, sums[i]).add_(g)
        ctx.save_for_backward(*sums)
        return total

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *(None if s is None else s * grad for s in ctx.saved_tensors)


def sample_tiles(name: str, values: Tensor | Tiles, like: Tensor, anchors: slice) -> Tiles:
    """A target as tiles that fit the samples of `like` `(n, d)`, or a ValueError."""
    if isinstance(values, Tensor) or not isinstance(values, Tiles):
        return TensorTiles(sample_similarity(name, values, like, anchors), anchors.start)
    check_length(name, values, like)
    return values
