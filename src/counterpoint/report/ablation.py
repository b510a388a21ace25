"""The section on what was varied: accuracy against the values, a line for each recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from counterpoint.report.figures import Panel
from counterpoint.report.plots import Series, value_plot
from counterpoint.report.runs import Method
from counterpoint.report.tables import Cell, Measure, Table, detail, printed
from counterpoint.train.vary import label

LOG_FROM = 4.0  # numbers above 0 that span at least this factor get a logarithmic axis


def ablation_section(path: Path | None, methods: Sequence[Method], table: Table) -> dict[str, Any] | None:
    """Title, lines and panels, or None where nothing was varied or fewer than two values have results."""
    if path is None or not path.is_file():
        return None
    plan = json.loads(path.read_text(encoding="utf-8"))
    index = {method.name: method.index for method in methods if method.seeds}
    points = [point for point in plan["points"] if point["name"] in index]
    key = plan["keys"][0]
    values: list[Any] = []
    for point in points:
        if key in point["values"] and point["values"][key] not in values:
            values.append(point["values"][key])
    if len(values) < 2:
        return None
    places, ticks, scale = _axis(key, values)
    lines: dict[str, list[tuple[float | None, int]]] = {}
    for point in points:
        rest = [label(name, value) for name, value in point["values"].items() if name != key]
        name = "-".join([point["base"], *rest])
        place = places[values.index(point["values"][key])] if key in point["values"] else None
        lines.setdefault(name, []).append((place, index[point["name"]]))
    panels, readings = [], []
    for number, measure in enumerate(table.measures):
        cells = table.cells[measure]
        title = _title(measure, table.measures)
        drawn = [_series(line, at, cells) for line, at in enumerate(lines.values())]
        marked = [one for one, at in zip(drawn, lines.values(), strict=True) if one and at[0][0] is not None]
        across = [one for one, at in zip(drawn, lines.values(), strict=True) if one and at[0][0] is None]
        if not marked:
            continue
        told = f"{title} against {key}"
        svg = value_plot(marked, across, told, f"ablation-{number}", key, ticks, scale=scale)
        panels.append(Panel(title, "", Markup(svg)))
        for (name, at), one in zip(lines.items(), drawn, strict=True):
            if one and at[0][0] is not None:
                best = int(np.argmax(one.y))
                at_value = dict(ticks)[one.x[best]]
                readings.append(f"{title}, {name}: highest at {at_value}, {printed(float(one.y[best]))} %.")
    named = [{"index": place, "name": name} for place, name in enumerate(lines)]
    return {"title": ", ".join(plan["keys"]), "readings": readings, "lines": named, "panels": panels}


def _axis(key: str, values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]], str]:
    """The place of each value, what is written where, and the kind of axis."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = [float(value) for value in values]
        ticks = [(number, f"{number:g}") for number in sorted(numbers)]
        log = min(numbers) > 0 and max(numbers) >= LOG_FROM * min(numbers)
        return numbers, ticks, "log" if log else "linear"
    places = [float(place) for place in range(len(values))]
    last = f"{key.rpartition('.')[2]}-"
    return (
        places,
        [(place, label(key, value).removeprefix(last)) for place, value in zip(places, values, strict=True)],
        "names",
    )


def _series(line: int, at: Sequence[tuple[float | None, int]], cells: Mapping[int, Cell]) -> Series | None:
    known = sorted((place or 0.0, index) for place, index in at if index in cells)
    if not known:
        return None
    shares = [np.array(list(cells[index].values.values())) for _, index in known]
    several = min(map(len, shares)) > 1
    return Series(
        line,
        np.array([place for place, _ in known]),
        np.array([one.mean() for one in shares]),
        np.array([one.min() for one in shares]) if several else None,
        np.array([one.max() for one in shares]) if several else None,
    )


def _title(measure: Measure, measures: Sequence[Measure]) -> str:
    alike = [m for m in measures if (m.protocol, m.metric) == (measure.protocol, measure.metric)]
    more = detail(measure, alike)
    k = f", k = {measure.k}" if measure.k is not None else ""
    return f"{measure.column}: {measure.title}{k}" + (f", {more}" if more else "")
