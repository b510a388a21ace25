"""The gradient of a large batch in the memory of a small one.

A contrastive loss needs the embeddings of the whole batch, and they are small; what is large is what the
encoder keeps for the backward pass. So the batch is encoded twice, part by part: once without a graph, for
the embeddings, the loss and its gradient to them, and once more with a graph that lives for one part only.
Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from counterpoint.data.batches import Batch

Part = TypeVar("Part")
RandomState = tuple[Tensor, Tensor | None]


class BatchNormWarning(UserWarning):
    """BatchNorm sees one part of a batch at a time, so that the gradient is not that of the whole batch."""


def cached_backward(
    encode: Callable[[Part], tuple[Tensor, ...]],
    parts: Sequence[Part],
    objective: Callable[..., Tensor],
    *,
    encoder: nn.Module | None = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
    no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Tensor:
    """Add the gradient of `objective` on a whole batch to the parameters; the loss comes back, detached.

    The gradient is that of one backward pass through all parts at once, and so, without BatchNorm and
    dropout, that of the batch encoded in one go. Dropout draws the same in both passes, from the CPU's and
    the current GPU's generator, which move on as if each part had been encoded once.

    encode: one part to its embeddings, `(n_part, d)` for each view.
    parts: what `encode` takes, in the order of the batch. One of them is held in memory at a time.
    objective: the embeddings of the batch, `(n, d)` for each view, to a scalar. It is called once, and may
        gather over processes, as `AcrossRanks` does. Its own parameters get their gradient too.
    encoder: the module that encodes. Its buffers, such as BatchNorm's running statistics, then move in the
        second pass alone, and a BatchNormWarning says where BatchNorm makes the gradient another one.
    backward: what is done to a scalar in place of its `backward()`: `fabric.backward`, or for a GradScaler
        `lambda loss: scaler.scale(loss).backward()`.
    no_sync: a context under which DistributedDataParallel does not synchronise, `model.no_sync`. It is used
        for all parts but the last one, which synchronises for all.

    Raises ValueError on no parts, and on a loss without a gradient.

    >>> from counterpoint.objectives import NTXent
    >>> encoder, pictures = nn.Linear(6, 4), torch.randn(2, 8, 6)
    >>> loss = cached_backward(
    ...     lambda part: (encoder(part[0]), encoder(part[1])), pictures.split(2, dim=1), NTXent()
    ... )
    >>> large = NTXent()(encoder(pictures[0]), encoder(pictures[1]))
    >>> torch.allclose(encoder.weight.grad, *torch.autograd.grad(large, encoder.weight), atol=1e-6)
    True
    """
    cache = Cache(encode, parts, encoder, no_sync)
    loss = objective(*cache.views)
    cache.backward(loss, backward)
    return loss.detach()


class Cache(Generic[Part]):
    """The two passes of `cached_backward`, for a loop that has something to do between them.

    views: the embeddings of the batch, `(n, d)` for each view, to compute the loss of.
    """

    def __init__(
        self,
        encode: Callable[[Part], tuple[Tensor, ...]],
        parts: Sequence[Part],
        encoder: nn.Module | None = None,
        no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        if not parts:
            raise ValueError("parts must be one or more parts of a batch, got none")
        _warn_of_batchnorm(encoder)
        self._encode, self._parts, self._no_sync = encode, parts, no_sync
        self._states: list[RandomState] = []
        pieces = []
        with torch.no_grad(), no_sync(), _buffers_kept(encoder):
            for part in parts:
                self._states.append(_random_state())
                pieces.append(encode(part))
        self._lengths = [len(piece[0]) for piece in pieces]
        self.views = tuple(torch.cat(view).requires_grad_() for view in zip(*pieces, strict=True))
        # Under autocast the weights of the first pass would be used again, and they have no graph.
        torch.clear_autocast_cache()

    def backward(self, loss: Tensor, backward: Callable[[Tensor], object] = Tensor.backward) -> None:
        """Add the gradient of the loss of `views` to the parameters; ValueError for a loss without one."""
        if not loss.requires_grad:
            raise ValueError("the loss has no gradient: compute it of the views as they are, grad enabled")
        unit = torch.zeros_like(loss, requires_grad=True)
        backward(loss + unit)
        # What `backward` multiplies by, as a GradScaler does; it will do so once more.
        factor = torch.ones_like(loss) if unit.grad is None else unit.grad
        gradients = zip(
            *(torch.split(_gradient(view) / factor, self._lengths) for view in self.views), strict=True
        )
        after = _random_state()
        passes = list(zip(self._parts, self._states, gradients, strict=True))
        for number, (part, state, gradient) in enumerate(passes, 1):
            with nullcontext() if number == len(passes) else self._no_sync():
                _set_random_state(state)
                again = self._encode(part)
                backward(torch.stack([(z * g).sum() for z, g in zip(again, gradient, strict=True)]).sum())
        _set_random_state(after)


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """A batch in so many parts of nearly one size, fewer where it has fewer samples.

    >>> batch = Batch(torch.arange(5), [torch.zeros(5, 3, 8, 8)])
    >>> [part.ids.tolist() for part in micro_batches(batch, 2)]
    [[0, 1, 2], [3, 4]]
    """
    count = min(count, len(batch.ids))
    ids = batch.ids.tensor_split(count)
    views = zip(*(view.tensor_split(count) for view in batch.views), strict=True)
    tokens = [None] * count if batch.tokens is None else batch.tokens.tensor_split(count)
    return [
        replace(batch, ids=i, views=list(v), tokens=t) for i, v, t in zip(ids, views, tokens, strict=True)
    ]


def _gradient(view: Tensor) -> Tensor:
    return torch.zeros_like(view) if view.grad is None else view.grad


def _warn_of_batchnorm(encoder: nn.Module | None) -> None:
    found = [
        name
        for name, module in (() if encoder is None else encoder.named_modules())
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and _in_use(module)
    ]
    if found:
        warnings.warn(
            f"the gradient cache differs from the large batch: BatchNorm ({len(found)} of them, the first is "
            f"{found[0]}) normalises each part by itself",
            BatchNormWarning,
            stacklevel=3,
        )


def _in_use(module: nn.modules.batchnorm._BatchNorm) -> bool:
    """Whether it normalises by the batch."""
    return module.training or module.running_mean is None


@contextmanager
def _buffers_kept(encoder: nn.Module | None) -> Iterator[None]:
    buffers = [] if encoder is None else list(encoder.buffers())
    before = [buffer.clone() for buffer in buffers]
    yield
    for buffer, kept in zip(buffers, before, strict=True):
        buffer.copy_(kept)


def _random_state() -> RandomState:
    """Of the CPU and of the current GPU."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None


def _set_random_state(state: RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
