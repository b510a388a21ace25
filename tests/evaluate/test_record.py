"""Records survive a file, take the place of older ones, and statistics agree with scipy."""

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from counterpoint.evaluate import Result, difference, load_results, save_results, spread
from counterpoint.files import write_whole


def result(value: float = 0.5, **changes: object) -> Result:
    fields = {"protocol": "knn", "version": 1, "value": value, "n": 10, "settings": {"k": 5}}
    return Result.model_validate(fields | changes)


def test_a_file_gives_back_what_was_saved(tmp_path: Path):
    results = [
        result(1 / 3, settings={"k": 1, "column": "größe", "l2": [1.0, 0.1], "temperature": None}),
        result(0.1 + 0.2, protocol="linear", settings={"l2_chosen": 0.1, "ok": True}, chosen=("l2_chosen",)),
        result(-0.25, metric="gap"),
    ]
    save_results(tmp_path / "new" / "results.json", results)
    assert load_results(tmp_path / "new" / "results.json") == results


def test_a_new_result_takes_the_place_of_the_old_one(tmp_path: Path):
    path = tmp_path / "results.json"
    save_results(path, [result(0.1), result(0.2, settings={"k": 20})])
    save_results(path, [result(0.9), result(0.3, protocol="linear")])
    assert [(r.protocol, r.settings["k"], r.value) for r in load_results(path)] == [
        ("knn", 5, 0.9),
        ("knn", 20, 0.2),
        ("linear", 5, 0.3),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": "linear"},
        {"version": 2},
        {"metric": "gap"},
        {"settings": {"k": 6}},
        {"settings": {"k": 5, "T": 1}},
    ],
)
def test_other_questions_stand_beside_each_other(tmp_path: Path, changes: dict[str, object]):
    save_results(tmp_path / "r.json", [result(0.1)])
    save_results(tmp_path / "r.json", [result(0.2, **changes)])
    assert [r.value for r in load_results(tmp_path / "r.json")] == [0.1, 0.2]


def test_what_the_run_found_is_no_part_of_the_question(tmp_path: Path):
    for value, l2 in ((0.1, 1.0), (0.2, 0.01)):
        found = result(value, settings={"column": "kind", "l2_chosen": l2}, chosen=("l2_chosen",))
        save_results(tmp_path / "r.json", [found])
    (only,) = load_results(tmp_path / "r.json")
    assert (only.value, only.settings["l2_chosen"]) == (0.2, 0.01)


def test_the_order_of_settings_does_not_matter():
    assert result(settings={"a": 1, "b": 2}).identity == result(settings={"b": 2, "a": 1}).identity


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"value": math.nan}, "value\n.*finite"),
        ({"value": math.inf}, "value\n"),
        ({"value": 1.01}, "value\n.*less than or equal to 1"),
        ({"value": -0.1}, "accuracy must lie in 0..1, got -0.1"),
        ({"value": -1.1, "metric": "gap"}, "value\n.*greater than or equal to -1"),
        ({"n": 0}, "n\n.*greater than or equal to 1"),
        ({"version": 0}, "version\n"),
        ({"protocol": ""}, "protocol\n"),
        ({"settings": {"T": math.nan}}, "not JSON compliant"),
        ({"settings": {"T": object()}}, "settings"),
        ({"chosen": ("absent",)}, "chosen names 'absent', which is not among the settings"),
        ({"extra": 1}, "extra\n"),
    ],
)
def test_a_wrong_record_is_refused(changes: dict[str, object], says: str):
    with pytest.raises(ValueError, match=says):
        result(**changes)


def test_a_record_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        result().value = 0.9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{not json", "is not JSON"),
        ('{"a": 1}', "must hold a list of results, got dict"),
        ('[{"protocol": "knn"}]', "result 0: version"),
        (json.dumps([result().model_dump(mode="json"), 3]), "result 1"),
        (json.dumps([result().model_dump(mode="json") | {"value": 7}]), "result 0: value"),
    ],
)
def test_a_broken_file_is_named_and_kept(tmp_path: Path, text: str, says: str):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        save_results(path, [result()])
    assert str(path) in str(caught.value)
    assert path.read_text() == text


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "results.json"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fail)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path):
    path = tmp_path / "results.json"
    many = [result(0.5, settings={"k": k}) for k in range(1, 300)]
    save_results(path, many)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            save_results(path, many)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        lengths = {len(load_results(path)) for _ in range(30)}
    finally:
        stop.set()
        writer.join()
    assert lengths == {299}


shares = st.floats(0, 1, allow_nan=False)


@given(st.lists(shares, min_size=2, max_size=30))
def test_spread_is_numpys(values: list[float]):
    got = spread(values)
    assert got.n == len(values)
    assert got.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert got.std == pytest.approx(np.std(values, ddof=1), abs=1e-12)


def test_one_value_has_no_deviation():
    assert spread([0.5]).std is None
    assert spread(iter([0.5, 0.5])).std == 0


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_spread_refuses(values: list[float]):
    with pytest.raises(ValueError, match="a spread needs"):
        spread(values)


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=20), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_difference_is_scipys(pairs: list[tuple[float, float]], level: float):
    a, b = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    got = difference(a, dict(reversed(b.items())), level)
    gaps = np.array([x - y for x, y in pairs])
    assert got.mean == pytest.approx(gaps.mean(), abs=1e-12)
    if gaps.std() > 1e-9:
        wanted = stats.ttest_rel(*zip(*pairs, strict=True)).confidence_interval(level)
        assert (got.low, got.high) == (pytest.approx(wanted.low), pytest.approx(wanted.high))
        assert got.holds_zero == (wanted.low <= 0 <= wanted.high)
    back = difference(b, a, level)
    assert (back.mean, back.low, back.high) == (-got.mean, -got.high, -got.low)


def test_a_clear_and_an_unclear_difference():
    assert difference({0: 0.61, 1: 0.64, 2: 0.62}, {0: 0.58, 1: 0.60, 2: 0.60}).holds_zero is False
    assert difference({0: 0.61, 1: 0.60, 2: 0.62}, {0: 0.58, 1: 0.62, 2: 0.60}).holds_zero is True
    assert difference({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.25}).holds_zero is False
    assert difference({0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.25}).holds_zero is True


def test_one_seed_gives_no_interval():
    got = difference({3: 0.75}, {3: 0.5})
    assert (got.mean, got.std, got.low, got.high, got.holds_zero) == (0.25, None, None, None, None)


@pytest.mark.parametrize(
    ("a", "b", "level", "says"),
    [
        ({0: 0.1, 1: 0.2}, {0: 0.1, 2: 0.2, 3: 0.1}, 0.95, "a has no value for seed 2, 3"),
        ({0: 0.1, 1: 0.2}, {0: 0.1}, 0.95, "b has no value for seed 1"),
        ({}, {}, 0.95, "at least one value"),
        ({0: math.nan}, {0: 0.1}, 0.95, "finite"),
        ({0: 0.1, 1: 0.2}, {0: 0.1, 1: 0.2}, 95, "level must lie between 0 and 1, got 95"),
    ],
)
def test_difference_refuses(a: dict[int, float], b: dict[int, float], level: float, says: str):
    with pytest.raises(ValueError, match=says):
        difference(a, b, level)
