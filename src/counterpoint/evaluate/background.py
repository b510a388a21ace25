"""Background reliance: what a probe loses when objects stand before the backgrounds of other objects.

Two test splits show the same objects: the original with its own backgrounds, the recombined one with those of
other objects. One probe, fitted once, is measured on both. The gap is the share of accuracy that came from
the background; the idea is that of Xiao et al., "Noise or signal: the role of image backgrounds in object
recognition" (ICLR 2021), whose gap is Mixed-Same minus Mixed-Rand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from counterpoint.evaluate.features import Features
from counterpoint.evaluate.knn import knn
from counterpoint.evaluate.linear import L2, linear_probes
from counterpoint.evaluate.record import Result

PROTOCOL = "background"
VERSION = 1


def background_reliance(
    train: Features,
    original: Features,
    recombined: Features,
    column: str | None = None,
    probe: Literal["knn", "linear"] = "knn",
    k: int = 20,
    temperature: float = 0.07,
    l2: float | Sequence[float] = L2,
    seed: int = 0,
) -> list[Result]:
    """Accuracy on the original split, on the recombined one, and the gap: original minus recombined.

    Use when your data says which object and which background a picture shows, as the generated shapes do.
    Relations: each accuracy is that of `knn` or `linear_probe` on its split.

    probe: "knn" uses k and temperature, "linear" uses l2 and seed.

    Raises ValueError for an unknown probe, for splits with unequal numbers of labelled samples, and as the
    probe does.

    >>> import torch
    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 1]), ["x", "y"])
    >>> split = Features(torch.eye(2), keys=["a", "b"], labels={"kind": kinds})
    >>> swapped = Features(torch.eye(2).flip(0), keys=["a", "b"], labels={"kind": kinds})
    >>> [(result.metric, result.value) for result in background_reliance(split, split, swapped, k=1)]
    [('accuracy', 1.0), ('accuracy', 0.0), ('gap', 1.0)]
    """
    splits = {"original": original, "recombined": recombined}
    if probe == "knn":
        found = [knn(train, split, column, k, temperature)[0] for split in splits.values()]
    elif probe == "linear":
        found = linear_probes(train, list(splits.values()), column, l2, seed)
    else:
        raise ValueError(f"probe must be knn or linear, got {probe!r}")
    if found[0].n != found[1].n:
        raise ValueError(
            f"the original split has {found[0].n} labelled samples, the recombined one {found[1].n}: "
            "they must show the same objects"
        )
    results = [
        Result(
            protocol=PROTOCOL,
            version=VERSION,
            value=result.value,
            n=result.n,
            settings={**result.settings, "probe": probe, "probe_version": result.version, "split": split},
            chosen=result.chosen,
        )
        for split, result in zip(splits, found, strict=True)
    ]
    gap = Result(
        protocol=PROTOCOL,
        version=VERSION,
        metric="gap",
        value=found[0].value - found[1].value,
        n=found[0].n,
        settings={**results[0].settings, "split": "original - recombined", "recombined": recombined.name},
        chosen=found[0].chosen,
    )
    return [*results, gap]
