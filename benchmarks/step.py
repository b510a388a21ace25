"""What a training step of each method costs against SimCLR's, in one process, step by step in turn.

    python benchmarks/step.py [--steps 60] [--data PARQUET_FOLDER]

Every method has its own copy of the same encoder and sees the same batches; the order of the methods turns
with each step, so that a drift of the machine's speed falls on all of them. The step is the whole one:
augmentation, forward, target, loss, backward and update. Without --data the pictures are the built-in ones at
32 pixels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from measure import versions, write_csv

from counterpoint.data.batches import batch_source
from counterpoint.train.loop import embed
from counterpoint.train.optim import build_optimizer
from counterpoint.train.recipe import load_recipe
from counterpoint.train.setup import Relations, load_encoder, load_graph, load_splits

METHODS = ("simclr", "supcon", "xclr", "mmcl-inverse", "mmcl-exact")
OUT = Path(__file__).parent / "results" / "step.csv"


class Trainee:
    """One method's encoder, optimiser and relations."""

    def __init__(self, method: str, data: str) -> None:
        self.recipe = load_recipe(f"cifar100/{method}", [f"data={data}", "train.batch_size=256"])
        self.train = load_splits(self.recipe.data).train
        self.objective = self.recipe.build_objective()
        self.relations = Relations.of(self.objective, self.recipe, self.train, load_graph(self.recipe))
        self.encoder = load_encoder(self.recipe).train()
        self.optimizer = build_optimizer(self.encoder, "adam", lr=1e-3)
        self.source = batch_source(self.train, self.recipe.views.spec, 256, seed=0)
        self.batches = self._endless()
        self.seconds: list[float] = []

    def _endless(self):
        epoch = 0
        while True:
            yield from self.source.epoch(epoch)
            epoch += 1

    def step(self) -> None:
        """One whole training step, timed."""
        begin = time.perf_counter()
        batch = next(self.batches)
        side = self.relations.batch(batch.ids, torch.device("cpu"))
        loss = self.objective(*embed(self.encoder, batch), **side)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)


def main() -> None:
    """Run the methods in turn, print the table and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--data", help="a folder of Parquet files in the Hugging Face layout")
    given = parser.parse_args()
    built_in = "{source: shapes, count: 4000, size: 32}"
    data = f"{{source: parquet, path: {given.data}}}" if given.data else built_in
    trainees = {method: Trainee(method, data) for method in METHODS}
    order = list(trainees.values())
    for _ in range(given.warmup + given.steps):
        for trainee in order:
            trainee.step()
        order = order[1:] + order[:1]
    base = trainees["simclr"].seconds[given.warmup :]
    rows = []
    for method, trainee in trainees.items():
        seconds = trainee.seconds[given.warmup :]
        pairs = [a / b for a, b in zip(seconds, base, strict=True)]
        rows.append(
            {
                "method": method,
                "batch": 256,
                "steps": given.steps,
                "median_ms": round(1000 * statistics.median(seconds), 2),
                "ratio_of_medians": round(statistics.median(seconds) / statistics.median(base), 4),
                "median_of_paired_ratios": round(statistics.median(pairs), 4),
                **versions(),
            }
        )
        shown = rows[-1]
        print(f"{method:<13} {shown['median_ms']:8.2f} ms   {shown['ratio_of_medians']:.3f} x SimCLR "
              f"(paired {shown['median_of_paired_ratios']:.3f})")  # fmt: skip
    write_csv(OUT, rows)
    print(f"rows: {OUT}")


if __name__ == "__main__":
    main()
