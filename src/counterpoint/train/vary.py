"""Ablations: recipes again and again, with one key at each of several values."""

from __future__ import annotations

import csv
import inspect
import io
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from counterpoint.evaluate import Result, spread
from counterpoint.files import write_whole
from counterpoint.similarity import GRAPHS
from counterpoint.train.compare import Line, question
from counterpoint.train.recipe import Recipe, override, parse_recipe

PLAN = "ablation.json"
NUMBERS = "ablation.csv"
POWER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
UNVARIED = {
    "seed": "give the seeds as --seeds",
    "name": "a run is named by what is varied",
    "expect": "no run depends on it",
}


@dataclass(frozen=True)
class Varied:
    """One recipe of an ablation.

    base: the name of the recipe it was made of. values: by key, empty for a recipe that has none of the keys.
    """

    recipe: Recipe
    base: str
    values: Mapping[str, Any]

    def told(self) -> str:
        """The values in words.

        >>> from counterpoint.train.recipe import load_recipe
        >>> recipe = load_recipe("demo/xclr")
        >>> [one.told() for one in vary([recipe], ["objective.tau_s=0.1,0.2"])]
        ['objective.tau_s=0.1', 'objective.tau_s=0.2']
        """
        return " ".join(f"{key}={json.dumps(value)}" for key, value in self.values.items()) or "as it is"


def parse_vary(word: str) -> tuple[str, list[Any]]:
    """`KEY=VALUE,VALUE,...`, or a YAML list of values: the key and the values.

    Raises ValueError where it is no such text, or has fewer than two values or one of them twice.

    >>> parse_vary("objective.tau_s=0.05,0.1")
    ('objective.tau_s', [0.05, 0.1])
    >>> parse_vary("similarity=[{graph: instance}, {graph: class, encoder: static}]")[1][0]
    {'graph': 'instance'}
    """
    key, sign, text = word.partition("=")
    key, text = key.strip(), text.strip()
    if not sign or not key or not text:
        raise ValueError(f"--vary {word!r} is not of the form KEY=VALUE,VALUE")
    try:
        values = yaml.safe_load(text if text.startswith("[") else f"[{text}]")
    except yaml.YAMLError:
        lists = "; several lists stand in one, [[1], [2]]" if text.startswith("[") else ""
        raise ValueError(f"--vary {word!r}: the values are not valid YAML{lists}") from None
    # YAML takes 1e-3 for a text, where it has no point, and 2020-01-01 for a date.
    values = [float(v) if isinstance(v, str) and POWER.fullmatch(v) else v for v in values]
    try:
        values = json.loads(json.dumps(values, default=str))
    except (TypeError, ValueError):
        raise ValueError(f"--vary {word!r}: the keys of a block must be texts") from None
    told = [json.dumps(value, sort_keys=True) for value in values]
    if len(values) < 2 or len(set(told)) < len(told):
        raise ValueError(f"--vary {key} takes two or more different values, got {text}")
    return key, values


def vary(recipes: Sequence[Recipe], words: Sequence[str]) -> list[Varied]:
    """Every recipe with every combination of the values; one that has none of the keys is kept as it is.

    Such a recipe is the line that the others are held against: SimCLR has no `objective.tau_s`. With
    `similarity.graph` a graph keeps those arguments of the recipe that it takes.

    words: as `parse_vary` reads them.

    Raises ValueError where no recipe has a key, and as `parse_recipe` for a value that is not allowed.
    """
    asked = [parse_vary(word) for word in words]
    keys = [key for key, _ in asked]
    if len(set(keys)) < len(keys):
        raise ValueError(f"--vary names a key twice: {', '.join(keys)}")
    for key in keys:
        if (first := key.split(".")[0]) in UNVARIED:
            raise ValueError(f"--vary {key} would give the same runs again: {UNVARIED[first]}")
    made: list[Varied] = []
    for recipe in recipes:
        own = [(key, values) for key, values in asked if _has(recipe, key)]
        for combination in itertools.product(*(values for _, values in own)):
            values = dict(zip((key for key, _ in own), combination, strict=True))
            made.append(Varied(_changed(recipe, values), recipe.name, values))
    for key in keys:
        if not any(key in one.values for one in made):
            # Trying it says best what is wrong with it.
            _changed(recipes[0], {key: dict(asked)[key][0]})
            raise ValueError(f"--vary {key}: no recipe uses it ({', '.join(r.name for r in recipes)})")
    _check_names(made)
    return made


