from pathlib import Path

import numpy as np

from counterpoint.report.classes import Agreement, Target
from counterpoint.report.readings import correlation, curve_reading, gallery_reading, k_reading, map_reading
from counterpoint.report.runs import Method, Run

METHODS = [Method(i, name, ()) for i, name in enumerate("abcdef")]
TARGET = Target("captions", "object", ("x", "y", "z"), np.eye(3), flat=False)


def over(value: float, step: float = 0.001) -> dict[int, float]:
    return {0: value - step, 1: value, 2: value + step}


def ranked(*values: float) -> list[Agreement]:
    # Steps that differ a little, so that differences between recipes have a small spread of their own.
    return [Agreement(i, np.eye(3), over(v, 0.01 + i / 1000), over(-v, 0.02)) for i, v in enumerate(values)]


def test_map_reading_ranks_the_encoders() -> None:
    assert map_reading(METHODS, TARGET, ranked(-0.2, 0.7, 0.1)) == (
        "b arranges the classes most like the target: rank correlation 0.70, "
        "against 0.10 for c and −0.20 for a."
    )
    assert map_reading(METHODS, TARGET, ranked(-0.2, 0.7, 0.1, 0.3, 0.2)).endswith(
        "against 0.30 down to −0.20 for 4 others."
    )
    assert map_reading(METHODS, TARGET, ranked(0.5)).startswith("a arranges the classes like the target")
    assert map_reading(METHODS, TARGET, []).startswith("No encoder's features")
    assert "no order to compare" in map_reading(METHODS, Target("t", "c", ("x",), np.eye(1), flat=True), [])


def test_map_reading_says_what_is_not_clear() -> None:
    close = [Agreement(0, np.eye(3), over(0.50), {}), Agreement(1, np.eye(3), over(0.499, -0.01), {}),
             Agreement(2, np.eye(3), over(0.1), {})]  # fmt: skip
    assert map_reading(METHODS, TARGET, close).endswith(
        "rank correlation 0.50, against 0.10 for c, not clearly above 0.50 for b."
    )


def test_correlation_line_shows_spread_only_where_known() -> None:
    assert correlation(Agreement(0, np.eye(3), over(0.5, 0.01), over(-0.5, 0.02)), TARGET) == (
        "correlation with the target: rank 0.50 ± 0.01 (Spearman), linear −0.50 ± 0.02 (Pearson), 3 seeds"
    )
    single = Agreement(0, np.eye(3), {4: 0.5}, {4: -0.5})
    assert correlation(single, TARGET).endswith("rank 0.50 (Spearman), linear −0.50 (Pearson), 1 seed")
    assert correlation(Agreement(0, np.eye(3), {}, {}), TARGET) == "no correlation"


def test_k_reading_names_the_columns_where_k_decides() -> None:
    assert (
        k_reading({"size": {0}, "object": {1}})
        == "On every column one recipe has the highest mean at every k."
    )
    assert k_reading({"size": {0, 1}, "object": {1}}) == (
        "Which recipe has the highest mean changes with k on size; on the other columns it does not."
    )
    assert k_reading({"size": {0, 1}}) == "Which recipe has the highest mean changes with k on size."
    assert k_reading({}).startswith("Few neighbours")


def test_gallery_reading() -> None:
    shares = {0: over(1.5), 1: over(3.25, 0.002)}
    assert gallery_reading(METHODS, shares, "object", 5) == (
        "Of the 5 nearest test pictures, 3.2 share the query's object for b on average, against 1.5 for a."
    )
    assert "not clearly more than 1.5 for a" in gallery_reading(
        METHODS, {0: over(1.5, 0.5), 1: over(1.6)}, "size", 5
    )
    assert gallery_reading(METHODS, {0: over(1.5)}, "object", 5).endswith(
        "1.5 share the query's object on average."
    )
    assert gallery_reading(METHODS, {}, "object", 5) == "The 5 nearest other test pictures of a few queries."


def logged(index: int, name: str, warning: str | None = None, **columns: float) -> Method:
    curves = {column: np.array([np.nan, value]) for column, value in columns.items()}
    return Method(index, name, (Run(Path(name), name, 0, {}, (), curves, warning=warning),))


def test_curve_reading_says_what_was_checked() -> None:
    ntxent = logged(0, "ntxent", loss=3.0, chance=6.0, spread=0.9)
    mmcl = logged(1, "mmcl", loss=0.2, chance=np.nan, accuracy=0.63, spread=0.9)
    assert curve_reading([ntxent, logged(1, "b", loss=2.0, chance=6.0, spread=0.9)]) == (
        "All 2 recipes learn: each loss ends below chance, and no embeddings collapse."
    )
    assert curve_reading([ntxent, mmcl]) == (
        "ntxent learns: its loss ends below chance. mmcl logs no chance to hold a loss against; "
        "contrastive accuracy ends at 63.0 %. No embeddings collapse."
    )
    bare = [logged(0, "x", loss=0.2), logged(1, "y", loss=0.2, accuracy=0.5)]
    assert curve_reading(bare) == (
        "x and y log no chance to hold a loss against; contrastive accuracy ends at 50.0 % for y."
    )
    short = logged(1, "b", warning="too short to tell: 3 steps", loss=3.0, chance=1.0)
    assert curve_reading([ntxent, short]) == "Too few steps to tell whether b learns."
    ill = logged(2, "c", warning="above chance: ...", loss=3.0, chance=1.0)
    assert curve_reading([short, ill]).endswith("see the warning for c above.")
