"""What a recipe trains, in words: its objective, what that asks for, and where its soft targets come from."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoint.objectives import OBJECTIVES as REGISTERED
from counterpoint.report.runs import Method

OBJECTIVES = {
    "infonce": "Only the other view of the same picture counts as alike.",
    "ntxent": "Only the other view of the same picture counts as alike.",
    "clip": "A picture and its own text count as alike, all others do not.",
    "supcon": "Pictures with the same label count as alike, all others do not.",
    "xclr": "Pictures count as alike to the degree that the similarity graph says.",
    "triplet": "The other view must be nearer than any other picture, by a margin.",
    "hinge": "The other view must score higher than other pictures, by a margin.",
    "sparseclr": "The other view must stand out from the few nearest pictures; all others are left alone.",
    "structured_assignment": "The right matching of the two views of a batch must cost less than any other.",
    "ntlogistic": "Each pair of pictures is asked by itself whether it is two views of one.",
    "mmcl": "A support vector machine for each picture parts its other view from other pictures.",
    "qare": "The pictures of one view are to be spread out evenly.",
}

# Arguments on the card of a run even where they are at their defaults.
ALWAYS_TOLD = ("tau", "tau_s", "margin", "sigma", "solver", "ridge", "C")

# Where views are pictures of one identity by different cameras.
PAIRED = {
    "infonce": "Only the other picture of the same identity counts as alike.",
    "ntxent": "Only the other picture of the same identity counts as alike.",
    "ntlogistic": "Each pair of pictures is asked by itself whether it shows one identity.",
    "mmcl": "A support vector machine for each picture parts the other one of its identity from the rest.",
}

WITH_GRAPH = {
    "qare": "The spread of the pictures of one view is to be that of the similarity graph.",
}


def objective_of(method: Method) -> tuple[str, str]:
    """The objective of a recipe and what it means, a sentence for each known term.

    Of its arguments those that are always told, those that differ from their defaults, and the schedule.
    """
    given = method.recipe.get("objective")
    terms = [term for term in (given if isinstance(given, list) else [given]) if isinstance(term, dict)]
    texts = []
    for term in terms:
        settings = ", ".join(_settings(term))
        weight = term.get("weight", 1.0)
        factor = "" if weight == 1 else f"{weight} × "
        texts.append(f"{factor}{term.get('name', '?')}" + (f" ({settings})" if settings else ""))
    views = method.recipe.get("views")
    paired = isinstance(views, dict) and views.get("pair_by") is not None
    meanings = [_meaning(term, paired) for term in terms]
    return " + ".join(texts), " ".join(dict.fromkeys(filter(None, meanings)))


def _settings(term: Mapping[str, Any]) -> list[str]:
    kind = REGISTERED.get(str(term.get("name")))
    defaults = {
        name: parameter.default
        for name, parameter in (inspect.signature(kind).parameters if kind is not None else {}).items()
    }
    schedule = term.get("schedule")
    schedule = schedule if isinstance(schedule, dict) else {}
    told = []
    for name, value in term.items():
        if name in ("name", "weight", "schedule"):
            continue
        usual = name in defaults and _plain(value) == _plain(defaults[name])
        if name in schedule or not usual or (name in ALWAYS_TOLD and (value is not None or name == "C")):
            text = (
                "none"
                if value is None
                else value
                if isinstance(value, str)
                else json.dumps(value, default=str)
            )
            told.append(f"{name} {text}" + _then(schedule.get(name)))
    return told + [f"{name}{_then(steps)}" for name, steps in schedule.items() if name not in term]


def _then(steps: object) -> str:
    """The later values of an argument, by the epoch from which each holds."""
    if not isinstance(steps, dict):
        return ""
    return "".join(f" → {value} from epoch {epoch}" for epoch, value in steps.items())


def _plain(value: object) -> object:
    """YAML has lists for tuples."""
    return list(value) if isinstance(value, tuple) else value


def _meaning(term: Mapping[str, Any], paired: bool) -> str:
    """What a term asks for; nothing is said of one that a weight of 0 or below leaves out or turns round."""
    name = str(term.get("name"))
    if term.get("weight", 1.0) <= 0 or (name == "qare" and (term.get("shift") or 0) < 0):
        return ""
    if term.get("reference") == "graph":
        return WITH_GRAPH.get(name, "")
    return (paired and PAIRED.get(name)) or OBJECTIVES.get(name, "")


def graph_of(method: Method) -> str:
    """Where the soft targets of a recipe come from, or an empty text."""
    similarity = method.recipe.get("similarity")
    if not isinstance(similarity, dict):
        return ""
    return _graph(similarity)


def _graph(section: Mapping[str, Any]) -> str:
    parts = [part for part in section.get("of") or () if isinstance(part, Mapping)]
    text = str(section.get("graph", "unnamed"))
    text += f" of {' and '.join(_graph(part) for part in parts)}" if parts else ""
    text += f" ({section['measure']})" if section.get("measure") else ""
    columns = [str(name) for kind in ("numbers", "categories") for name in section.get(kind) or ()]
    text += f" ({', '.join(columns)})" if columns else ""
    text += f", from {Path(str(section['path'])).name}" if section.get("path") else ""
    text += f", read by {section['encoder']}" if section.get("encoder") else ""
    return text + (f", with {section['noise']:.0%} of it shuffled" if section.get("noise") else "")
