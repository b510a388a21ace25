"""From runs to plots: curves over steps, accuracy over k, differences to the baseline, class maps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.report.classes import Agreement, Target
from counterpoint.report.plots import Interval, Series, difference_plot, heat_map, line_plot
from counterpoint.report.runs import Curves, Method
from counterpoint.report.tables import Measure, Table, collect, detail, paired

Values = NDArray[np.float64]
Column = Callable[[Curves], Values | None]
POINTS = 120


@dataclass(frozen=True)
class Panel:
    """One plot and the words around it.

    drawn: indices of the recipes in the plot, None for all. left_out: why others are not, or nothing.
    """

    title: str
    note: str
    svg: Markup
    drawn: tuple[int, ...] | None = None
    left_out: str = ""


def curve_panels(methods: Sequence[Method]) -> list[Panel]:
    """Loss against chance, contrastive accuracy and embedding spread; those that the logs hold."""
    loss = [_series(m, _loss, _floor) for m in methods]
    accuracy = [_series(m, lambda c: c.get("accuracy")) for m in methods]
    spread = [_series(m, lambda c: c.get("spread")) for m in methods]
    has_floor = any(one is not None and one.floor is not None for one in loss)
    floors = " The dotted line is the lowest loss that soft targets allow." if has_floor else ""
    wanted = (
        ("loss", loss, "Loss minus chance",
         "The dashed line at 0 is chance: the loss of a uniform guess. Lower is better." + floors,
         0.0, False),
        ("accuracy", accuracy, "Contrastive accuracy",
         "How often the right partner of a picture gets the highest score in its batch.", None, True),
        ("spread", spread, "Embedding spread",
         "0: all embeddings point the same way (collapse). 1: their directions cancel out.", None, False),
    )  # fmt: skip
    panels = []
    for name, series, title, note, rule, percent in wanted:
        drawn = [one for one in series if one is not None]
        if drawn:
            svg = line_plot(
                drawn, f"{title} over training steps", f"curve-{name}", "step", rule=rule, percent=percent
            )
            names = [method.name for method, one in zip(methods, series, strict=True) if one is None]
            lacks = "chance" if name == "loss" else title.lower()
            left_out = f"Not drawn, as its log holds no {lacks}: {', '.join(names)}." if names else ""
            places = tuple(one.method for one in drawn)
            panels.append(Panel(title, note, Markup(svg), places if names else None, left_out))
    return panels


def k_panels(methods: Sequence[Method]) -> list[Panel]:
    """Accuracy of the nearest neighbours against their number: one panel per label column."""
    found = collect(methods)
    families = list(dict.fromkeys(m.family for m in found if m.k is not None and m.metric == "accuracy"))
    panels = []
    for place, family in enumerate(families):
        by_k = {m.k: found[m] for m in found if m.family == family and m.k is not None}
        if len(by_k) < 2:
            continue
        ticks = sorted(by_k)
        drawn = [one for method in methods if (one := _over_k(method.index, by_k)) is not None]
        svg = line_plot(
            drawn, f"Accuracy on {family.column} against k", f"k-{place}", "k", percent=True, ticks=ticks
        )
        panels.append(Panel(family.column, "", Markup(svg)))
    return panels


def k_winners(methods: Sequence[Method]) -> dict[str, set[int]]:
    """For each label column the recipes that have the highest mean at some k; columns with one k left out."""
    found = collect(methods)
    winners: dict[Measure, set[int]] = {}
    counts: dict[Measure, int] = {}
    for measure, by_method in found.items():
        if measure.k is not None and measure.metric == "accuracy" and len(by_method) > 1:
            means = {index: float(np.mean(list(values.values()))) for index, values in by_method.items()}
            winners.setdefault(measure.family, set()).add(max(means, key=lambda index: means[index]))
            counts[measure.family] = counts.get(measure.family, 0) + 1
    return {family.column: best for family, best in winners.items() if counts[family] > 1}


def difference_panels(methods: Sequence[Method], table: Table) -> list[Panel]:
    """Differences of every recipe to the baseline: one panel per protocol."""
    panels = []
    for protocol in dict.fromkeys(m.protocol for m in table.measures if m.metric == "accuracy"):
        rows = []
        measures = [m for m in table.measures if m.protocol == protocol and m.metric == "accuracy"]
        for measure in measures:
            cells = table.cells[measure]
            if 0 not in cells:
                continue
            intervals = []
            for method in methods[1:]:
                apart = paired(cells[method.index], cells[0]) if method.index in cells else None
                if apart is not None:
                    low, high = (None if end is None else 100 * end for end in (apart.low, apart.high))
                    intervals.append(Interval(method.index, 100 * apart.mean, low, high))
            twin = detail(measure, measures)
            rows.append((f"{measure.column}, {twin}" if twin else measure.column, intervals))
        if any(intervals for _, intervals in rows):
            title = measures[0].title[0].upper() + measures[0].title[1:]
            svg = difference_plot(rows, f"{title}: differences to {methods[0].name}", f"diff-{protocol}")
            panels.append(Panel(title, "", Markup(svg)))
    return panels


def map_limit(target: Target, agreements: Sequence[Agreement]) -> float:
    """The end of the colour scale that a target and all recipes share: the largest entry off the diagonal."""
    largest = max(
        float(np.nanmax(np.abs(_without_diagonal(matrix)), initial=0.0))
        for matrix in (target.similarity, *(a.similarity for a in agreements))
    )
    return min(1.0, np.ceil(10 * largest) / 10) or 1.0


def class_map(matrix: Values, target: Target, limit: float, label: str, prefix: str) -> Markup:
    """The map twice, for light and for dark pages; the style sheet shows one of them."""
    both = [
        Markup('<div class="only-{}">{}</div>').format(
            theme,
            Markup(
                heat_map(_without_diagonal(matrix), target.names, limit, label, f"{prefix}-{theme}", theme)
            ),
        )
        for theme in ("light", "dark")
    ]
    return Markup("").join(both)


def _loss(curves: Curves) -> Values | None:
    return curves["loss"] - curves["chance"] if {"loss", "chance"} <= curves.keys() else None


def _floor(curves: Curves) -> Values | None:
    if not {"target_entropy", "chance"} <= curves.keys():
        return None
    # A hard target allows a loss of 0: no floor worth a line.
    entropy = np.where(curves["target_entropy"] > 0, curves["target_entropy"], np.nan)
    return np.asarray(entropy - curves["chance"])


def _series(method: Method, value: Column, floor: Column | None = None) -> Series | None:
    """Mean over the seeds at each logged step, and the band from the lowest to the highest seed."""
    pairs, floors = _logged(method, value), _logged(method, floor) if floor else []
    if not pairs:
        return None
    grid = np.unique(np.concatenate([steps for steps, _ in pairs]))
    rows = _on_grid(pairs, grid)
    with warnings.catch_warnings():
        # Past the end of a shorter run its row is NaN; where all are, so is the mean, and no line is drawn.
        warnings.simplefilter("ignore", RuntimeWarning)
        mean, low, high = np.nanmean(rows, axis=0), np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
        bottom = np.nanmean(_on_grid(floors, grid), axis=0) if floors else None
    several = len(pairs) > 1
    return Series(
        method.index,
        _thin(grid),
        _thin(mean),
        _thin(low) if several else None,
        _thin(high) if several else None,
        None if bottom is None else _thin(bottom),
    )


def _logged(method: Method, value: Column) -> list[tuple[Values, Values]]:
    """Steps and values of each run that logged them."""
    found = []
    for curves in (run.curves for run in method.runs if "step" in run.curves):
        values = value(curves)
        if values is not None and np.isfinite(values).any():
            known = np.isfinite(values)
            found.append((curves["step"][known], values[known]))
    return found


def _on_grid(pairs: Sequence[tuple[Values, Values]], grid: Values) -> Values:
    return np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in pairs])


def _thin(values: Values) -> Values:
    """At most POINTS values: means over stretches of equal length."""
    if len(values) <= POINTS:
        return values
    return np.array([stretch.mean() for stretch in np.array_split(values, POINTS)])


def _over_k(index: int, by_k: Mapping[int, Mapping[int, Mapping[int, float]]]) -> Series | None:
    ks = [k for k in sorted(by_k) if index in by_k[k]]
    if not ks:
        return None
    values = [np.array(list(by_k[k][index].values())) for k in ks]
    several = min(len(v) for v in values) > 1
    return Series(
        index,
        np.array(ks, dtype=np.float64),
        np.array([v.mean() for v in values]),
        np.array([v.min() for v in values]) if several else None,
        np.array([v.max() for v in values]) if several else None,
    )


def _without_diagonal(matrix: Values) -> Values:
    bare = matrix.copy()
    np.fill_diagonal(bare, np.nan)
    return bare
