"""Recipes run for two steps, at the size of a test."""

import io
import json

from rich.console import Console

from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.recipe import load_recipe

# The machine decides these, not the method: one process, eight pictures.
SMALLER = [
    "train.steps=2",
    "train.batch_size=8",
    "train.accelerator=cpu",
    "train.workers=0",
    "train.log_every=1",
]


def quiet():
    return Console(file=io.StringIO())


def two_steps(name, words, folder):
    """The recipe, its run and the rows of its log."""
    recipe = load_recipe(name, [*words, *SMALLER])
    run = fit(recipe, folder, console=quiet())
    rows = read_metrics(run.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    assert json.loads(run.done.read_text())["steps"] == 2
    return recipe, run, rows
