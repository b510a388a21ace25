"""Matching from a recipe: trained on two cameras, measured, shown in the table and in the report."""

import io

import pytest
from rich.console import Console
from short_runs import quiet

from counterpoint.report import write_report
from counterpoint.train.compare import compare, run_folder, table
from counterpoint.train.loop import fit
from counterpoint.train.recipe import override, parse_recipe

TWO = {
    "name": "two",
    "data": {"source": "shapes", "camera": "both", "count": 48, "size": 32},
    "views": {"preset": "simclr_small", "size": 24, "pair_by": "camera"},
    "model": {"backbone": "conv4", "head": [16]},
    "objective": [{"name": "infonce", "tau": 0.1}, {"name": "qare", "weight": 0.5}],
    "train": {"epochs": 1, "batch_size": 16, "log_every": 1},
    "evaluate": {"columns": [], "matching": "camera"},
}


def test_from_recipe_to_report(tmp_path):
    recipes = [parse_recipe(TWO), parse_recipe(override(TWO, ["name=one", "views.pair_by=null"]))]
    lines = compare(recipes, [0], tmp_path, console=quiet())
    results = lines[0].results[0]
    shown = [(r.metric, r.settings.get("k"), r.settings["direction"]) for r in results]
    assert shown == [
        *((("recall", k, "a to b")) for k in (1, 5, 10)),
        ("mAP", None, "a to b"),
        *((("recall", k, "b to a")) for k in (1, 5, 10)),
        ("mAP", None, "b to a"),
        ("assignment", None, "one to one"),
    ]
    assert {r.n for r in results} == {48}
    assert results[0].settings["a"] == "shapes, camera 0"
    assert results[0].settings["b"] == "shapes, camera 1"
    # An epoch over 48 identities in batches of 16: half the steps of one over 96 pictures.
    metrics = (run_folder(tmp_path, recipes[0]) / "metrics.csv").read_text().splitlines()
    assert len(metrics) == 1 + 3
    text = io.StringIO()
    Console(file=text, width=160).print(table(lines))
    rows = [line for line in text.getvalue().splitlines() if "matching" in line]
    assert len(rows) == 5
    assert "matching, recall@1, direction a to b" in rows[0]
    runs = [run_folder(tmp_path, recipe) for recipe in recipes]
    page = write_report(runs, tmp_path / "report.html", title="two cameras").read_text(encoding="utf-8")
    assert "Matching of identities" in page
    assert "No accuracy" not in page
    assert "recall@1 from a to b" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate.matching=drawer"], "no label column 'drawer'"),
        (["data.camera=0", "views.pair_by=null"], "no label column 'camera'"),
        (["data.count=1", "views.pair_by=null", "train.batch_size=2"], "has 1 identities on both halves of"),
    ],
)
def test_what_cannot_be_matched_is_refused_before_training(tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        fit(parse_recipe(override(TWO, words)), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()
