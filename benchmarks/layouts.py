"""What a backbone costs, forward and backward, in the two memory layouts of a picture.

Prints a table and writes benchmarks/results/layouts.csv:
    OMP_NUM_THREADS=1 python benchmarks/layouts.py

On a CPU `Encoder` hands pictures on with their channels last, and training lays the weights out so; `plain`
is the same backbone as torch lays both out by default. They take steps in turn.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from measure import measure_in_turn, versions, write_csv

from counterpoint.models.encoder import build_encoder

# backbone, options of it, batch, size of the pictures
CASES = [
    ("conv4", {}, 256, 32),
    ("conv4", {"width_multiplier": 4}, 128, 32),
    ("resnet8", {}, 128, 32),
    ("resnet20", {}, 64, 32),
    ("resnet18", {"stem": "small"}, 16, 32),
    ("resnet18", {}, 32, 64),
    ("resnet50", {}, 8, 96),
    ("resnet50", {}, 4, 224),
    ("efficientnet_lite0", {}, 32, 64),
    ("efficientnet_lite0", {}, 8, 224),
    ("mobilenet_v3_small", {}, 16, 96),
    ("convnext_tiny", {}, 4, 96),
    ("vit_b_16", {}, 2, 224),
]
OUT = Path(__file__).parent / "results" / "layouts.csv"


def main() -> None:
    """Measure each case, print the table and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    rows = []
    for name, options, batch, size in CASES:
        plain = build_encoder(name, head=None, seed=0, **options).train().backbone
        encoder = (
            build_encoder(name, head=None, seed=0, **options).train().to(memory_format=torch.channels_last)
        )
        pictures = torch.randn(batch, 3, size, size)

        def step(form, pictures=pictures) -> None:
            form(pictures).square().mean().backward()

        arms = {
            "channels last (ours)": lambda encoder=encoder, step=step: step(lambda x: encoder(x)[0]),
            "plain": lambda plain=plain, step=step: step(plain),
        }
        taken = {arm: statistics.median(s) for arm, s in measure_in_turn(arms, repeats=given.repeats).items()}
        label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
        for arm, seconds in taken.items():
            rows.append({"backbone": label, "batch": batch, "size": size, "layout": arm,
                         "pictures_per_s": round(batch / seconds, 1), **versions()})  # fmt: skip
        ours, plain = taken.values()
        print(f"{label:<28} {batch:>4} of {size:>3} px {batch / ours:8.1f} pictures/s, plain "
              f"{batch / plain:8.1f}: {plain / ours:.2f} x", flush=True)  # fmt: skip
    write_csv(given.out, rows)
    print(f"rows: {given.out}")


if __name__ == "__main__":
    main()
