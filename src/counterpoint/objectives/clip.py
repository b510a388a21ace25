r"""CLIP: InfoNCE between two views, in both directions.

    L = 1/2 (InfoNCE(z0, z1) + InfoNCE(z1, z0)),    scores cos(z0_i, z1_j) / tau

The two views are usually two kinds of data: images and their captions. There are exactly two, because "both
directions" of one table of scores is what makes it CLIP; for more use `InfoNCE` or `NTXent`.

A learnable temperature is stored as the logarithm of the scale 1 / tau. The scale may not exceed 1 / min_tau,
or it grows until training breaks. CLIP's own loop clamps the parameter after each step; here the loss uses
the smaller of the two, and the parameter gets no gradient that would push it further out, but every one that
brings it back. So no help of the loop is needed, and the scale is never stuck. (Keep it out of weight decay,
which pulls it to tau = 1.)

Limits: a collapsed batch gives ln(n). With a fixed tau it is the mean of `InfoNCE` over both orders of the
views.

Paper: Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.checks import positive, sample_integers
from counterpoint.objectives.rows import Rows, same_id, scores_across_views, target_across_views
from counterpoint.objectives.streamed import ChunkSize, StreamedObjective
from counterpoint.objectives.tile_losses import across_losses


def clip(
    z0: Tensor,
    z1: Tensor,
    tau: float = 0.07,
    ids: Tensor | None = None,
    map: str = "softmax",
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    """CLIP of two views `(n, d)`, a scalar.

    tau: temperature, above 0; divides the cosines.
    ids: `(n,)` integers; samples with equal ids are positives of each other, uniformly.
    map: "softmax", "entmax15", "sparsemax" or "argmax", see `fenchel_young`.
    chunk_size: how many anchors and candidates at a time, see `StreamedObjective`.

    Raises ValueError on views that do not fit together, or a bad argument.

    >>> import torch
    >>> z = torch.eye(3)
    >>> clip(z, z, tau=0.5)
    tensor(0.2395)
    """
    return CLIP(tau, map=map, chunk_size=chunk_size).forward(z0, z1, ids=ids)


class CLIP(StreamedObjective):
    """Module form of `clip`, with a temperature that is fixed or, with `learnable=True`, a parameter.

    tau: the temperature, or where a learnable one starts; then not below `min_tau`, which it never passes.

    >>> import torch
    >>> objective = CLIP(tau=0.5, learnable=True)
    >>> loss, log = objective.with_log(torch.eye(3), torch.eye(3))
    >>> loss.backward()
    >>> log["tau"], objective.log_scale.grad < 0
    (tensor(0.5000), tensor(True))
    """

    accepts = ("ids",)

    def __init__(
        self,
        tau: float = 0.07,
        learnable: bool = False,
        min_tau: float = 0.01,
        map: str = "softmax",
        chunk_size: ChunkSize = "auto",
    ) -> None:
        super().__init__(map, chunk_size=chunk_size)
        self._tau, self.min_tau = positive("tau", tau), positive("min_tau", min_tau)
        self.learnable = learnable
        if learnable and tau < min_tau:
            raise ValueError(f"a learnable tau must start at min_tau={min_tau} or above, got {tau}")
        self.log_scale = nn.Parameter(torch.tensor(-math.log(tau))) if learnable else None

    @property
    def tau(self) -> float:
        """The temperature as given; where it is learned it starts there, and cannot be set."""
        return self._tau

    @tau.setter
    def tau(self, value: float) -> None:
        if self.learnable:
            raise AttributeError("a learnable tau cannot be set: its parameter is log_scale")
        self._tau = positive("tau", value)

    def temperature(self) -> float | Tensor:
        """The tau in use: a number where it is fixed, a 0-d tensor with a gradient where it is learned."""
        if self.log_scale is None:
            return self._tau
        return torch.exp(-_ceiling(self.log_scale, -math.log(self.min_tau)))

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        self._check_two(views)
        return super().evaluate(views, known, with_log)

    def rows(self, views: Sequence[Tensor], known: Known) -> Rows:
        self._check_two(views)
        return super().rows(views, known)

    def _check_two(self, views: Sequence[Tensor]) -> None:
        if len(views) != 2:
            raise ValueError(
                f"CLIP takes exactly 2 views, its loss runs in both directions between them; got {len(views)}"
            )

    def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
        anchors = known.anchored(len(z[0]))
        scores = scores_across_views(z, self.temperature(), anchors=anchors)
        target = target_across_views(same_id(known.ids, z[0], anchors), scores, anchors)
        return Rows(scores, target, candidates=scores.shape[1])

    def tile_losses(self, z: Sequence[Tensor], known: Known, rows: int) -> tuple[Tensor, float | None]:
        groups = None if known.ids is None else sample_integers("ids", known.ids, z[0])
        anchors = known.anchored(len(z[0]))
        losses = across_losses(z[0], z[1], self.temperature(), anchors, rows, groups, both_ways=True)
        return losses, None

    def log(self, rows: Rows, losses: Tensor) -> Log:
        return {**super().log(rows, losses), "tau": torch.as_tensor(self.temperature(), device=losses.device)}

    def extra_repr(self) -> str:
        with torch.no_grad():
            tau = float(self.temperature())
        learnable = self.log_scale is not None
        return f"tau={tau:.4g}, learnable={learnable}, min_tau={self.min_tau}{self._map_repr}"


def _ceiling(x: Tensor, highest: float) -> Tensor:
    return cast(Tensor, _Ceiling.apply(x, highest))


class _Ceiling(torch.autograd.Function):
    """min(x, highest) whose gradient is dropped at the ceiling only where a descent step would raise x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, highest: float) -> Tensor:
        ctx.save_for_backward(x >= highest)
        return x.clamp_max(highest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (at_ceiling,) = ctx.saved_tensors
        return torch.where(at_ceiling, grad.clamp_min(0), grad), None
