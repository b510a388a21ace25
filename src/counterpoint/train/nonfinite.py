"""Steps whose loss is not finite: stop with a dump of what was seen, or skip them and count.

Every step is looked at. On a CPU, and wherever steps are skipped, the loss is read before the weights change.
Under "stop" a GPU is not waited for: each loss is copied while it works on, and read a step later, before
anything is saved. Under "skip" it is, at every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from counterpoint.data.captions import Keys
from counterpoint.files import write_whole
from counterpoint.objectives import Objective
from counterpoint.objectives.base import Known
from counterpoint.ranks.collectives import Ranks
from counterpoint.train.run import DUMP
from counterpoint.train.signals import agreed

IN_A_ROW = 20  # so many skipped steps without one that is taken say that the weights are the cause
NAMED = 3
LEAST_SCALE = 1e-4  # a loss scale that has fallen below it says that no scale would do


@dataclass(frozen=True)
class Seen:
    """What the objective saw of a step, counted from 1: views `(n, d)`, and no loss where it refused them."""

    step: int
    lr: float
    ids: Tensor
    views: Sequence[Tensor]
    side: Mapping[str, Any]
    loss: Tensor | None


class FiniteLoss:
    """Watches the losses of a run.

    policy: "stop" raises ValueError after writing the dump; "skip" leaves the step out, says so and counts it
        in `skipped`, and after 20 in a row it stops as well. Steps that have `too_few` samples are counted
        there too, under both.
    folder: of the run; the dump is `nan-step-N` in it, and of several processes each writes its own share of
        the batch, `nan-step-N-process-K`. keys: of all samples, by id.
    trained: what the gradients are of, and whose buffers a skipped step must not change; with the objective
        as its child of that name.
    scaler: what scales the loss where it is computed in 16 bits. Gradients then overflow as a matter of
        course, and the scaler leaves those steps out by itself, until its scale is too small to be true.
    """

    scaler: torch.amp.GradScaler | None = None

    def __init__(
        self, policy: str, folder: Path, keys: Keys, trained: nn.Module, say: Callable[[str], None]
    ) -> None:
        self.policy, self.skipped = policy, 0
        self._folder, self._keys, self._trained, self._say = folder, keys, trained, say
        self._row = 0
        self._last: Seen | None = None
        self._before: list[Tensor] = []
        self._pending: tuple[Seen, Tensor, torch.cuda.Event] | None = None

    def begin(self) -> None:
        """Before a step: keep what its forward pass changes, such as BatchNorm's running moments."""
        if self.policy == "skip":
            self._before = [buffer.clone() for buffer in self._trained.buffers()]

    def passes(self, seen: Seen) -> bool:
        """Whether the step may go on; asked before the backward pass."""
        self._last = seen
        if self.policy == "stop" and seen.loss is not None and seen.loss.is_cuda:
            self._look_later(seen, seen.loss)
            return True
        self._arrived()  # of two losses that are not finite the earlier is told
        return self._judge(seen, seen.loss is not None and bool(torch.isfinite(seen.loss.detach())))

    def gradients_pass(self, seen: Seen) -> bool:
        """Whether the step may change the weights: a finite loss can have a gradient that is not.

        Looked at under "skip" only; under "stop" the loss of the next step tells, or `settle`.
        """
        if self.policy == "stop":
            return True
        passes = self.scaler is not None or self._judge(seen, self._gradients_are_finite())
        self._row = 0 if passes else self._row
        return passes

    def _judge(self, seen: Seen, finite: bool) -> bool:
        if self.policy == "stop":
            if not finite:
                self._stop(seen)
            return True
        if not agreed(int(not finite)):  # skipped by one process, a step is skipped by all
            return True
        for buffer, before in zip(self._trained.buffers(), self._before, strict=True):
            buffer.copy_(before)
        self.skipped, self._row = self.skipped + 1, self._row + 1
        if self._row == IN_A_ROW:
            self._stop(seen, f", nor were they at the {IN_A_ROW - 1} steps before it, which were skipped")
        self._say(
            f"step {seen.step}: the loss or its gradient is not finite, skipped ({self.skipped} so far): "
            f"samples {self._named(seen)}"
        )
        return False

    def too_few(self, step: int, ids: Tensor) -> None:
        """Leave out a step of whose batch broken pictures have left a single sample."""
        self.skipped += 1
        self._say(
            f"step {step}: one sample is left of its batch, {self._keys[int(ids[0])]!r}, with nothing to be "
            f"compared with, skipped ({self.skipped} so far)"
        )

    def settle(self) -> None:
        """Before weights are saved: ValueError where the last step should not have changed them.

        Looks at the loss that is still on its way from a GPU, and at the gradients, or at how far a scaler
        had to go to make them finite.
        """
        self._arrived()
        if self._last is None:
            return
        if self.scaler is not None:
            if (scale := self.scaler.get_scale()) < LEAST_SCALE:
                since = f", nor were they before it, and the scale of the loss has fallen to {scale:.0e}"
                self._stop(self._last, since, what="gradients are")
        elif self.policy == "stop" and not self._gradients_are_finite():
            self._stop(self._last, what="gradient is")

    def _gradients_are_finite(self) -> bool:
        grads = [weight.grad for weight in self._trained.parameters() if weight.grad is not None]
        return not grads or bool(torch.isfinite(torch.nn.utils.get_total_norm(grads)))

    def _arrived(self) -> None:
        if self._pending is None:
            return
        seen, finite, copied = self._pending
        self._pending = None
        copied.synchronize()
        if not bool(finite):
            self._stop(seen)

    def _look_later(self, seen: Seen, loss: Tensor) -> None:
        self._arrived()
        finite = torch.isfinite(loss.detach()).to("cpu", non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self._pending = seen, finite, copied

    def _named(self, seen: Seen) -> str:
        """Some keys of the batch."""
        keys = [repr(self._keys[i]) for i in seen.ids[:NAMED].tolist()]
        more = len(seen.ids) - len(keys)
        return ", ".join(keys) + (f" and {more} more" if more > 0 else "")

    def _stop(self, seen: Seen, since: str = "", what: str = "loss is") -> None:
        if not all(bool(torch.isfinite(view).all()) for view in seen.views):
            what = "embeddings are"
        try:
            where = f"{self._dump(seen)} has the batch"
        except OSError as error:
            where = f"the batch could not be written ({error.strerror or error})"
        raise ValueError(
            f"the {what} not finite at step {seen.step} (learning rate {seen.lr:.3g}){since}: "
            f"samples {self._named(seen)}; {where}; "
            "a smaller optim.lr, optim.clip or more optim.warmup_epochs may help"
            + ("" if since else ", and train.on_nan=skip passes over such steps")
        )

    def _dump(self, seen: Seen) -> Path:
        """Write what was seen: embeddings, ids and side arguments as tensors, and in words the rest.

        A target that is given by tiles is not written: the ids tell it.
        """
        ranks = Ranks.of(None)
        own = "" if ranks is None else f"-process-{ranks.rank}"
        folder = self._folder / f"{DUMP}{seen.step}{own}"
        tensors = {f"view_{i}": view for i, view in enumerate(seen.views)} | {"ids": seen.ids, **seen.side}
        plain = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor)
        }
        write_whole(folder / "batch.safetensors", save(plain))
        # NaN is no JSON, and a reader in another language should open this.
        terms = {name: str(float(value)) for name, value in self._terms(seen).items()}
        words = {
            "step": seen.step,
            "lr": seen.lr,
            "loss": terms,
            "keys": [self._keys[i] for i in seen.ids.tolist()],
        }
        write_whole(folder / "batch.json", json.dumps(words, indent=1).encode())
        return folder

    def _terms(self, seen: Seen) -> Mapping[str, Tensor]:
        """The log of the objective, where it can say anything of such views.

        Of several processes only the loss: the others may not be there to compute the rest with.
        """
        if Ranks.of(None) is not None:
            return {} if seen.loss is None else {"loss": seen.loss.detach()}
        try:
            with torch.no_grad():
                objective = cast(Objective, self._trained.get_submodule("objective"))
                known = Known(**cast(dict[str, Any], seen.side))
                return objective.evaluate(seen.views, known, with_log=True)[1]
        except (ValueError, RuntimeError):
            return {}
