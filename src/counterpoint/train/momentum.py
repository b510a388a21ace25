"""Momentum in the loop: all views but the first go through the momentum encoder, and a queue keeps theirs."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from counterpoint.data.batches import Batch
from counterpoint.models.encoder import Encoder
from counterpoint.models.momentum import MomentumEncoder
from counterpoint.models.queue import Queue
from counterpoint.models.towers import TwoTowers
from counterpoint.ranks import gather
from counterpoint.train.sections import Momentum


class Follower(nn.Module):
    """The momentum encoder of a run and its queue; both are in its state dict.

    encoder: as it is at the start of the run. size: side of its pictures, in pixels.

    Raises ValueError for two towers, whose captions no momentum encoder reads.
    """

    def __init__(self, encoder: Encoder, size: int, asked: Momentum) -> None:
        super().__init__()
        if isinstance(encoder, TwoTowers):
            raise ValueError("momentum goes with pictures alone, and model.text adds captions to them")
        self.encoder = MomentumEncoder(encoder, asked.rate, asked.schedule).eval()
        self.queue: Queue | None = None
        if asked.queue is not None:
            width = self.encoder(torch.zeros(1, 3, size, size))[1].shape[1]
            self.queue = Queue(asked.queue, width)
        # As the trained one: BatchNorm normalises by the batch, however the encoder was left.
        self.encoder.train()

    def embed(self, trained: nn.Module, batch: Batch, fabric: Fabric) -> tuple[Tensor, ...]:
        """The first view by the trained encoder, with a gradient, and the others by its follower."""
        _, query = trained(batch.views[0])
        with fabric.autocast():
            _, keys = self.encoder(torch.cat(batch.views[1:]))
        views: tuple[Tensor, ...] = (query, *keys.to(query.dtype).chunk(len(batch.views) - 1))
        return views

    def side(self) -> dict[str, Tensor]:
        """What the objective is given of the queue."""
        return {} if self.queue is None else {"negatives": self.queue.contents()}

    def follow(self, encoder: nn.Module, views: tuple[Tensor, ...], step: int, total: int) -> None:
        """After a step: move towards the encoder, and keep the step's embeddings of all processes."""
        self.encoder.update(encoder, step, total)
        if self.queue is not None:
            keys = gather(torch.stack(views[1:], dim=1).detach())
            self.queue.push(torch.cat(keys.unbind(1)))  # in the order that one process has them in
