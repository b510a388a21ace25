"""What QARe costs: against full spectra, beside InfoNCE, in memory and in a training step.

    python benchmarks/qare.py [--repeats 5] [--only full|loss|memory|step]

* full: forward and backward of QARe from the (d + 1) x (d + 1) side, against `torch.linalg.eigvalsh` of the
  n x n matrices with autograd: as `clamp_min=None` would need it, and as the released code has it, with
  cosines clamped at 1e-8. Values and gradients are compared before anything is timed.
* loss: InfoNCE + QARe against InfoNCE, forward and backward, nothing else.
* memory: the most that torch's allocator holds at one time in those, beyond the views.
* step: the CPU recipe cifar100/simclr on built-in pictures at 32 pixels, with and without the term, and the
  time of the term on the embeddings of each step over the time of the step.

Times are medians of arms in turn; processor time stands beside time on the wall, for a machine that others
use too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from measure import cpu_seconds, measure_in_turn, peak_bytes, versions, write_csv
from torch import Tensor

from counterpoint.data.batches import batch_source
from counterpoint.objectives import InfoNCE, Objective, QARe
from counterpoint.train.loop import embed
from counterpoint.train.optim import build_optimizer
from counterpoint.train.recipe import load_recipe
from counterpoint.train.setup import load_encoder, load_splits

D = 128
OUT = Path(__file__).parent / "results" / "qare.csv"
BUILT_IN = "data={source: shapes, count: 4000, size: 32}"


def views(n: int, d: int = D) -> list[Tensor]:
    """Two views, alike as after some training."""
    g = torch.Generator().manual_seed(0)
    first = torch.randn(n, d, generator=g)
    return [z.requires_grad_() for z in (first.clone(), first + 0.3 * torch.randn(n, d, generator=g))]


def full(a: Tensor, b: Tensor, clamp_min: float | None) -> Tensor:
    """The same from n x n spectra, with autograd through `eigvalsh`."""
    spectra = []
    for z in (a, b):
        u = torch.nn.functional.normalize(z, dim=1)
        s = u @ u.T
        s = (s if clamp_min is None else s.clamp_min(clamp_min)) + 1
        spectra.append(torch.linalg.eigvalsh((s + s.T) / 2))
    return spectra[0].dot(spectra[1]) / (len(a) * (len(a) - 1))


def full_unclamped(a: Tensor, b: Tensor) -> Tensor:
    return full(a, b, None)


def full_as_released(a: Tensor, b: Tensor) -> Tensor:
    return full(a, b, 1e-8)


def passes(loss: Callable[..., Tensor], z: list[Tensor]) -> Callable[[], None]:
    """Forward and backward."""

    def run() -> None:
        for view in z:
            view.grad = None
        loss(*z).backward()

    return run


def check_equal(z: list[Tensor]) -> tuple[float, float]:
    """Relative differences of value and gradient from the full spectra in float64."""
    exact = [view.detach().double().requires_grad_() for view in z]
    fast, slow = QARe()(*z), full_unclamped(*exact)
    gradients = [torch.autograd.grad(loss, given) for loss, given in ((fast, z), (slow, exact))]
    off = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(*gradients, strict=True))
    value = abs(fast.item() - slow.item()) / slow.item()
    if value > 1e-5 or off > 1e-3:
        raise SystemExit(f"QARe differs from the full spectra: value by {value:.1e}, gradient by {off:.1e}")
    return value, off


def arms_ms(arms: dict[str, Callable[[], None]], repeats: int, warmup: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds of each arm, on the wall and of the processor."""
    cpu: dict[str, list[float]] = {name: [] for name in arms}

    def with_cpu(name: str, fn: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            begin = time.process_time()
            fn()
            cpu[name].append(time.process_time() - begin)

        return run

    wall = measure_in_turn({name: with_cpu(name, fn) for name, fn in arms.items()}, repeats, warmup)
    return {
        name: (1000 * statistics.median(wall[name]), 1000 * statistics.median(cpu[name][warmup:]))
        for name in arms
    }


def table(what: str, n: int, times: dict[str, tuple[float, float]], base: str) -> Iterator[dict[str, object]]:
    for arm, (wall, cpu) in times.items():
        row = {
            "what": what,
            "n": n,
            "arm": arm,
            "median_ms": round(wall, 3),
            "cpu_ms": round(cpu, 3),
            "ratio": round(wall / times[base][0], 3),
            "cpu_ratio": round(cpu / times[base][1], 3),
        }
        print(
            f"{what:<7}{n:>5} {arm:<22}{wall:>10.2f} ms {row['ratio']:>9} x {base} (cpu {row['cpu_ratio']})"
        )
        yield row


def against_full(repeats: int) -> Iterator[dict[str, object]]:
    for n in (256, 512, 1024, 2048):
        z = views(n)
        value, gradient = check_equal(z)
        arms: dict[str, Callable[[], None]] = {
            "QARe": passes(QARe(), z),
            "full": passes(full_unclamped, z),
            "full, as released": passes(full_as_released, z),
        }
        turns = repeats if n < 1024 else max(2, repeats // 2)
        for row in table("full", n, arms_ms(arms, turns, 1), "QARe"):
            yield {**row, "value_error": f"{value:.1e}", "gradient_error": f"{gradient:.1e}"}


def beside_infonce(repeats: int) -> Iterator[dict[str, object]]:
    for n in (256, 2048):
        z = views(n)
        arms = {
            "InfoNCE": passes(InfoNCE(), z),
            "InfoNCE + QARe": passes(InfoNCE() + QARe(), z),
            "QARe": passes(QARe(), z),
        }
        yield from table("loss", n, arms_ms(arms, repeats * (20 if n == 256 else 5), 3), "InfoNCE")


def memory() -> Iterator[dict[str, object]]:
    z = views(2048)
    base = 0
    arms = {"InfoNCE": InfoNCE(), "InfoNCE + QARe": InfoNCE() + QARe(), "QARe": QARe()}
    for arm, objective in arms.items():
        peak = peak_bytes(passes(objective, z))
        base = base or peak
        print(f"memory  2048 {arm:<22}{peak / 2**20:>10.2f} MiB {peak / base:.4f} x InfoNCE")
        yield {
            "what": "memory",
            "n": 2048,
            "arm": arm,
            "peak_mib": round(peak / 2**20, 3),
            "ratio": round(peak / base, 4),
        }


class Trainee:
    """An encoder in training, its data and its objective."""

    def __init__(self, objective: Objective) -> None:
        recipe = load_recipe("cifar100/simclr", [BUILT_IN, "train.batch_size=256"])
        train = load_splits(recipe.data).train
        self.objective, self.encoder = objective, load_encoder(recipe).train()
        self.optimizer = build_optimizer(self.encoder, "adam", lr=1e-3)
        self.source = batch_source(train, recipe.views.spec, 256, seed=0)
        self.batches = self._endless()

    def _endless(self):
        epoch = 0
        while True:
            yield from self.source.epoch(epoch)
            epoch += 1

    def step(self) -> list[Tensor]:
        z = embed(self.encoder, next(self.batches))
        loss = self.objective(*z)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return [view.detach().requires_grad_() for view in z]


def training_step(repeats: int) -> Iterator[dict[str, object]]:
    recipe = load_recipe("cifar100/simclr")
    plain = recipe.build_objective()
    trainees = {"simclr": Trainee(plain), "simclr + QARe": Trainee(plain + 0.75 * QARe())}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in (*trainees, "QARe in the step")}

    def timed(name: str, fn: Callable[[], object]) -> object:
        wall, cpu = time.perf_counter(), cpu_seconds()
        out = fn()
        seconds[name].append((time.perf_counter() - wall, cpu_seconds() - cpu))
        return out

    for _ in range(5 + 8 * repeats):
        for name, trainee in trainees.items():
            z = timed(name, trainee.step)
        timed("QARe in the step", passes(0.75 * QARe(), z))  # type: ignore[arg-type]
    times = {
        name: tuple(1000 * statistics.median(kind) for kind in zip(*values[5:], strict=True))
        for name, values in seconds.items()
    }
    yield from table("step", 256, times, "simclr")  # type: ignore[arg-type]


def main() -> None:
    """Run the arms, print the table and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("full", "loss", "memory", "step"))
    given = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[dict[str, object]]]] = {
        "full": lambda: against_full(given.repeats),
        "loss": lambda: beside_infonce(given.repeats),
        "memory": memory,
        "step": lambda: training_step(given.repeats),
    }
    rows = []
    for name, part in parts.items():
        if given.only in (None, name):
            rows += [{**row, **versions()} for row in part()]
    if given.only is None:
        write_csv(OUT, rows)
        print(f"rows: {OUT}")


if __name__ == "__main__":
    main()
