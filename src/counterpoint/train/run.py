"""The folder of one run: what is in it, and who may write there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from counterpoint.files import write_whole
from counterpoint.train.recipe import Recipe, read_recipe

FILES = ("recipe.yaml", "metrics.csv", "results.json", "features.npz", "graph.npz", "done.json")
FOLDERS = ("checkpoints", "tensorboard")
DUMP = "nan-step-"
MAY_DIFFER_ON_RESUME = (
    "train.devices",
    "train.nodes",
    "train.workers",
    "train.accelerator",
    "train.on_nan",
    "train.log_every",
    "train.save_every",
    "train.keep",
    "train.tensorboard",
    "evaluate",
    "evaluate_on",
    "expect",
)


@dataclass(frozen=True)
class Run:
    """Paths inside the folder of a run."""

    folder: Path

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.csv"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    @property
    def features(self) -> Path:
        return self.folder / "features.npz"

    @property
    def graph(self) -> Path:
        return self.folder / "graph.npz"

    @property
    def done(self) -> Path:
        return self.folder / "done.json"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def exists(self) -> bool:
        """Whether a run has been started here."""
        return any((self.folder / name).exists() for name in (*FILES, *FOLDERS))

    @property
    def recipe(self) -> Recipe:
        """The recipe the run was started with."""
        if not self.recipe_file.is_file():
            raise ValueError(f"{self.folder} is not a run: it has no recipe.yaml")
        return read_recipe(self.recipe_file)


def claim(folder: Path, recipe: Recipe, resume: bool, overwrite: bool) -> Run:
    """Make the folder ready for this recipe.

    Raises ValueError where a run is there already and neither resume nor overwrite is asked for, and where
    the run to resume was started with another recipe (the keys that differ are named).
    """
    run = Run(folder)
    if resume and overwrite:
        raise ValueError("resume and overwrite exclude each other: give one of them")
    if run.exists and not (resume or overwrite):
        raise ValueError(
            f"{folder} holds a run already: continue it with --resume or replace it with --overwrite"
        )
    if run.exists and resume:
        changed = differences(run.recipe, recipe)
        if changed:
            raise ValueError(f"{folder} was started with another recipe: {'; '.join(changed)}")
    if run.exists and overwrite:
        # recipe.yaml goes last: without it, what a kill leaves here would be no run.
        for name in (*FOLDERS, *(path.name for path in folder.glob(f"{DUMP}*"))):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in reversed(FILES):
            (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.recipe_file, recipe.to_yaml().encode())
    return run


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The keys in which two recipes differ, with both values; keys that change no result are left out."""
    before, after = _flat(old.resolved()), _flat(new.resolved())
    return [
        f"{key} was {before.get(key)!r}, now {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and not any(key == free or key.startswith(free + ".") for free in MAY_DIFFER_ON_RESUME)
    ]


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if isinstance(value, dict) and value:
        return {k: v for name, part in value.items() for k, v in _flat(part, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): value}
