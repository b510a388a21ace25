"""What the sections of the page hold, ready for the template: plain values, no HTML but the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from counterpoint.evaluate.features import Features, load_features
from counterpoint.report.answer import percent
from counterpoint.report.classes import (
    Agreement,
    Matrix,
    Target,
    agreement,
    class_similarity,
    closest_pairs,
)
from counterpoint.report.figures import class_map, map_limit
from counterpoint.report.neighbours import Query, describe, near, pick_queries, shared_columns, sharing
from counterpoint.report.readings import correlation, map_reading, signed
from counterpoint.report.runs import Method, Run
from counterpoint.report.tables import Cell, Measure, Table, detail, printed

NEIGHBOURS = 5
PAIRS = 8


@dataclass
class Seen:
    """What one pass over all stored features gathers, so that only one file is in memory at a time.

    maps: class similarities, by (place of the target, index of the recipe), then by seed.
    shares: how many of the nearest pictures share a label, by index of the recipe, then by seed and column.
    near: the neighbours of the gallery's queries, from the first run of each recipe.
    first: the features that decide queries and labels. notes: what could not be read or compared.
    """

    maps: dict[tuple[int, int], dict[int, Matrix]] = field(default_factory=dict)
    shares: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    near: dict[int, Any] = field(default_factory=dict)
    seed: dict[int, int] = field(default_factory=dict)
    first: Features | None = None
    captions: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def look(methods: Sequence[Method], targets: Sequence[Target]) -> Seen:
    """Go once over the stored features of all runs."""
    seen = Seen()
    for method in methods:
        for run in method.runs:
            if run.features is None:
                continue
            try:
                features = load_features(run.features)
            except ValueError as error:
                seen.notes.append(f"{_called(run)}: {error}")
                continue
            for place, target in enumerate(targets):
                matrix = class_similarity(features, target)
                if matrix is None:
                    seen.notes.append(
                        f"{_called(run)}: its test split lacks classes of the target {target.name} "
                        f"(column {target.column}), so it has no class map"
                    )
                else:
                    seen.maps.setdefault((place, method.index), {})[run.seed] = matrix
            _look_at_neighbours(seen, method, run, features, len(methods))
    return seen


def _look_at_neighbours(seen: Seen, method: Method, run: Run, features: Features, methods: int) -> None:
    if seen.first is None:
        data = method.recipe.get("data")
        seen.first = features
        seen.captions = list(features.captions or ())
        seen.columns = shared_columns(features, data.get("label") if isinstance(data, dict) else None)
        count = 6 if methods <= 4 else max(2, 24 // methods)
        seen.queries = pick_queries(features, seen.columns[0] if seen.columns else None, count)
    if list(features.keys) != list(seen.first.keys):
        seen.notes.append(
            f"{_called(run)}: its test pictures differ from those of the first run; left out of the gallery"
        )
        return
    seen.shares.setdefault(method.index, {})[run.seed] = sharing(features, seen.columns, NEIGHBOURS)
    if method.index not in seen.near:
        seen.near[method.index] = near(features, seen.queries, NEIGHBOURS)
        seen.seed[method.index] = run.seed


def gallery(seen: Seen) -> list[Query]:
    """The queries with their neighbours."""
    if seen.first is None or not seen.near:
        return []
    return describe(seen.first, seen.queries, seen.near, seen.columns, seen.captions)


def shares_of(seen: Seen, column: str) -> dict[int, dict[int, float]]:
    """How many of the nearest pictures share a label of one column: by index of the recipe, then by seed."""
    return {
        index: {seed: share[column] for seed, share in by_seed.items() if column in share}
        for index, by_seed in seen.shares.items()
    }


def share_rows(methods: Sequence[Method], seen: Seen) -> list[tuple[Method, list[str]]]:
    """For each recipe the mean number of neighbours that share the label, column by column."""
    means = {column: shares_of(seen, column) for column in seen.columns}
    return [
        (
            methods[index],
            [
                f"{np.mean(list(by_seed.values())):.1f}" if (by_seed := means[column][index]) else "–"
                for column in seen.columns
            ],
        )
        for index in seen.shares
    ]


def class_maps(methods: Sequence[Method], targets: Sequence[Target], seen: Seen) -> list[dict[str, Any]]:
    """One block for each target: its map, that of every recipe, and the pairs it calls most alike."""
    blocks = []
    for place, target in enumerate(targets):
        agreements = [
            agreement(method.index, seen.maps[place, method.index], target)
            for method in methods
            if (place, method.index) in seen.maps
        ]
        limit = map_limit(target, agreements)
        blocks.append(
            {
                "target": target,
                "limit": f"{limit:.1f}",
                "reading": map_reading(methods, target, agreements),
                "target_map": class_map(
                    target.similarity,
                    target,
                    limit,
                    f"Target {target.name}: similarity of classes",
                    f"map-{place}",
                ),
                "maps": [
                    {
                        "method": methods[one.method],
                        "svg": class_map(
                            one.similarity,
                            target,
                            limit,
                            f"{methods[one.method].name}: similarity of classes",
                            f"map-{place}-{one.method}",
                        ),
                        "line": correlation(one, target),
                    }
                    for one in agreements
                ],
                "pairs": [] if target.flat else _pairs(target, agreements),
            }
        )
    return blocks


def _pairs(target: Target, agreements: Sequence[Agreement]) -> list[dict[str, Any]]:
    return [
        {
            "names": (target.names[i], target.names[j]),
            "target": signed(target.similarity[i, j]),
            "values": [signed(one.similarity[i, j]) for one in agreements],
        }
        for i, j in closest_pairs(target, PAIRS)
    ]


def table_rows(methods: Sequence[Method], table: Table, seen: Seen) -> dict[str, Any]:
    """Heads and rows of the table of runs."""
    groups: list[dict[str, Any]] = []
    for measure in table.measures:
        key = (measure.protocol, measure.version, measure.metric)
        if not groups or groups[-1]["key"] != key:
            groups.append({"key": key, "title": measure.title, "metric": measure.metric, "measures": []})
        groups[-1]["measures"].append(measure)
    for group in groups:
        ks = {measure.k for measure in group["measures"]}
        group["k"] = ks.pop() if len(ks) == 1 else None
        group["heads"] = [_head(measure, group) for measure in group["measures"]]
    ordered = [measure for group in groups for measure in group["measures"]]
    rates = {method.index: _rate(method) for method in methods}
    times = {method.index: _time(method) for method in methods}
    matching = any(measure.protocol == "matching" for measure in ordered)
    labels = not ordered or any(measure.protocol != "matching" for measure in ordered)
    words = ["Accuracy by label column"] * labels + ["Matching of identities"] * matching
    return {
        "groups": groups,
        "labels": labels,
        "matching": matching,
        "heading": " and ".join([words[0], *map(str.lower, words[1:])]),
        "nav": "Accuracy" if labels else "Matching",
        "rows": [
            {
                "method": method,
                "cells": [
                    _shown(table.cells[measure].get(method.index), method, measure) for measure in ordered
                ],
                "rate": rates[method.index],
                "time": times[method.index],
            }
            for method in methods
        ],
        "has_rate": any(rates.values()),
        "has_time": any(times.values()),
        "majority": [_majority(seen, measure) for measure in ordered],
        "spread": any(cell.over.std is not None for cells in table.cells.values() for cell in cells.values()),
        "close": any(cell.close for cells in table.cells.values() for cell in cells.values()),
    }


def _head(measure: Measure, group: Mapping[str, Any]) -> dict[str, str]:
    details = [] if group["k"] == measure.k else [f"k = {measure.k}"]
    details += [text] if (text := detail(measure, group["measures"])) else []
    return {"column": measure.column, "detail": ", ".join(details)}


def _shown(cell: Cell | None, method: Method, measure: Measure) -> dict[str, Any] | None:
    if cell is None:
        return None
    signed = measure.metric == "gap"
    return {
        "mean": f"{100 * cell.over.mean:+.1f}" if signed else printed(cell.over.mean),
        "std": None if cell.over.std is None else f"{100 * cell.over.std:.1f}",
        "n": cell.over.n if cell.over.n != len(method.whole) else None,
        "best": cell.best,
        "close": cell.close,
    }


def _majority(seen: Seen, measure: Measure) -> str:
    if seen.first is None or measure.metric != "accuracy" or measure.column not in seen.first.labels:
        return ""
    labels = seen.first.labels[measure.column]
    counts = labels.values[labels.known].bincount()
    return percent(float(counts.max() / counts.sum())).removesuffix(" %") if len(counts) else ""


def _rate(method: Method) -> str:
    """Images per second: the median row of each run, mean over runs."""
    medians = []
    for run in method.runs:
        rates = run.curves.get("images_per_s")
        if rates is not None and np.isfinite(rates).any():
            medians.append(float(np.nanmedian(rates)))
    return f"{np.mean(medians):,.0f}" if medians else ""


def _time(method: Method) -> str:
    seconds = [run.seconds for run in method.runs if run.seconds is not None]
    return duration(float(np.mean(seconds))) if seconds else ""


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(41.3), duration(750), duration(7300)
    ('41 s', '12 min 30 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _called(run: Run) -> str:
    return f"{run.name} seed {run.seed}"
