"""Run folders with real structure: features drawn around class prototypes, results measured on them.

Three recipes on pictures with six label columns. Their features differ in how strongly each column shows:
the baseline sees colour and background, the label method sees only the object, the graph method sees the
object, and puts objects that the graph calls alike beside each other.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from counterpoint.data.samples import Labels
from counterpoint.evaluate.features import Features, save_features
from counterpoint.evaluate.record import Result, save_results

NAMES: dict[str, tuple[str, ...]] = {
    "object": ("cup", "mug", "bowl", "plate", "cat", "dog", "fox", "car", "bus", "tram"),
    "colour": ("red", "orange", "yellow", "green", "teal", "blue", "purple", "grey"),
    "size": ("small", "medium", "large"),
    "texture": ("plain", "striped", "dotted", "checked"),
    "background": ("white", "sand", "grass", "sky", "night"),
    "place": ("left", "middle", "right"),
}
GROUPS = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
INKS = ("#c0392b", "#e67e22", "#e8c713", "#3f9142", "#1f8f8f", "#2d62b8", "#7d4fa3", "#808080")
BACKS = ("#f6f6f2", "#dcc9a0", "#9dbb7d", "#a9cfe8", "#262b3d")


@dataclass(frozen=True)
class Method:
    """A recipe and how strongly each label column shows in its features."""

    name: str
    objective: Mapping[str, object]
    weights: Mapping[str, float]
    similarity: Mapping[str, object] | None = None
    related: float = 0.0


METHODS = (
    Method("infonce", {"name": "infonce", "tau": 0.1},
           {"object": 0.75, "colour": 0.9, "size": 0.5, "texture": 0.5, "background": 0.8, "place": 0.35}),
    Method("supcon", {"name": "supcon", "tau": 0.1},
           {"object": 1.1, "colour": 0.35, "size": 0.3, "texture": 0.25, "background": 0.3, "place": 0.25}),
    Method("xclr-captions", {"name": "xclr", "tau": 0.1, "tau_s": 0.1},
           {"object": 1.15, "colour": 0.95, "size": 0.55, "texture": 0.7, "background": 0.55, "place": 0.3},
           {"graph": "captions", "encoder": "minilm"}, related=0.8),
)  # fmt: skip


def labels(count: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """Random labels for every column."""
    rng = np.random.default_rng(seed)
    return {column: rng.integers(len(names), size=count) for column, names in NAMES.items()}


def target(names: Sequence[str] = NAMES["object"]) -> NDArray[np.float32]:
    """Similarity of the objects: high inside a group, low between groups, never quite equal."""
    rng = np.random.default_rng(5)
    close = np.full((len(names), len(names)), 0.18)
    for group in GROUPS:
        close[np.ix_(group, group)] = 0.55
    noise = rng.normal(0, 0.05, close.shape)
    close += (noise + noise.T) / 2
    np.fill_diagonal(close, 1)
    return close.astype(np.float32)


def features(
    method: Method, known: Mapping[str, NDArray[np.int64]], seed: int, split: int
) -> NDArray[np.float32]:
    """Rows around class prototypes: `(n, 96)`."""
    rng = np.random.default_rng([seed, 17])
    noise = np.random.default_rng([seed, split, 23])
    rows = noise.normal(0, 2.1, (len(known["object"]), 96))
    for column, names in NAMES.items():
        prototypes = rng.normal(0, 1, (len(names), 96))
        if column == "object":
            for group in GROUPS:
                shared = prototypes[list(group)].mean(0) * len(group) ** 0.5
                prototypes[list(group)] *= 1 - method.related / 2
                prototypes[list(group)] += method.related * shared
        weight = method.weights[column] * (1 + 0.05 * rng.normal())
        rows += weight * prototypes[known[column]]
    return np.maximum(rows + 1, 0).astype(np.float32)


def _knn(score: NDArray, near: NDArray, bank_labels: NDArray, k: int, classes: int) -> NDArray:
    votes = np.zeros((len(score), classes))
    weights = np.exp(np.take_along_axis(score, near[:, :k], axis=1) / 0.07)
    np.add.at(votes, (np.arange(len(score))[:, None], bank_labels[near[:, :k]]), weights)
    return votes.argmax(1)


def _linear(bank: NDArray, bank_labels: NDArray, rows: NDArray, classes: int) -> NDArray:
    goal = np.eye(classes)[bank_labels] - 1 / classes
    weights = np.linalg.solve(bank.T @ bank + 3 * np.eye(bank.shape[1]), bank.T @ goal)
    return (rows @ weights).argmax(1)


def _unit(rows: NDArray) -> NDArray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure(bank: NDArray, rows: NDArray, train: Mapping, test: Mapping, seed: int) -> list[Result]:
    """Result records of both protocols on every column."""
    found = []
    bank, rows = _unit(bank), _unit(rows)
    score = rows @ bank.T
    near = np.argsort(-score, axis=1)[:, :100]
    for column, names in NAMES.items():
        for k in (1, 5, 20, 100):
            right = _knn(score, near, train[column], k, len(names)) == test[column]
            found.append(("knn", column, {"k": k, "temperature": 0.07, "rows_of_zeros": seed}, right))
        found.append(
            (
                "linear",
                column,
                {"l2": 3.0, "seed": seed},
                _linear(bank, train[column], rows, len(names)) == test[column],
            )
        )
    return [
        Result(
            protocol=protocol,
            version=1,
            value=float(right.mean()),
            n=len(right),
            settings={"column": column, "layer": "h", "train": "made/train", "test": "made/test",
                      "train_n": len(bank), "train_classes": len(NAMES[column]), **settings},
        )
        for protocol, column, settings, right in found
    ]  # fmt: skip


COLUMNS = ("step", "epoch", "loss", "chance", "accuracy", "target_entropy", "kl", "spread", "lr",
           "images_per_s", "data_wait")  # fmt: skip


def write_metrics(path: Path, method: Method, seed: int, steps: int = 600, learns: bool = True) -> None:
    """A log that falls from chance towards the floor of its target, with noise."""
    rng = np.random.default_rng([seed, 31, len(method.name)])
    chance = float(np.log(511))
    floor = 4.9 if method.similarity else float(np.log(25)) if method.name == "supcon" else 0.0
    top, end = (0.92, 0.95) if floor == 0 else (0.78, 0.8 + 0.01 * floor)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS)
        writer.writeheader()
        for step in range(0, steps + 1, 10):
            done = (1 - np.exp(-step / (180 + 15 * seed))) if learns else 0.0
            row = {
                "step": step,
                "epoch": step // 100,
                "loss": chance - 0.72 * (chance - floor) * done + rng.normal(0, 0.02) * done,
                "chance": chance,
                "accuracy": np.clip(top * done + rng.normal(0, 0.015), 0, 1),
                "spread": 0.5 + (end - 0.5) * done + rng.normal(0, 0.01),
                "lr": 0.001,
                "images_per_s": 1900 + 40 * seed + rng.normal(0, 15),
                "data_wait": 0.02,
            }
            if floor:
                row |= {"target_entropy": floor, "kl": row["loss"] - floor}
            writer.writerow(row)


def make_runs(
    root: Path,
    methods: Sequence[Method] = METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    test: int = 400,
    train: int = 900,
    names: Mapping[str, Sequence[str]] = NAMES,
    captions: Sequence[str] | None = None,
) -> list[Path]:
    """Write one folder per recipe and seed, and return them recipe by recipe."""
    known, bank_known = labels(test, 1), labels(train, 2)
    folders = []
    for method in methods:
        for seed in seeds:
            folder = root / method.name.replace("/", "_") / f"seed-{seed}"
            folder.mkdir(parents=True)
            recipe = {
                "name": method.name, "seed": seed,
                "data": {"source": "shapes", "count": train, "label": "object"},
                "views": {"preset": "simclr", "size": 64},
                "model": {"backbone": "conv4", "stem": "small", "width": 1, "head": [256, 128]},
                "objective": dict(method.objective),
                "similarity": None if method.similarity is None else dict(method.similarity),
                "optim": {"name": "adamw", "lr": 0.001, "schedule": "cosine"},
                "train": {"epochs": 20, "batch_size": 256, "precision": "32-true"},
            }  # fmt: skip
            (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
            write_metrics(folder / "metrics.csv", method, seed)
            (folder / "done.json").write_text(json.dumps({"steps": 600, "seconds": 82.0 + seed}))
            rows, bank = features(method, known, seed, 1), features(method, bank_known, seed, 2)
            save_results(folder / "results.json", measure(bank, rows, bank_known, known, seed))
            columns = {
                column: Labels(torch.from_numpy(values).long(), names[column])
                for column, values in known.items()
            }
            keys = [f"test/{i:05d}" for i in range(test)]
            made = Features(torch.from_numpy(rows).float(), keys, columns, "test", captions=captions)
            save_features(folder / "features.npz", made)
            if method.similarity is not None:
                np.savez(folder / "graph.npz", similarity=target(), names=np.array(names["object"]),
                         column="object", name="captions")  # fmt: skip
            folders.append(folder)
    return folders


def picture(key: str) -> Image.Image:
    """The test picture of that key, drawn from its labels."""
    known = {column: values[int(key.split("/")[1])] for column, values in labels(400, 1).items()}
    image = Image.new("RGB", (96, 96), BACKS[known["background"]])
    draw = ImageDraw.Draw(image)
    side = (24, 38, 56)[known["size"]]
    x, y = (10 + side // 2, 48, 86 - side // 2)[known["place"]], 48
    box = (x - side // 2, y - side // 2, x + side // 2, y + side // 2)
    kind, ink = int(known["object"]), INKS[known["colour"]]
    if kind < 4:
        draw.pieslice(box, 90 * kind - 30, 90 * kind + 250, fill=ink)
    else:
        draw.regular_polygon((x, y, side / 2), n_sides=kind - 1, fill=ink)
    if known["texture"]:
        for stripe in range(0, side, 6):
            upright = known["texture"] == 1
            line = (box[0] + stripe, box[1], box[0] + stripe, box[3]) if upright else (
                box[0], box[1] + stripe, box[2], box[1] + stripe)  # fmt: skip
            draw.line(line, fill="#ffffff", width=int(known["texture"]))
    return image