def _check_names(made: Sequence[Varied]) -> None:
    """ValueError where two values of one recipe are written alike in the names of its runs."""
    first: dict[tuple[str, str], Varied] = {}
    for one in made:
        other = first.setdefault((one.base, one.recipe.name), one)
        if other is not one and other.values != one.values:
            raise ValueError(
                f"--vary: runs of {other.told()} and of {one.told()} would both be called "
                f"{one.recipe.name!r}: compare them by two commands, each with an --out of its own"
            )


def _has(recipe: Recipe, key: str) -> bool:
    """Whether the recipe has the key, given or by default, and its runs depend on it."""
    if key.split(".")[0] == "similarity" and "target" not in recipe.build_objective().accepts:
        return False
    place: Any = recipe.resolved()
    for part in key.split("."):
        if isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        elif isinstance(place, dict) and part in place:
            place = place[part]
        else:
            # An argument that some graphs have, such as the encoder: a wrong one is refused as it is used.
            return key.startswith("similarity.") and recipe.similarity is not None
    return True


def _changed(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    plain = recipe.resolved()
    for key, value in values.items():
        given = value
        if (
            key == "similarity.graph"
            and isinstance(value, str)
            and value in GRAPHS
            and plain.get("similarity")
        ):
            takes = {*inspect.signature(GRAPHS[value]).parameters, "noise", "noise_seed"}
            key, given = "similarity", {k: v for k, v in plain["similarity"].items() if k in takes}
            given["graph"] = value
        plain = override(plain, [f"{key}={json.dumps(given, default=str)}"])
    plain["name"] = "-".join([recipe.name, *(label(key, value) for key, value in values.items())])
    return parse_recipe(plain, where="--vary " + ", ".join(values) if values else "recipe")


def label(key: str, value: Any) -> str:
    """The value in the name of a run: a number with the last part of its key, a block by its own values.

    >>> label("objective.tau_s", 0.05), label("similarity.graph", "label"), label("data.limit", None)
    ('tau_s-0.05', 'label', 'limit-all')
    >>> label("similarity", {"graph": "class", "template": "a photo of a {}"})
    'class-a_photo_of_a'
    """
    if isinstance(value, dict | list):
        text = "-".join(_leaves(value))
    elif isinstance(value, str):
        text = value
    else:
        last = key.rpartition(".")[2]
        text = f"{last}-all" if value is None and last == "limit" else f"{last}-{json.dumps(value)}"
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_.-") or "empty"


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    if isinstance(value, list):
        return [leaf for part in value for leaf in _leaves(part)]
    return [Path(value).stem if isinstance(value, str) and "/" in value else str(value)]


def write_plan(folder: Path, varied: Sequence[Varied]) -> None:
    """Note beside the runs what was varied, for the report."""
    points = [{"name": one.recipe.name, "base": one.base, "values": dict(one.values)} for one in varied]
    keys = list(dict.fromkeys(key for one in varied for key in one.values))
    text = json.dumps({"keys": keys, "points": points}, indent=1, default=str, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PLAN, text.encode())


def write_numbers(folder: Path, varied: Sequence[Varied], lines: Sequence[Line]) -> Path:
    """All means and standard deviations of an ablation as CSV: a row for each run name and measure."""
    keys = list(dict.fromkeys(key for one in varied for key in one.values))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["name", "recipe", *keys, "column", "protocol", "metric", "k", "seeds", "mean", "std"])
    for one, line in zip(varied, lines, strict=True):
        by_question: dict[str, list[Result]] = {}
        for result in (result for results in line.results for result in results):
            by_question.setdefault(json.dumps(question(result), sort_keys=True), []).append(result)
        for results in by_question.values():
            over = spread(result.value for result in results)
            first = results[0]
            given = [json.dumps(one.values[key], default=str) if key in one.values else "" for key in keys]
            told = first.settings
            what = [told.get("column", ""), first.protocol, first.metric, told.get("k", "")]
            std = "" if over.std is None else f"{over.std:.6f}"
            rows.writerow([line.name, one.base, *given, *what, over.n, f"{over.mean:.6f}", std])
    write_whole(folder / NUMBERS, text.getvalue().encode())
    return folder / NUMBERS
