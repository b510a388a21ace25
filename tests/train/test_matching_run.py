"""Matching from a recipe: trained on two cameras, measured, shown in the table and in the report."""

import io

import pytest
import torch
from PIL import Image
from rich.console import Console
from short_runs import quiet

from counterpoint.data import Labels, Samples
from counterpoint.evaluate.matching import check_sides
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
    Console(file=text, width=80).print(table(lines * 2))
    assert "recall, mAP, assignment in percent, 1 seed" in text.getvalue()
    assert "…" not in text.getvalue()
    for row in ("recall@1, a to b", "mAP, a to b", "recall@1, b to a", "mAP, b to a", "assignment "):
        assert row in text.getvalue()
    runs = [run_folder(tmp_path, recipe) for recipe in recipes]
    page = write_report(runs, tmp_path / "report.html", title="two cameras").read_text(encoding="utf-8")
    assert "Matching of identities" in page
    assert "No accuracy" not in page
    assert "recall@1 from a to b" in page
    assert "Only the other picture of the same identity counts as alike." in page


def test_a_split_without_two_identities_that_can_be_read_is_refused():
    def picture(i):
        if i % 3:
            raise ValueError("cut short")
        return Image.new("RGB", (80, 80))

    column = {"identity": [0, 1, 2, 0, 1, 2], "camera": [0, 0, 0, 1, 1, 1]}
    labels = {name: Labels(torch.tensor(v), ["a", "b", "c"]) for name, v in column.items()}
    samples = Samples("made", list("uvwxyz"), picture, labels)
    with pytest.raises(ValueError, match=r"has 1 identities on both halves .* 2 more without a picture"):
        check_sides(samples, "camera")
    check_sides(Samples("made", list("uvwxyz"), lambda i: picture(0), labels), "camera")


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
