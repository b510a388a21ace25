"""Plots as inline SVG: text stays text and inherits the page's font; colours are the page's CSS variables."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

# Colours that no plot uses: each is swapped for a CSS variable, so that one SVG serves light and dark pages.
INK, LINE, FAINT = "#010101", "#020202", "#030303"
COLOURS = 7
NAME_LENGTH = 16
MARKERS = "osD^vPX"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
# Blue to orange, both ends equally far from the middle: readable with any common colour blindness.
DIVERGING = {
    "light": ("#08457e", "#5b9bcb", "#f3f2ef", "#e08a4a", "#963a06"),
    "dark": ("#86c5f4", "#2f6e9f", "#2a2e33", "#a65a22", "#ffb37a"),
}


@dataclass(frozen=True)
class Series:
    """One method's line: mean and, where there are several seeds, a band.

    x, y: `(p,)`. low, high: `(p,)`, or None for a single seed. floor: `(p,)`, the lowest value possible.
    """

    method: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    floor: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Interval:
    """One method's difference to the baseline: its mean and the interval around it, where it is known."""

    method: int
    mean: float
    low: float | None = None
    high: float | None = None


def line_plot(
    series: Sequence[Series],
    label: str,
    prefix: str,
    x_title: str,
    *,
    rule: float | None = None,
    percent: bool = False,
    log: bool = False,
    ticks: Sequence[float] | None = None,
) -> str:
    """Lines over steps or over k.

    label: what a screen reader says. prefix: makes the ids of this SVG unique on the page.
    rule: height of a horizontal reference line. percent: the y axis holds shares. log: it is logarithmic
        where its values, all above 0, span a factor of ten.
    ticks: the values marked on a logarithmic x axis; None for a linear one.
    """
    with _style():
        figure = Figure(figsize=(3.7, 2.55))
        axes = figure.add_subplot()
        for one in series:
            _draw(axes, one, markers=ticks is not None or len(one.x) == 1)
        if rule is not None:
            axes.axhline(rule, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        if log and max(one.y.max() for one in series) >= 10 * min(one.y.min() for one in series):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        if ticks is None:
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.margins(x=0.02)
            steps = {float(step) for one in series for step in one.x}
            if len(steps) == 1:
                axes.set_xticks(list(steps))
        else:
            axes.set_xscale("log")
            axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
        axes.set_xlabel(x_title)
        figure.subplots_adjust(left=0.15, right=0.97, top=0.96, bottom=0.2)
        return _svg(figure, label, prefix)


def value_plot(
    series: Sequence[Series],
    across: Sequence[Series],
    label: str,
    prefix: str,
    x_title: str,
    ticks: Sequence[tuple[float, str]],
    *,
    scale: str,
) -> str:
    """A share against what was varied: marks with bars, joined by lines where the values are numbers.

    across: what has no value, drawn from side to side, at `y[0]`.
    ticks: places on the x axis and what is written there. scale: "names", "linear" or "log".
    """
    names = scale == "names"
    with _style():
        figure = Figure(figsize=(3.7, 3.1 if names else 2.55))
        axes = figure.add_subplot()
        for place, one in enumerate(series):
            # Side by side, so that bars at one name do not hide each other.
            aside = 0.12 * (place - (len(series) - 1) / 2) if names else 0.0
            colour = _colour(one.method)
            line = "" if names else _dash(one.method)
            axes.plot(one.x + aside, one.y, color=colour, linewidth=1.7, linestyle=line, markersize=5,
                      **_marker(one.method))  # fmt: skip
            if one.low is not None and one.high is not None:
                axes.vlines(one.x + aside, one.low, one.high, color=colour, linewidth=1.6)
        for one in across:
            axes.axhline(one.y[0], color=_colour(one.method), linewidth=1.3, linestyle=(0, (5, 2)))
            if one.low is not None and one.high is not None:
                axes.axhspan(one.low[0], one.high[0], color=_colour(one.method), alpha=0.16, linewidth=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        if scale == "log":
            axes.set_xscale("log")
        shorts = [text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…" for _, text in ticks]
        axes.set_xticks([place for place, _ in ticks], shorts, rotation=40 if names else 0,
                        ha="right" if names else "center")  # fmt: skip
        axes.set_xticks([], minor=True)
        axes.margins(x=0.06)
        axes.set_xlabel(x_title)
        figure.subplots_adjust(left=0.15, right=0.97, top=0.96, bottom=0.4 if names else 0.2)
        return _svg(figure, label, prefix)


def histogram(
    edges: NDArray[np.float64], counts: NDArray[np.float64], label: str, prefix: str, x_title: str
) -> str:
    """How many fall between each two edges, as a share of the highest bar.

    edges: `(b + 1,)`. counts: `(b,)`.
    """
    with _style():
        figure = Figure(figsize=(5.2, 2.2))
        axes = figure.add_subplot()
        axes.stairs(counts / max(1.0, counts.max()), edges, fill=True, color=_colour(1), alpha=0.75)
        axes.set_yticks([])
        axes.set_ylim(0, 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(8))
        axes.margins(x=0.01)
        axes.set_xlabel(x_title)
        figure.subplots_adjust(left=0.02, right=0.98, top=0.97, bottom=0.22)
        return _svg(figure, label, prefix)


def difference_plot(rows: Sequence[tuple[str, Sequence[Interval]]], label: str, prefix: str) -> str:
    """Differences to the baseline in percentage points, one block of dots per measure, zero marked.

    rows: a name and one interval per method for each measure, from top to bottom.
    """
    methods = max((len(intervals) for _, intervals in rows), default=1)
    step = max(0.34, 0.13 * methods + 0.1)
    with _style():
        height = 0.62 + step * len(rows)
        figure = Figure(figsize=(4.0, height))
        axes = figure.add_subplot()
        for place, (_, intervals) in enumerate(rows):
            for offset, interval in enumerate(intervals):
                y = place + (offset - (len(intervals) - 1) / 2) * min(0.3, 0.7 / methods)
                colour = _colour(interval.method)
                if interval.low is not None and interval.high is not None:
                    dash = _dash(interval.method)
                    axes.plot(
                        [interval.low, interval.high], [y, y], color=colour, linewidth=1.6, linestyle=dash
                    )
                axes.plot([interval.mean], [y], color=colour, markersize=5.5, **_marker(interval.method))
            if place:
                axes.axhline(place - 0.5, color=FAINT, linewidth=0.7)
        axes.axvline(0, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        room = min(0.4, (0.075 * max(len(name) for name, _ in rows) + 0.15) / 4.0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.grid(False, axis="y")
        axes.grid(True, axis="x", color=FAINT, linewidth=0.7)
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+.3g}".replace("-", "−") if value else "0")
        )
        axes.set_xlabel("percentage points above or below the baseline")
        figure.subplots_adjust(left=room, right=0.97, top=1 - 0.06 / height, bottom=0.5 / height)
        return _svg(figure, label, prefix)


def heat_map(
    matrix: NDArray[np.float64], names: Sequence[str], limit: float, label: str, prefix: str, theme: str
) -> str:
    """A class-by-class map on a diverging scale from -limit to limit; NaN cells show the page.

    Long names are cut, and of many classes every few have their name.

    matrix: `(c, c)`. theme: "light" or "dark", the ends and the middle of the colours.
    """
    count = len(names)
    every = -(-count // 32)
    shown = list(range(0, count, every))
    shorts = [name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…" for name in names]
    size = 9.5 if len(shown) <= 12 else 8 if len(shown) <= 20 else 6.5
    with _style():
        figure = Figure(figsize=(3.5, 3.5))
        axes = figure.add_subplot()
        axes.imshow(matrix, cmap=diverging(theme), vmin=-limit, vmax=limit, interpolation_stage="data")
        axes.set_xticks(shown, [shorts[i] for i in shown], rotation=90, fontsize=size)
        axes.set_yticks(shown, [shorts[i] for i in shown], fontsize=size)
        axes.tick_params(length=0, pad=2)
        axes.grid(False)
        for side in axes.spines.values():
            side.set_visible(False)
        # Room for the longest name: widths are only known to the browser, so count characters.
        room = min(0.42, (0.062 * size / 8 * max(map(len, shorts)) + 0.06) / 3.5)
        figure.subplots_adjust(left=room, right=0.995, top=0.995, bottom=room)
        return _svg(figure, label, prefix)


def diverging(theme: str) -> Colormap:
    """The map of the class similarities for a light or a dark page."""
    colours = LinearSegmentedColormap.from_list(f"counterpoint-{theme}", DIVERGING[theme])
    return colours.with_extremes(bad=(0, 0, 0, 0))


def _draw(axes: Axes, one: Series, markers: bool) -> None:
    colour, dash = _colour(one.method), _dash(one.method)
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.16, linewidth=0)
    if one.floor is not None:
        axes.plot(one.x, one.floor, color=colour, linewidth=1, linestyle=(0, (1, 2)))
    shown = _marker(one.method) if markers else {}
    axes.plot(one.x, one.y, color=colour, linewidth=1.7, linestyle=dash, markersize=4.5, **shown)


def _colour(method: int) -> str:
    return f"#0a00{method % COLOURS:02x}"


def _dash(method: int) -> Any:
    return DASHES[method // COLOURS % len(DASHES)]


def _marker(method: int) -> dict[str, Any]:
    """Hollow where the colours come round again, as the dot in the key is a ring."""
    again = method >= COLOURS
    hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.2}
    return {"marker": MARKERS[method % len(MARKERS)], **(hollow if again else {"markeredgewidth": 0})}


@contextmanager
def _style() -> Iterator[None]:
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "counterpoint", "text.parse_math": False,
        "text.usetex": False,
        "axes.unicode_minus": True, "font.family": "sans-serif", "font.size": 9,
        "text.color": INK, "axes.labelcolor": INK, "xtick.color": LINE, "ytick.color": LINE,
        "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.edgecolor": LINE, "axes.linewidth": 0.8,
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
        "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.7,
        "axes.axisbelow": True, "xtick.major.size": 3, "ytick.major.size": 0, "figure.dpi": 144,
        "savefig.bbox": None, "path.simplify": True,
    }  # fmt: skip
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The browser picks the font, so what matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _svg(figure: Figure, label: str, prefix: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(text.getvalue(), label, prefix)


def _inline(svg: str, label: str, prefix: str) -> str:
    """An SVG file as a part of an HTML page: no prolog, no style, own ids, the page's font and colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)
    head = re.search(r'viewBox="([^"]+)"', svg)
    if head is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox")
    svg = re.sub(r">\s+<", "><", svg[svg.index(">") + 1 :])
    # Only inside tags: class names are text, and may hold anything.
    svg = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], prefix), svg)
    return f'<svg class="plot" role="img" aria-label="{escape(label)}" viewBox="{head[1]}">{svg.strip()}'


def _tag(tag: str, prefix: str) -> str:
    tag = re.sub(r"^<g id=\"[^\"]*\"", "<g", tag).replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]+)"', rf' id="{prefix}-\1"', tag)
    tag = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', tag)
    tag = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r"#0a00([0-9a-f]{2})", lambda m: f"var(--m{int(m[1], 16)})", tag)
    for colour, variable in ((INK, "currentColor"), (LINE, "var(--line)"), (FAINT, "var(--faint)")):
        tag = tag.replace(colour, variable)
    if "base64," in tag:
        return re.sub(r"\s*\n", "", tag)
    return re.sub(r"\s*\n\s*", " ", tag)
