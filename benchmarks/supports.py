"""The picture of docs/objectives/assignment.md: three maps on the same scores.

python benchmarks/supports.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from counterpoint.objectives.fenchel_young import probability

OUT = Path(__file__).parents[1] / "docs" / "objectives" / "supports.png"
SCORES = (1.6, 1.3, 1.15, 0.9, 0.75, 0.6, 0.3, 0.1, -0.2, -0.5, -0.9)
MAPS = {"softmax": "softmax: dense", "sparsemax": "sparsemax: sparse", "argmax": "argmax: hard"}


def main() -> None:
    """Draw the scores and what each map makes of them."""
    scores = torch.tensor([SCORES])
    places = range(len(SCORES))
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.4), layout="constrained")
    axes[0].stem(places, SCORES, basefmt="0.8", linefmt="0.5", markerfmt="o")
    axes[0].set_title("scores", fontsize=10)
    for ax, (name, title) in zip(axes[1:], MAPS.items(), strict=True):
        p = probability(scores, name)[0]
        kept = int((p > 0).sum())
        ax.bar(places, p.tolist(), color="#3465a4")
        ax.set_ylim(0, 1.08)
        for place in places:
            if p[place] == 0:
                ax.text(place, 0.02, "0", ha="center", fontsize=8, color="0.5")
        ax.set_title(f"{title}, {kept} of {len(SCORES)}", fontsize=10)
    for ax in axes:
        ax.set_xticks([])
        ax.set_xlabel("candidates", fontsize=9)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT, dpi=110, metadata={"Software": ""})
    print(f"{OUT.name}: {OUT.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
