"""Read run folders, and group them by recipe."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from counterpoint.evaluate.record import Result, load_results
from counterpoint.train.health import last_verdict
from counterpoint.train.log import read_metrics

Curves = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """What one folder says, features and graph apart: those are read where they are used.

    curves: the columns of metrics.csv, `(rows,)` each, NaN where a cell is empty.
    missing: why the run is incomplete, in words; empty for a whole run.
    warning: what the log says is wrong with the training, or None.
    seconds: training time, where the run wrote it down.
    """

    folder: Path
    name: str
    seed: int
    recipe: Mapping[str, Any]
    results: tuple[Result, ...]
    curves: Curves
    missing: tuple[str, ...] = ()
    warning: str | None = None
    seconds: float | None = None

    def last(self, column: str) -> float | None:
        """What the last row of the log holds in that column, None where the cell is empty or not finite."""
        values = self.curves.get(column)
        return float(values[-1]) if values is not None and len(values) and np.isfinite(values[-1]) else None

    @property
    def features(self) -> Path | None:
        """The features of the test split, where they were written."""
        path = self.folder / "features.npz"
        return path if path.is_file() else None

    @property
    def graph(self) -> Path | None:
        """The target similarity between classes, where the recipe has a graph."""
        path = self.folder / "graph.npz"
        return path if path.is_file() else None


@dataclass(frozen=True)
class Method:
    """The runs of one recipe, one per seed.

    index: its place among the recipes, which decides its colour; 0 is the baseline.
    """

    index: int
    name: str
    runs: tuple[Run, ...]

    @property
    def whole(self) -> tuple[Run, ...]:
        """The runs that have results."""
        return tuple(run for run in self.runs if run.results)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.whole)

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe of the first run that has one."""
        return next((run.recipe for run in self.runs if run.recipe), {})


def read_methods(folders: Sequence[Path]) -> list[Method]:
    """The runs in these folders by recipe name, in order of first appearance; the first is the baseline.

    A run that lacks a file is kept, with the reason in `missing`.
    Raises ValueError for no folders, a path that is no folder, and two runs with one name and seed.
    """
    if not folders:
        raise ValueError("a report needs at least one run folder, got none")
    runs: dict[tuple[str, int], Run] = {}
    for folder in folders:
        run = read_run(Path(folder))
        if (run.name, run.seed) in runs:
            raise ValueError(
                f"two runs are called {run.name!r} with seed {run.seed}: "
                f"{runs[run.name, run.seed].folder} and {folder}"
            )
        runs[run.name, run.seed] = run
    names = list(dict.fromkeys(name for name, _ in runs))
    return [
        Method(index, name, tuple(sorted((r for r in runs.values() if r.name == name), key=lambda r: r.seed)))
        for index, name in enumerate(names)
    ]


def read_run(folder: Path) -> Run:
    """One run folder. What is missing or broken is named in the result, not raised."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a run folder: there is no such folder")
    missing: list[str] = []
    recipe = _recipe(folder, missing)
    results = _results(folder, missing)
    rows = _metrics(folder, missing)
    seed = recipe.get("seed", folder.name.removeprefix("seed-"))
    return Run(
        folder=folder,
        name=str(recipe.get("name", folder.parent.name)),
        seed=int(seed) if str(seed).isdigit() else 0,
        recipe=recipe,
        results=results,
        curves=_curves(rows),
        missing=tuple(missing),
        warning=last_verdict(rows),
        seconds=_seconds(folder / "done.json"),
    )


def _recipe(folder: Path, missing: list[str]) -> Mapping[str, Any]:
    try:
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing.append("no recipe.yaml")
        return {}
    except (yaml.YAMLError, UnicodeDecodeError):
        missing.append("recipe.yaml is not valid YAML")
        return {}
    if not isinstance(recipe, dict):
        missing.append("recipe.yaml holds no mapping of keys to values")
        return {}
    return recipe


def _results(folder: Path, missing: list[str]) -> tuple[Result, ...]:
    path = folder / "results.json"
    if not path.is_file():
        missing.append("no results.json")
        return ()
    try:
        results = load_results(path)
    except ValueError as error:
        missing.append(str(error).replace(f"{path}", path.name))
        return ()
    if not results:
        missing.append("no accuracy was measured, as its data has no labels")
    return tuple(results)


def _metrics(folder: Path, missing: list[str]) -> list[dict[str, float | None]]:
    path = folder / "metrics.csv"
    if not path.is_file():
        missing.append("no metrics.csv")
        return []
    try:
        rows = read_metrics(path)
    except (ValueError, TypeError, AttributeError):
        missing.append("metrics.csv holds a cell that is not a number")
        return []
    return [row for row in rows if row.get("step") is not None]


def _curves(rows: Sequence[Mapping[str, float | None]]) -> Curves:
    # A step that stands twice is from a run that was continued: the later row counts.
    last = {row["step"]: row for row in rows}
    ordered = [last[step] for step in sorted(step for step in last if step is not None)]
    columns = ordered[0] if ordered else {}
    return {
        column: np.array(
            [np.nan if row.get(column) is None else row[column] for row in ordered], dtype=np.float64
        )
        for column in columns
    }


def _seconds(path: Path) -> float | None:
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None
