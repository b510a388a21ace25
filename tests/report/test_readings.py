import numpy as np

from counterpoint.evaluate.record import Spread
from counterpoint.report.classes import Agreement, Target
from counterpoint.report.readings import correlation, gallery_reading, k_reading, map_reading
from counterpoint.report.runs import Method

METHODS = [Method(i, name, ()) for i, name in enumerate("abcdef")]
TARGET = Target("captions", "object", ("x", "y", "z"), np.eye(3), flat=False)


def ranked(*values: float) -> list[Agreement]:
    return [Agreement(i, np.eye(3), Spread(v, 0.01, 3), Spread(v, 0.02, 3)) for i, v in enumerate(values)]


def test_map_reading_ranks_the_encoders() -> None:
    assert map_reading(METHODS, TARGET, ranked(-0.2, 0.7, 0.1)) == (
        "b arranges the classes most like the target: rank correlation 0.70, "
        "against 0.10 for c and −0.20 for a."
    )
    assert map_reading(METHODS, TARGET, ranked(-0.2, 0.7, 0.1, 0.3, 0.2)).endswith(
        "0.30 down to −0.20 for the others."
    )
    assert map_reading(METHODS, TARGET, ranked(0.5)).startswith("a arranges the classes like the target")
    assert map_reading(METHODS, TARGET, []).startswith("No encoder's features")
    assert "no order to compare" in map_reading(METHODS, Target("t", "c", ("x",), np.eye(1), flat=True), [])


def test_correlation_line_shows_spread_only_where_known() -> None:
    several, single = ranked(0.5)[0], Agreement(0, np.eye(3), Spread(0.5, None, 1), Spread(-0.5, None, 1))
    assert correlation(several, TARGET) == (
        "correlation with the target: rank 0.50 ± 0.01 (Spearman), linear 0.50 ± 0.02 (Pearson), 3 seeds"
    )
    assert correlation(single, TARGET).endswith("rank 0.50 (Spearman), linear −0.50 (Pearson), 1 seed")
    assert correlation(Agreement(0, np.eye(3), None, None), TARGET) == "no correlation"


def test_k_reading_names_the_columns_where_k_decides() -> None:
    assert k_reading({"size": {0}, "object": {1}}).startswith("The choice of k does not matter here")
    assert k_reading({"size": {0, 1}, "object": {1}}) == (
        "The choice of k decides who is first on size; on the other columns it does not matter."
    )
    assert k_reading({"size": {0, 1}}) == "The choice of k decides who is first on size."
    assert k_reading({}).startswith("Few neighbours")


def test_gallery_reading() -> None:
    shares = {0: {"object": 1.5}, 1: {"object": 3.25, "size": 2.0}}
    assert gallery_reading(METHODS, shares, "object", 5) == (
        "Of the 5 nearest test pictures, 3.2 share the query's object for b on average, against 1.5 for a."
    )
    assert gallery_reading(METHODS, {0: {"object": 1.5}}, "object", 5).endswith(
        "1.5 share the query's object on average."
    )
    assert gallery_reading(METHODS, {}, "object", 5) == "The 5 nearest other test pictures of a few queries."
