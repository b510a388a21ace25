"""Views per second of our small backbones, forward and backward, in the two memory layouts of a picture.

Prints a table and writes benchmarks/results/conv4.csv:
    OMP_NUM_THREADS=2 python benchmarks/conv4.py
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from counterpoint.models.backbones import bare_backbone

CASES = [("conv4", 1), ("conv4", 2), ("conv4", 4), ("resnet8", 1), ("resnet20", 1)]
RESULTS = Path(__file__).parent / "results" / "conv4.csv"


def forms(name: str, width_multiplier: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """The backbone as it is, and the same layers fed in the plain layout."""
    backbone = bare_backbone(name, width_multiplier=width_multiplier).module
    if name == "conv4":
        return {"channels_last (ours)": backbone, "plain": backbone.blocks}
    return {
        "channels_last (ours)": backbone,
        "plain": lambda x: backbone.stages(backbone.stem(x)).mean((2, 3)),
    }


def seconds(form: Callable[[Tensor], Tensor], x: Tensor) -> float:
    start = time.perf_counter()
    form(x).square().mean().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=10, help="the fastest of these counts")
    options = parser.parse_args()
    x = torch.randn(options.batch, 3, options.size, options.size)
    rows = []
    for name, width_multiplier in CASES:
        made = forms(name, width_multiplier)
        # In turns, so that a busy moment of the machine meets both; the fastest, since load only adds time.
        taken = {form: float("inf") for form in made}
        for _ in range(options.repeats):
            for form, run in made.items():
                taken[form] = min(taken[form], seconds(run, x))
        for form, best in taken.items():
            rows.append(
                {
                    "backbone": name,
                    "width_multiplier": width_multiplier,
                    "layout": form,
                    "batch": options.batch,
                    "size": options.size,
                    "threads": torch.get_num_threads(),
                    "milliseconds": f"{best * 1e3:.1f}",
                    "views_per_s": f"{options.batch / best:.0f}",
                    "torch": torch.__version__,
                }
            )
            print("  ".join(f"{value!s:<20}" for value in rows[-1].values()), flush=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
