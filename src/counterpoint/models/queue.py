"""A queue of embeddings: the newest ones of past batches, to be candidates of later ones.

Paper: He, Fan, Wu, Xie, Girshick, "Momentum contrast for unsupervised visual representation learning", 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Queue(nn.Module):
    """First in, first out: the newest `length` embeddings that were pushed.

    length: rows it holds when it is full, at least 1; shorter than a batch is allowed. width: d of a row.

    Slots that nothing was pushed into yet are never given out. What it holds, and where the next row goes,
    is in its state dict. With several processes push what all of them gathered: then all queues are the same.

    Raises ValueError on a length or a width below 1.

    >>> queue = Queue(3, width=1)
    >>> queue.push(torch.tensor([[1.0], [2.0]]))
    >>> queue.contents().tolist()
    [[1.0], [2.0]]
    >>> queue.push(torch.tensor([[3.0], [4.0]]))
    >>> sorted(queue.contents().tolist())
    [[2.0], [3.0], [4.0]]
    """

    slots: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        for name, value in (("length", length), ("width", width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of a queue must be a whole number of at least 1, got {value!r}")
        self.register_buffer("slots", torch.zeros(length, width))
        self._filled = self._next = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def length(self) -> int:
        """Rows it holds when it is full."""
        return len(self.slots)

    def contents(self) -> Tensor:
        """The rows it holds, `(m, d)` float32 with m <= length, in no order to rely on.

        They are the queue's own memory, for one step: the next push overwrites the oldest of them.
        """
        return self.slots[: self._filled]

    @torch.no_grad()
    def push(self, z: Tensor) -> None:
        """Put the rows of z, `(n, d)` floating, in, each for the oldest one. Of more than fit, the last ones.

        Call it after the backward pass that used `contents`. Raises ValueError on another width.
        """
        d = self.slots.shape[1]
        if not isinstance(z, Tensor) or z.ndim != 2 or z.shape[1] != d or not z.is_floating_point():
            got = f"{tuple(z.shape)} {z.dtype}" if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"a queue of width {d} takes floating rows (n, {d}), got {got}")
        z = z.detach()[-self.length :].to(self.slots)
        first = min(len(z), self.length - self._next)
        self.slots[self._next : self._next + first] = z[:first]
        self.slots[: len(z) - first] = z[first:]
        self._next = (self._next + len(z)) % self.length
        self._filled = min(self._filled + len(z), self.length)

    def get_extra_state(self) -> dict[str, int]:
        """How many slots are filled, and which is next: part of the state dict."""
        return {"filled": self._filled, "next": self._next}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """What `get_extra_state` gave."""
        self._filled, self._next = state["filled"], state["next"]

    def extra_repr(self) -> str:
        return f"length={self.length}, width={self.slots.shape[1]}, filled={self._filled}"
