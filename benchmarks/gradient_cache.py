"""Gradient cache: a batch of 512 in 8 parts of 64, against the whole of it at once.

The time of a step, the peak memory and the error of the gradient, for an encoder without BatchNorm.

`gradient_error` is the distance from the gradient of the batch in one go, and `float64_error` that of both
from the same in float64, as a part of the gradient's length: what float32 itself leaves open.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from measure import measure_in_turn, peak_memory, versions, write_csv
from torch import Tensor, nn

from counterpoint.models.encoder import build_encoder
from counterpoint.objectives import NTXent
from counterpoint.train.cached import cached_backward


def encode(model: nn.Module) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda part: model(part.flatten(0, 1))[1].chunk(2)


def gradient(model: nn.Module) -> Tensor:
    """The gradient of all parameters in one row, in float64."""
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="squeezenet1_1")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gradient_cache.csv")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    objective = NTXent(tau=0.1)
    model = build_encoder(args.backbone, head=(128,), head_norm=False, seed=0).to(device)
    twin = copy.deepcopy(model)
    pictures = torch.randn(2, args.batch, 3, args.size, args.size, device=device)
    parts = list(pictures.chunk(args.parts, dim=1))

    def large() -> None:
        twin.zero_grad()
        objective(*encode(twin)(pictures)).backward()

    def cached() -> None:
        model.zero_grad()
        cached_backward(encode(model), parts, objective, encoder=model)

    arms = {"1 x batch": large, "cached": cached}
    memory = {name: peak_memory(arm) for name, arm in arms.items()}
    seconds = measure_in_turn(arms, args.repeats)
    gradients = {"1 x batch": gradient(twin), "cached": gradient(model)}
    twin.double().zero_grad()
    pictures = pictures.double()
    large()
    exact = gradient(twin)
    base = statistics.median(seconds["1 x batch"])
    rows = [
        {
            "arm": name,
            "batch": args.batch,
            "parts": 1 if name == "1 x batch" else args.parts,
            "seconds": statistics.median(seconds[name]),
            "ratio": statistics.median(seconds[name]) / base,
            "gradient_error": distance(gradients[name], gradients["1 x batch"]),
            "float64_error": distance(gradients[name], exact),
            "peak_mib": memory[name],
            **versions(),
        }
        for name in arms
    ]
    write_csv(args.out, rows)
    for row in rows:
        print(
            {
                key: row[key]
                for key in ("arm", "seconds", "ratio", "gradient_error", "float64_error", "peak_mib")
            }
        )


if __name__ == "__main__":
    main()
