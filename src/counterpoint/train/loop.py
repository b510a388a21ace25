"""The training loop: one file, top to bottom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor, nn

from counterpoint.data.batches import Batch
from counterpoint.data.captions import Keys, Source
from counterpoint.files import write_whole
from counterpoint.models.encoder import Encoder
from counterpoint.models.towers import TwoTowers
from counterpoint.objectives import Objective
from counterpoint.ranks import AcrossRanks, gather
from counterpoint.train.cached import Cache, micro_batches
from counterpoint.train.checkpoint import newest_checkpoint, newest_step, save_checkpoint
from counterpoint.train.clock import Clock
from counterpoint.train.devices import (
    build_fabric,
    compile_encoder,
    first_only,
    load_whole_state,
    prepared,
    seed_step,
    to_start,
    whole_state,
)
from counterpoint.train.health import STEPS_TO_TELL, spread, verdict
from counterpoint.train.lock import locked
from counterpoint.train.log import Bar, MetricsLog, Row
from counterpoint.train.momentum import Follower
from counterpoint.train.nonfinite import FiniteLoss, Seen
from counterpoint.train.optim import build_optimizer, learning_rate, rate_factors, scaled_lr
from counterpoint.train.processes import start_processes
from counterpoint.train.recipe import Recipe
from counterpoint.train.run import Run, claim
from counterpoint.train.setup import Relations, fingerprint, load_encoder
from counterpoint.train.signals import Stopped, StopSignals, agreed
from counterpoint.train.sources import LeftOut, load_training


def fit(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> Run:
    """Train what the recipe says and write the run into `folder`.

    Where the recipe asks for several devices and nobody has started their processes, they are started here
    and this one waits for them. Where torchrun or srun has started them, each calls this.

    Raises ValueError where the recipe does not fit the data, where the folder holds a run and neither resume
    nor overwrite is asked for, where another process trains in it, and where the loss stops being finite.
    A signal to stop is obeyed at the end of the step, with a checkpoint: see `signals.Stopped`, a SystemExit.
    """
    fabric = build_fabric(recipe.train)
    if count := to_start(fabric):
        start_processes(count, partial(fit, recipe, folder, resume=resume, overwrite=overwrite))
        return Run(folder)
    fabric.launch()
    console = (console or Console(stderr=True)) if fabric.is_global_zero else Console(quiet=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    # Everything that can be refused is refused before the folder is touched, the quickest to find first.
    encoder = prepared(load_encoder(recipe), recipe, fabric)
    objective = recipe.build_objective()
    share = (fabric.global_rank, fabric.world_size)
    training = load_training(recipe, encoder, objective, fabric.device, say, share)
    source, relations = training.source, training.relations
    logged = rehearse(recipe, encoder, objective, relations, training.samples)
    start = fingerprint(encoder)
    with ExitStack() as held:
        # The first process alone holds the folder and writes there.
        run = first_only(
            fabric, lambda: held.enter_context(locked(folder)) or claim(folder, recipe, resume, overwrite)
        )
        loop = Loop(
            recipe, run, fabric, encoder, objective, relations, source, console, logged, training.keys
        )
        epochs = -(-loop.total // loop.steps_per_epoch)
        if never := loop.schedules.past(epochs):
            say(f"{recipe.name}: the run ends with epoch {epochs}, and its schedule has {', '.join(never)}")
        loop.run_all()
        done = {"steps": loop.step, "seconds": loop.seconds, "start": start, "skipped": loop.watch.skipped}
        told = json.dumps(done | {"processes": fabric.world_size}).encode()
        first_only(fabric, lambda: write_whole(run.done, told))
    return run


def rehearse(
    recipe: Recipe, encoder: Encoder, objective: Objective, relations: Relations, samples: int
) -> list[str]:
    """Let the encoder refuse the size of the views and the objective their number, before the run begins.

    Nothing changes by it: no buffer, no random state. Returns what the objective logs.
    """
    spec = recipe.views.spec
    ids = torch.arange(min(4, samples))
    texts = [encoder.text.tokenizer(["a word"])] if isinstance(encoder, TwoTowers) else []
    z = torch.randn(spec.count + len(texts), len(ids), 8, generator=torch.Generator().manual_seed(0))
    side = relations.batch(ids, torch.device("cpu"))
    if "labels" in side:
        # That no label repeats among the first few samples says nothing of a batch.
        side["labels"] = torch.zeros_like(side["labels"])
    with torch.no_grad():
        encoder.eval()(torch.zeros(1, 3, spec.size, spec.size), *texts)
        _, log = objective.with_log(*z, **side)
    return list(log)


def embed(encoder: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """Embeddings of each view, `(n, d)`; those of the captions, where there are any, come last.

    The pictures pass through the encoder as one batch, so that BatchNorm sees them together.
    """
    texts = [] if batch.tokens is None else [batch.tokens]
    _, z = encoder(torch.cat(batch.views), *texts)
    views: tuple[Tensor, ...] = z.chunk(len(batch.views) + len(texts))
    return views


class Loop:
    """The state of a run and the steps that change it."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        fabric: Fabric,
        encoder: Encoder,
        objective: Objective,
        relations: Relations,
        source: Source,
        console: Console,
        logged: Sequence[str] = (),
        keys: Keys = (),
    ) -> None:
        self.recipe, self.run, self.fabric, self.console = recipe, run, fabric, console
        self.relations, self.source, self.left_out = relations, source, LeftOut(source)
        self.trained = nn.ModuleDict({"encoder": encoder, "objective": objective})
        self.follower: Follower | None = None
        if recipe.momentum is not None:
            # Made of the bare encoder, before fabric wraps it.
            self.follower = Follower(encoder, recipe.views.spec.size, recipe.momentum).to(fabric.device)
        optim = recipe.optim
        optimizer = build_optimizer(
            self.trained,
            optim.name,
            lr=optim.lr,
            weight_decay=optim.weight_decay,
            momentum=optim.momentum,
            factors=rate_factors(encoder, optim.layer_decay, (optim.head_lr or optim.lr) / optim.lr),
        )
        self.encoder, self.optimizer = self.fabric.setup(encoder, optimizer)
        if recipe.train.compile:
            compile_encoder(encoder, self.encoder)
        self.objective = objective.to(self.fabric.device)
        self.loss = AcrossRanks(self.objective)
        self.schedules = recipe.schedules(self.objective)
        self.scheduled: Row = self.schedules.enter(1)
        asked = recipe.train
        self.watch = FiniteLoss(asked.on_nan, run.folder, keys, self.trained, self._say)
        self.precision = fabric.strategy.precision
        self.watch.scaler = getattr(self.precision, "scaler", None)  # with 16 bits, on a GPU
        counts = {"skipped": asked.on_nan == "skip", "left_out": recipe.data.on_error == "skip"}
        self.logged = (*logged, *self.scheduled, *(name for name, counted in counts.items() if counted))
        self.step, self.seconds = 0, 0.0
        self.steps_per_epoch = source.steps_per_epoch
        planned = recipe.train.epochs * self.steps_per_epoch
        self.total = min(planned, recipe.train.steps or planned)
        # A number of parts, not a size: the same in all processes, which share a batch unequally.
        share, most = -(-asked.batch_size // fabric.world_size), asked.micro_batch
        self.parts = None if most is None else -(-share // most)
        self.peak = scaled_lr(optim.lr, recipe.train.batch_size, optim.lr_scaling)
        self._warned: set[str] = set()

    def run_all(self) -> None:
        """Go from where the run stands to its end."""
        self._restore()
        title = f"{self.recipe.name} seed {self.recipe.seed}"
        events = self.run.tensorboard if self.recipe.train.tensorboard else None
        first = self.fabric.is_global_zero
        log = MetricsLog(self.run.metrics, events, after=self.step, also=self.logged) if first else None
        bar = Bar(self.console, title, self.total, self.step)
        try:
            with StopSignals() as signals:
                self._train(log, bar, signals)
        except Stopped as stop:
            bar.say(
                f"stopped by {stop.signal.name} after step {self.step} of {self.total}; "
                f"the same command with --resume continues it from step {self._last_saved()}"
            )
            raise
        finally:
            bar.close()
            if log is not None:
                log.close()

    def _train(self, log: MetricsLog | None, bar: Bar, signals: StopSignals) -> None:
        torch.manual_seed(self.recipe.seed)
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)
        self.encoder.train()
        clock = Clock()
        if self.total == 0:  # the encoder is measured as it starts
            self._save(clock, bar)
        last: Row = {}
        while self.step < self.total:
            epoch, within = divmod(self.step, self.steps_per_epoch)
            self.scheduled = self.schedules.enter(epoch + 1)
            for batch in clock.waiting(self.source.epoch(epoch, start=within)):
                logged = (self.step + 1) % self.recipe.train.log_every == 0 or self.step + 1 == self.total
                everyone = gather(batch.ids)  # on the CPUs: no GPU is waited for
                row = self._one_step(batch, everyone, logged)  # empty where the step was skipped
                clock.images += len(everyone)
                bar.step()
                if row:
                    last = row | clock.lap()
                    if log is not None:
                        self._report(last, log, bar)
                stop = agreed(signals.asked)
                if stop or self.step % self.recipe.train.save_every == 0 or self.step == self.total:
                    self._save(clock, bar)
                if stop:
                    # Who left now would be taken for the one that failed while the first still writes.
                    self.fabric.barrier()
                    raise Stopped(stop)
                if self.step == self.total:
                    break
            left = clock.left(self.step, self.total)
            bar.epoch(epoch + 1, self.recipe.train.epochs, last.get("loss"), last.get("images_per_s"), left)
        if self.watch.skipped:
            bar.say(
                f"skipped {self.watch.skipped} of {self.total} steps, whose loss was not finite "
                "or whose batch was down to one sample"
            )
        for line in self.left_out.lines():
            bar.say(line)

    def _one_step(self, batch: Batch, everyone: Tensor, logged: bool) -> Row:
        """everyone: the ids of the batch over all processes."""
        if len(everyone) == 1:  # of two or more
            self.step += 1
            self.watch.too_few(self.step, everyone)
            return {}
        lr = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)
        seed_step(self.fabric, self.recipe.seed, self.step)
        side = self.relations.batch(batch.ids, self.fabric.device, everyone)
        self.watch.begin()
        cache: Cache[Batch] | None = None
        if self.follower is not None:
            views, side = self.follower.embed(self.encoder, batch, self.fabric), side | self.follower.side()
        elif self.parts is not None:
            cache = Cache(
                partial(embed, self.encoder), micro_batches(batch, self.parts), self.encoder, self._apart
            )
            views = cache.views
        else:
            views = embed(self.encoder, batch)
        loss, log = self._loss(views, side, logged)
        self.step += 1
        seen = Seen(self.step, lr, batch.ids, [view.detach() for view in views], side, loss)
        if not self.watch.passes(seen) or loss is None:
            return {}
        self.optimizer.zero_grad()
        if cache is None:
            self.fabric.backward(loss)
        else:
            cache.backward(loss, self.fabric.backward)
        if not self.watch.gradients_pass(seen):
            return {}
        if (clip := self.recipe.optim.clip) is not None:
            # One that is not finite is for the scaler to leave out, or for the watch to tell of.
            self.fabric.clip_gradients(self.encoder, self.optimizer, max_norm=clip, error_if_nonfinite=False)
        self.optimizer.step()
        if self.follower is not None:
            self.follower.follow(self.trained["encoder"], views, self.step, self.total)
        if not logged:
            return {}
        values = {key: float(value) for key, value in log.items()} | self.scheduled
        where = {"step": float(self.step), "epoch": (self.step - 1) // self.steps_per_epoch + 1.0}
        if self.watch.policy == "skip":
            where["skipped"] = float(self.watch.skipped)
        where["left_out"] = float(self.left_out.count())
        return {**values, **where, "spread": spread(gather(torch.cat(views).detach())), "lr": lr}

    def _loss(
        self, views: Sequence[Tensor], side: dict[str, Any], logged: bool
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The loss and its log; no loss where the objective refuses embeddings that are not finite."""
        try:
            return self.loss.with_log(*views, **side) if logged else (self.loss(*views, **side), {})
        except ValueError:
            # Over processes it is raised in all, by the embeddings of one.
            given = [*views, *(side[name] for name in ("negatives",) if name in side)]
            if not agreed(int(not all(bool(torch.isfinite(z).all()) for z in given))):
                raise
            return None, {}

    def _apart(self) -> AbstractContextManager[Any]:
        """The processes do not wait for each other's gradients."""
        if self.fabric.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(self.encoder)

    def _rate(self) -> float:
        optim = self.recipe.optim
        warmup = round(optim.warmup_epochs * self.steps_per_epoch)
        return learning_rate(self.step, self.total, min(warmup, self.total), self.peak, optim.schedule)

    def _report(self, row: Row, log: MetricsLog, bar: Bar) -> None:
        log.write(row)
        bar.show(row["loss"] or 0.0, row["images_per_s"] or 0.0)
        # A fresh run is at chance by nature: judge from a tenth of the way on, and say each verdict once.
        found = verdict(row) if self.step >= max(STEPS_TO_TELL, self.total // 10) else None
        if found is not None and found.split(":")[0] not in self._warned:
            self._warned.add(found.split(":")[0])
            bar.say(f"step {self.step}: {found}")

    def _save(self, clock: Clock, bar: Bar) -> None:
        self.watch.settle()
        self.seconds += clock.since_save()
        encoder, optimizer = whole_state(self.fabric, self.encoder, self.optimizer)
        state: dict[str, Any] = {
            "step": self.step,
            "seconds": self.seconds,
            "place": self._place(),
            "encoder": encoder,
            "objective": self.objective.state_dict(),
            "optimizer": optimizer,
            "scaler": self.precision.state_dict(),
            "random_state": torch.get_rng_state(),
            "skipped": self.watch.skipped,
            "momentum": None if self.follower is None else self.follower.state_dict(),
        }
        if not self.fabric.is_global_zero:
            return
        try:
            save_checkpoint(self.run.checkpoints, self.step, state, self.recipe.train.keep)
        except OSError as error:
            last = self._last_saved()
            fault = (
                f"no checkpoint of step {self.step} could be written ({error.strerror or error}); "
                f"{f'the last one is of step {last}' if last else 'there is none before it'}"
            )
            if self.step == self.total:
                raise OSError(f"{fault}: make room, and --resume goes on from there") from None
            bar.say(f"{fault}: training goes on")

    def _last_saved(self) -> int:
        return newest_step(self.run.checkpoints, self.step)

    def _place(self) -> str:
        """Where the steps are computed: what may differ on resuming, and then changes the last bits."""
        count = self.fabric.world_size
        return f"{count} process{'es' if count > 1 else ''} on {self.fabric.device.type}"

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _restore(self) -> None:
        self._random_state: Tensor | None = None
        state = first_only(self.fabric, lambda: newest_checkpoint(self.run.checkpoints, self._say))
        if state is None:
            return
        if state["place"] != self._place():
            self._say(
                f"resumed on {self._place()}, after {state['place']} up to step {state['step']}: "
                "the run goes on, but not bit-equal to one that never moved"
            )
        load_whole_state(self.fabric, self.encoder, self.optimizer, state["encoder"], state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        if self.follower is not None:
            self.follower.load_state_dict(state["momentum"])
        if scaler := state.get("scaler"):
            self.precision.load_state_dict(scaler)
        self.watch.skipped = state["skipped"]
        self.step, self.seconds, self._random_state = state["step"], state["seconds"], state["random_state"]
