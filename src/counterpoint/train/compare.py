"""Several recipes, several seeds, one table: train each, measure each, set them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pydantic import JsonValue
from rich.console import Console
from rich.table import Table
from torch import Tensor

from counterpoint.data import Samples
from counterpoint.data.batches import batch_source, plain_batches
from counterpoint.evaluate import (
    Features,
    Result,
    by_camera,
    crop_batches,
    extract,
    knn,
    linear_probe,
    load_results,
    matching,
    save_features,
    save_results,
    spread,
    trained_linear,
)
from counterpoint.evaluate.trained_linear import Batches, training
from counterpoint.files import write_whole
from counterpoint.models.encoder import Encoder
from counterpoint.similarity import class_similarity
from counterpoint.train.checkpoint import newest_checkpoint
from counterpoint.train.devices import started_by
from counterpoint.train.loop import fit
from counterpoint.train.recipe import Recipe
from counterpoint.train.run import Run, claim, differences
from counterpoint.train.setup import load_encoder, load_graph
from counterpoint.train.sources import check_text_tower, evaluation_splits, measure_with_text

SHOWN_K = 20
LONGEST_WORD = len("assignment")
COLUMNS = 4  # recipes side by side that a terminal of 80 columns shows


def run_folder(out: Path, recipe: Recipe) -> Path:
    """Where a comparison puts the run of this recipe and seed."""
    return out / recipe.name / f"seed-{recipe.seed}"


def load_trained(run: Run, console: Console) -> Encoder:
    """The encoder of a run, with the weights of its newest whole checkpoint."""
    state = newest_checkpoint(run.checkpoints, lambda line: _say(console, line))
    if state is None:
        raise ValueError(f"{run.folder} has no whole checkpoint: train it first")
    encoder = load_encoder(run.recipe)
    try:
        encoder.load_state_dict(state["encoder"])
    except RuntimeError:
        raise ValueError(
            f"the checkpoint in {run.folder} does not fit the model of its recipe.yaml: was that changed?"
        ) from None
    return encoder


def measure(run: Run, console: Console | None = None) -> list[Result]:
    """Measure a trained run by the protocols of its recipe, and write results.json and features.npz there."""
    console = console or Console(stderr=True)
    recipe = run.recipe
    splits = evaluation_splits(recipe)
    encoder = load_trained(run, console).to(_place(recipe))
    train, test = (_features(encoder, samples, recipe) for samples in (splits.train, splits.test))
    results: list[Result] = []
    columns: tuple[str | None, ...] = ((recipe.evaluate_on or recipe.data).label,) if train.labels else ()
    if recipe.evaluate.columns is not None:
        columns = recipe.evaluate.columns
    elif not columns:
        _say(console, f"{run.folder}: the data has no labels, so there are features but no accuracies")
    left_out = len(splits.train) + len(splits.test) - len(train) - len(test)
    if left_out:
        _say(
            console,
            f"{run.folder}: {left_out} pictures could not be read and were left out of the evaluation",
        )
    if not run.done.exists():
        _say(console, f"{run.folder}: this run has not ended; what is measured is its newest checkpoint")
    for column in columns:
        largest = int(splits.train.column(column).known.sum())
        k = tuple(k for k in recipe.evaluate.k if k <= largest) or (largest,)
        results += knn(train, test, column, k=k, temperature=recipe.evaluate.temperature)
        if recipe.evaluate.linear:
            results.append(linear_probe(train, test, column, seed=recipe.seed))
        for protocol in recipe.evaluate.probes:
            crops = training(protocol).augmentation == "crop_flip"
            batches = _crops(encoder, splits.train, train, recipe) if crops else None
            results.append(
                trained_linear(
                    train, test, column, protocol, recipe.seed, batches=batches, device=_place(recipe)
                )
            )
    if recipe.evaluate.matching is not None:
        results += matching(*by_camera(test, recipe.evaluate.matching))
    results += measure_with_text(encoder, splits.test, recipe)
    # Results of an earlier checkpoint must not stand beside those of this one.
    run.results.unlink(missing_ok=True)
    save_features(run.features, test)
    if recipe.evaluate_on is None and not recipe.data.streamed:
        _save_graph(run, recipe, splits.train)
    save_results(run.results, results)
    return results


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _place(recipe: Recipe) -> torch.device:
    """Where a run is measured: where it was trained, or on the CPU where this machine lacks that."""
    try:
        one = LightningEnvironment()  # though torchrun may have started several processes
        return Fabric(accelerator=recipe.train.accelerator, devices=1, plugins=[one]).device
    except RuntimeError:
        return torch.device("cpu")


def _crops(encoder: Encoder, samples: Samples, train: Features, recipe: Recipe) -> Batches:
    """Features of random crops of the samples that `train` has, epoch by epoch."""
    if len(train) < len(samples):
        # Pictures that could not be read have no features.
        kept = set(train.keys)
        samples = samples.subset([i for i, key in enumerate(samples.keys) if key in kept])
    source = batch_source(
        samples,
        recipe.views.spec.crops(),
        min(recipe.evaluate.batch_size, len(samples)),
        seed=recipe.seed,
        workers=recipe.train.workers,
        drop_last=False,
        on_error=recipe.data.on_error,
        device=_place(recipe),
    )
    return crop_batches(encoder, lambda epoch: ((batch.ids, batch.views[0]) for batch in source.epoch(epoch)))


def _features(encoder: Encoder, samples: Samples, recipe: Recipe) -> Features:
    plain = recipe.views.spec.plain()
    on_error = recipe.data.on_error
    batches = plain_batches(
        samples, plain, recipe.evaluate.batch_size, workers=recipe.train.workers, on_error=on_error
    )
    return extract(encoder, batches, samples, missing=on_error)


def _save_graph(run: Run, recipe: Recipe, train: Samples) -> None:
    graph = load_graph(recipe)
    if graph is None or not train.labels:
        return
    column = recipe.data.label or next(iter(train.labels))
    similarity: Tensor = class_similarity(
        graph, train.column(column).values, classes=len(train.column(column).names)
    )
    arrays = {
        "similarity": similarity.numpy(),
        "names": np.array(list(train.column(column).names), dtype=str),
        "column": np.array(column, dtype=str),
        "name": np.array(graph.name, dtype=str),
    }
    write_whole(run.graph, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Line:
    """One row of a comparison: a recipe, and its results over the seeds."""

    name: str
    seeds: tuple[int, ...]
    results: tuple[tuple[Result, ...], ...]


def compare(
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> list[Line]:
    """Train and measure every recipe with every seed; runs already done are kept when resuming.

    Raises ValueError where two recipes have one name, or a folder holds a run already.
    """
    console = console or Console(stderr=True)
    runs = plan(recipes, seeds, out, resume, overwrite)
    for recipe in runs:
        run = Run(run_folder(out, recipe))
        trained = resume and run.done.exists()
        if trained and _is_measured(run, recipe):
            continue
        if trained:
            claim(run.folder, recipe, resume=True, overwrite=False)
        else:
            fit(recipe, run.folder, resume=resume, overwrite=overwrite, console=console)
        measure(run, console)
    return [
        Line(recipe.name, tuple(seeds), tuple(_results(out, recipe, seed) for seed in seeds))
        for recipe in recipes
    ]


def _is_measured(run: Run, recipe: Recipe) -> bool:
    """Whether the results are those of the trained run, by the protocols that are asked for now."""
    if not run.results.exists() or _asked(run.recipe) != _asked(recipe):
        return False
    return run.results.stat().st_mtime_ns >= run.done.stat().st_mtime_ns


def _asked(recipe: Recipe) -> tuple[object, object]:
    return recipe.evaluate, recipe.evaluate_on


def plan(
    recipes: Sequence[Recipe], seeds: Sequence[int], out: Path, resume: bool = False, overwrite: bool = False
) -> list[Recipe]:
    """The runs of a comparison, one recipe for each; what could not finish is refused before any starts."""
    if starter := started_by():
        raise ValueError(
            "a comparison starts the processes of each run by itself: give train.devices, and leave out "
            f"{starter}"
        )
    names = [recipe.name for recipe in recipes]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"two recipes have the same name, {', '.join(twice)}: give each copy a name of its own, "
            "`name: ...` in its file, and name no recipe twice"
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {list(seeds)}")
    # Seed by seed, so that a stopped comparison has whole rows to show.
    runs = [recipe.model_copy(update={"seed": seed}) for seed in seeds for recipe in recipes]
    for recipe in runs:
        check_text_tower(recipe)
        run = Run(run_folder(out, recipe))
        if run.exists and not (resume or overwrite):
            raise ValueError(
                f"{run.folder} holds a run already: continue with --resume or replace it with --overwrite"
            )
        if run.exists and resume and (changed := differences(run.recipe, recipe)):
            raise ValueError(f"{run.folder} was started with another recipe: {'; '.join(changed)}")
    return runs


def _results(out: Path, recipe: Recipe, seed: int) -> tuple[Result, ...]:
    return tuple(load_results(Run(run_folder(out, recipe.model_copy(update={"seed": seed}))).results))


def table(lines: Sequence[Line], down: bool = False) -> Table:
    """Mean and sample standard deviation over seeds: a row per label and protocol, a column per recipe.

    down: a row per recipe instead, for many of them.

    Rows are those of all recipes, with a dash where a recipe was not measured so. Of the numbers of
    neighbours the table shows 20, or the largest measured one below it; of matching, 1.
    """
    asked = [result for line in lines for result in line.results[0]]
    measured = [int(str(result.settings["k"])) for result in asked if result.protocol == "knn"]
    k = max((k for k in measured if k <= SHOWN_K), default=min(measured, default=0))
    shown: list[Result] = []
    for result in asked:
        known = any(question(result) == question(other) for other in shown)
        if not known and result.settings.get("k") == {"knn": k, "recall": 1}.get(
            _family(result), result.settings.get("k")
        ):
            shown.append(result)
    columns = [result.settings["column"] for result in shown]
    shown.sort(key=lambda result: columns.index(result.settings["column"]))
    seeds = len(lines[0].seeds)
    over = "1 seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"
    metrics = list(dict.fromkeys(result.metric for result in shown)) or ["accuracy"]
    made = Table(title=f"{', '.join(metrics)} in percent, {over}")
    # What is too wide goes on below: cut, a row could not be told from the next.
    if down:
        made.add_column("recipe", overflow="fold")
        for result in shown:
            heading = f"{result.settings['column']}\n{_label(result, shown)}"
            made.add_column(heading, justify="right", overflow="fold")
        for line in lines:
            made.add_row(line.name, *(_cell(line, result) for result in shown))
        return made
    made.add_column("label", overflow="fold")
    made.add_column("protocol", overflow="fold", min_width=LONGEST_WORD)
    for line in lines:
        made.add_column(line.name, justify="right", overflow="fold")
    for result in shown:
        cells = [_cell(line, result) for line in lines]
        made.add_row(str(result.settings["column"]), _label(result, shown), *cells)
    return made


def _family(result: Result) -> str:
    """The protocol; of matching, which has several metrics, the metric."""
    return result.metric if result.protocol == "matching" else result.protocol


def _label(result: Result, shown: Sequence[Result]) -> str:
    """The protocol, and what tells this row from others of the same label and protocol."""
    settings = question(result)[3]
    twins = [
        question(other)[3]
        for other in shown
        if _family(other) == _family(result) and other.settings["column"] == result.settings["column"]
    ]
    name = f"kNN, k={result.settings['k']}" if result.protocol == "knn" else result.protocol
    if result.protocol == "matching":
        name = result.metric + (f"@{result.settings['k']}" if "k" in result.settings else "")
    apart = [key for key, value in settings.items() if any(twin.get(key) != value for twin in twins)]
    return ", ".join([name, *(_setting(key, settings[key]) for key in apart)])


def _setting(key: str, value: JsonValue) -> str:
    return str(value) if key == "direction" else f"{key} {value}"


# What may differ between cells of one row: what is compared, and what the features of each run decide.
FREE = {"seed", "rows_of_zeros"}


def _cell(line: Line, asked: Result) -> str:
    """The mean of the results of a line that measure what `asked` measures."""
    values = [
        100 * result.value
        for results in line.results
        for result in results
        if question(result) == question(asked)
    ]
    if not values:
        return "-"
    over = spread(values)
    return f"{over.mean:.1f}" if over.std is None else f"{over.mean:.1f} ± {over.std:.1f}"


def question(result: Result) -> tuple[str, int, str, dict[str, JsonValue]]:
    """What a result answers, whatever the run."""
    free = FREE | set(result.chosen)
    settings = {name: value for name, value in result.settings.items() if name not in free}
    return result.protocol, result.version, result.metric, settings
