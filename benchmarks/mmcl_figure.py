"""Draw docs/objectives/mmcl.png: how many support vectors and what margin, by sigma, ridge and C.

    python benchmarks/mmcl_figure.py

256 embeddings of width 128 in ten groups, as a trained encoder has them; the exact solver.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch

from counterpoint.objectives import MMCL

OUT = Path(__file__).parents[1] / "docs" / "objectives" / "mmcl.png"
SIGMAS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
RIDGES = (0.01, 0.1, 1.0)
BOUNDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


def main() -> None:
    """Solve and draw."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 128, generator=generator)[torch.arange(256) % 10]
    z0 = centres + 0.7 * torch.randn(256, 128, generator=generator)
    z1 = z0 + 0.5 * torch.randn(256, 128, generator=generator)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    for ridge in RIDGES:
        logs = [MMCL(sigma=sigma, ridge=ridge).with_log(z0, z1)[1] for sigma in SIGMAS]
        left.plot(SIGMAS, [100 * (1 - float(log["at_zero"])) for log in logs], "o-", ms=3, label=f"{ridge:g}")
        middle.plot(SIGMAS, [float(log["margin"]) for log in logs], "o-", ms=3, label=f"{ridge:g}")
    left.set(xscale="log", xlabel="sigma", ylabel="support vectors (% of negatives)", ylim=0)
    middle.set(xscale="log", yscale="log", xlabel="sigma", ylabel="margin")
    left.legend(title="ridge", fontsize=8)
    logs = [MMCL(sigma=10, C=bound).with_log(z0, z1)[1] for bound in BOUNDS]
    shares = [[100 * float(log[key]) for log in logs] for key in ("at_C", "inside", "at_zero")]
    right.stackplot(
        BOUNDS, shares, labels=("at C", "inside", "at 0"), colors=("#b5423a", "#e0a458", "#d8dee4")
    )
    right.set(xscale="log", xlabel="C (sigma 10, ridge 0.1)", ylabel="negatives (%)", ylim=(0, 100))
    right.legend(loc="upper right", fontsize=8)
    figure.savefig(OUT, dpi=90)
    print(OUT)


if __name__ == "__main__":
    main()
