import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from counterpoint.report.figures import curve_panels
from counterpoint.report.plots import (
    COLOURS,
    Interval,
    Series,
    difference_plot,
    diverging,
    heat_map,
    line_plot,
    value_plot,
)
from counterpoint.report.runs import Method, Run


def series(method: int = 0, band: bool = True) -> Series:
    x, y = np.array([1.0, 5, 20]), np.array([0.2, 0.4, 0.5])
    return Series(method, x, y, y - 0.1 if band else None, y + 0.1 if band else None)


def curves(end: int, offset: float = 0.0, entropy: float | None = None) -> dict[str, np.ndarray]:
    step = np.arange(0.0, end + 1)
    made = {"step": step, "loss": 5 - step / 100 + offset, "chance": np.full(end + 1, 5.0)}
    return made if entropy is None else made | {"target_entropy": np.full(end + 1, entropy)}


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.parametrize(
    "svg",
    [
        line_plot(
            [series(), series(1, band=False), series(9)], "a", "p", "k", ticks=[1, 5, 20], percent=True
        ),
        line_plot([series()], "a", "p", "step", rule=0.0),
        difference_plot([("size", [Interval(1, 2.0, 1.0, 3.0), Interval(2, -1.0)])], "a", "p"),
        heat_map(np.eye(3), ["a", "b", "c"], 1.0, "a", "p", "dark"),
    ],
)
def test_svg_fits_into_a_page(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert "viewBox" in root.attrib
    assert not list(root.iter("style"))
    assert "http" not in svg
    assert "font-family" not in svg
    assert not re.search(r"#0[0-9a]0[0-9]0[0-9]", svg)
    ids = re.findall(r' id="([^"]+)"', svg)
    assert all(name.startswith("p-") for name in ids)
    assert {*re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)} <= set(ids)
    assert texts(svg)


def test_colours_are_variables_of_the_page() -> None:
    svg = line_plot([series(0), series(3), series(8)], "a", "p", "k")
    assert {*re.findall(r"var\(--m\d\)", svg)} == {"var(--m0)", "var(--m3)", "var(--m1)"}
    assert "currentColor" in svg


def test_where_colours_come_round_again_marks_and_lines_differ() -> None:
    """A graph-source table has nine methods and seven colours: two of them could not be told apart."""

    def drawings(method: int) -> list[str]:
        one = [series(method, band=False)]
        return [
            line_plot(one, "a", "p", "k", ticks=[1, 5, 20]),
            value_plot(one, [], "a", "p", "x", [(1, "b"), (5, "c"), (20, "d")], scale="names"),
            difference_plot([("size", [Interval(method, 2.0, 1.0, 3.0)])], "a", "p"),
        ]

    for first, again in zip(drawings(1), drawings(1 + COLOURS), strict=True):
        assert first != again
        assert "stroke: var(--m1)" in again
        assert ("fill: var(--m1)" in first, "fill: var(--m1)" in again) == (True, False)


def test_names_stay_text_whatever_they_hold() -> None:
    names = ['<b>&"', "$x_1$", 'id="q" #010101', "url(#q)", "猫"]
    svg = heat_map(np.zeros((5, 5)), names, 1.0, "<x>", "p", "light")
    assert [name for name in names if name in texts(svg)] == names
    assert ElementTree.fromstring(svg).attrib["aria-label"] == "<x>"


def test_long_names_are_cut() -> None:
    svg = heat_map(np.zeros((3, 3)), ["a" * 16, "b" * 17, "c"], 1.0, "a", "p", "light")
    assert {*texts(svg)} == {"a" * 16, "b" * 15 + "…", "c"}


def test_many_classes_keep_every_few_names() -> None:
    names = [f"c{i}" for i in range(100)]
    shown = texts(heat_map(np.zeros((100, 100)), names, 1.0, "a", "p", "light"))
    assert 20 <= len({*shown}) <= 32


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_ends_of_the_scale_differ_from_the_middle_alike(theme: str) -> None:
    low, middle, high = (
        np.array(diverging(theme)(x)[:3]) @ [0.2126, 0.7152, 0.0722] for x in (0.0, 0.5, 1.0)
    )
    assert abs(low - middle) > 0.3
    assert abs(high - middle) > 0.3
    assert (low - middle) * (high - middle) > 0


def drawn(*logs: dict[str, np.ndarray]) -> str:
    runs = tuple(Run(Path("x"), "x", seed, {}, (), log) for seed, log in enumerate(logs))
    return str(curve_panels([Method(0, "x", runs)])[0].svg)


def test_curves_have_a_band_only_for_several_seeds() -> None:
    assert "fill-opacity" not in drawn(curves(50))
    assert "fill-opacity" in drawn(curves(50), curves(50, 0.1))


def test_log_of_one_row_is_drawn_as_a_mark() -> None:
    log = {name: values[-1:] for name, values in curves(9).items()}
    svg = drawn(log)
    assert re.search(r"<use [^>]*var\(--m0\)", svg)
    assert texts(svg).count("9") == 1


def test_floor_is_drawn_for_soft_targets_only() -> None:
    def dotted(svg: str) -> int:
        return len(re.findall(r"stroke-dasharray: 1,2|stroke-dasharray: 1 2", svg))

    plain, soft = drawn(curves(50, entropy=0.0)), drawn(curves(50, entropy=3.0))
    assert dotted(soft) == dotted(plain) + 1


def test_shorter_run_does_not_cut_the_curve() -> None:
    from counterpoint.report.figures import _loss, _series

    runs = tuple(Run(Path("x"), "x", s, {}, (), log) for s, log in enumerate([curves(20), curves(60, 1.0)]))
    made = _series(Method(0, "x", runs), _loss)
    assert made is not None
    assert made.x[-1] == 60
    np.testing.assert_allclose(made.y[:21], -np.arange(21) / 100 + 0.5)
    np.testing.assert_allclose(made.y[21:], -np.arange(21, 61) / 100 + 1.0)


def test_long_logs_are_thinned_by_means() -> None:
    from counterpoint.report.figures import POINTS, _loss, _series

    runs = (Run(Path("x"), "x", 0, {}, (), curves(12_000)),)
    made = _series(Method(0, "x", runs), _loss)
    assert made is not None
    assert len(made.x) == POINTS
    np.testing.assert_allclose(made.y, -made.x / 100)


def test_a_recipe_without_a_chance_is_named_beside_the_loss() -> None:
    whole = curves(9) | {"spread": np.full(10, 0.9)}
    bare = whole | {"chance": np.full(10, np.nan)}
    methods = [
        Method(i, f"m{i}", (Run(Path("x"), "x", 0, {}, (), log),)) for i, log in enumerate([whole, bare])
    ]
    loss, spread = curve_panels(methods)
    assert loss.drawn == (0,)
    assert loss.left_out == "Not drawn, as its log holds no chance: m1."
    assert (spread.drawn, spread.left_out) == (None, "")


def test_a_logarithmic_axis_where_the_values_span_a_factor_of_ten():
    x = np.array([0.02, 0.1, 1.0])
    for y, logarithmic in ((np.array([1.0, 40.0, 2000.0]), True), (np.array([1.0, 1.5, 2.0]), False)):
        svg = line_plot([Series(1, x, y)], "a", "p", "tau_s", log=True, ticks=[0.02, 0.1, 1.0])
        assert (">1,000<" in svg and ">10<" in svg) == logarithmic
