"""What the processes of a group tell each other: rows, sums, counts and errors, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.objectives.first_order import first_order

T = TypeVar("T")
MOST_AXES = 6

# Renamed in torch 2.14, which warns of the names before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def gather(z: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The rows of all ranks, `(n, ...)`, those of rank 0 first; `z` itself where there is one process.

    z: `(n_local, ...)` floating or integer; ranks may have unequal numbers of rows. Every rank must call it.
    group: the ranks that take part, by default all.

    A gradient goes back to the rank whose rows they are, summed over the ranks: by a reduce-scatter with
    NCCL, by an all-reduce elsewhere. Half-precision gradients are summed in float32.

    Raises ValueError, on all ranks, where they differ in type or in any but the first axis.

    >>> gather(torch.tensor([3, 1]))
    tensor([3, 1])
    """
    ranks = Ranks.of(group)
    if ranks is None:
        return z
    known = isinstance(z, Tensor) and 1 <= z.ndim <= MOST_AXES and z.dtype in DTYPES
    shape = [*z.shape, *[-1] * (MOST_AXES - z.ndim)] if known else [-1] * MOST_AXES
    told = ranks.tell([DTYPES.index(z.dtype) if known else -1, *shape])
    if any(row[0] < 0 for row in told) or len({(row[0], *row[2:]) for row in told}) > 1:
        found = (
            f"{tuple(size for size in row[1:] if size >= 0)} {DTYPES[row[0]]}" if row[0] >= 0 else "none"
            for row in told
        )
        raise ValueError(
            f"gather needs a tensor with 1 to {MOST_AXES} axes on every rank, alike in type and in all axes "
            f"but the first, got {by_rank(found)}"
        )
    return ranks.rows(z, [row[1] for row in told])


@dataclass(frozen=True)
class Ranks:
    """The processes of a group, at least two, and what they tell each other."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> Ranks | None:
        """Those of the group, by default of all; None where there is only this process."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
            return None
        if dist.get_rank(group) < 0:
            raise ValueError("this rank is not in the group that was given")
        return cls(
            cast(dist.ProcessGroup, group or dist.group.WORLD),
            dist.get_rank(group),
            dist.get_world_size(group),
        )

    def tell(self, numbers: Sequence[int], error: Exception | None = None) -> list[tuple[int, ...]]:
        """What each rank tells all: as many whole numbers everywhere. An accelerator is not waited for.

        error: what went wrong here. Where that is something on any rank, it stops all: the rank raises it
        again, and the others its words, a ValueError as one and any other error as a RuntimeError.
        """
        own = torch.tensor([int(error is not None), *numbers], dtype=torch.int64)
        told = torch.empty(self.size * len(own), dtype=torch.int64)
        all_gather_single(told, own, group=_for_host(self.group))
        failed, *rest = told.view(self.size, -1).T.tolist()
        if any(failed):
            self._stop(error)
        return list(zip(*rest, strict=True))

    def _stop(self, error: Exception | None) -> None:
        own = None if error is None else (type(error).__name__, str(error), isinstance(error, ValueError))
        words = self.objects(own)
        rank, (kind, text, is_value) = next((r, w) for r, w in enumerate(words) if w is not None)
        if error is not None and not isinstance(error, ValueError):
            raise error
        if is_value:
            raise ValueError(f"rank {rank}: {text}") from error
        raise RuntimeError(f"rank {rank} stopped with {kind}: {text}")

    def objects(self, own: Any) -> list[Any]:
        """What each rank gives all, pickled; an accelerator is not waited for."""
        given: list[Any] = [None] * self.size
        dist.all_gather_object(given, own, group=_for_host(self.group))
        return given

    def attempt(self, do: Callable[[], T]) -> T:
        """What `do` returns; an error on one rank stops all, as `tell` says."""
        done, error = None, None
        try:
            done = do()
        except Exception as raised:
            error = raised
        self.tell((), error)
        return cast(T, done)

    def rows(self, z: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks, with a gradient; counts: how many each has."""
        gathered: Tensor = _Rows.apply(z, self, counts)
        return gathered

    def totals(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the ranks, with a gradient: one collective for all."""
        if not tensors:
            return []
        flat = torch.cat([x.flatten() for x in tensors])
        summed: Tensor = _Total.apply(flat, self)
        pieces = torch.split(summed, [x.numel() for x in tensors])
        return [piece.view_as(x).to(x.dtype) for piece, x in zip(pieces, tensors, strict=True)]

    def collect(self, z: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks. Where the counts differ they travel padded to the largest."""
        most = max(counts)
        z = _padded(z.contiguous(), most)
        gathered = z.new_empty(self.size * most, *z.shape[1:])
        all_gather_single(gathered, z, group=self._for(z))
        if min(counts) == most:
            return gathered
        return torch.cat(
            [block[:count] for block, count in zip(torch.split(gathered, most), counts, strict=True)]
        )

    def own_rows(self, z: Tensor, counts: Sequence[int]) -> Tensor:
        """This rank's rows of the sum over the ranks."""
        wide = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
        if _backend(self.group, z.device.type) != "nccl":
            start = sum(counts[: self.rank])
            return self.add_up(wide.clone())[start : start + counts[self.rank]].to(z.dtype)
        most = max(counts)
        blocks = [_padded(block, most) for block in torch.split(wide, list(counts))]
        own = wide.new_empty(most, *wide.shape[1:])
        reduce_scatter_single(own, torch.cat(blocks), group=self.group)
        return own[: counts[self.rank]].to(z.dtype)

    def add_up(self, z: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        z = z.contiguous()
        dist.all_reduce(z, group=self._for(z))
        return z

    def mean(self, z: Tensor) -> Tensor:
        """The mean over the ranks."""
        return self.add_up(z.clone()) / self.size

    def _for(self, z: Tensor) -> dist.ProcessGroup:
        return self.group if _backend(self.group, z.device.type) else _for_host(self.group)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, ranks: Ranks, counts: Sequence[int]) -> Tensor:
        ctx.ranks, ctx.counts = ranks, counts
        return ranks.collect(z, counts)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ranks.own_rows(grad, ctx.counts), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.add_up(z.clone())

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.add_up(grad.clone()), None


def _padded(block: Tensor, most: int) -> Tensor:
    if len(block) == most:
        return block
    return torch.cat([block, block.new_zeros(most - len(block), *block.shape[1:])])


def _backend(group: dist.ProcessGroup, device: str) -> str | None:
    """The backend of the group for tensors on such a device, None where it has none."""
    pairs = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return pairs.get(device)


@lru_cache(maxsize=8)
def _for_host(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group itself where it carries tensors of the host, or one of the same ranks that does.

    What ranks tell each other before and between the large collectives stays off the accelerator: to read it
    there would wait for all work queued.
    """
    if _backend(group, "cpu"):
        return group
    ranks = dist.get_process_group_ranks(group)
    return cast(dist.ProcessGroup, dist.new_group(ranks, backend="gloo", use_local_synchronization=True))


def by_rank(values: Iterable[object]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
