"""Measuring by the protocols of a recipe, and the table of a comparison."""

import io

import pytest
import torch
from PIL import Image
from rich.console import Console

from counterpoint.evaluate import Result, load_features
from counterpoint.report import write_report
from counterpoint.train.checkpoint import checkpoints
from counterpoint.train.compare import Line, compare, measure, table
from counterpoint.train.loop import fit
from counterpoint.train.recipe import override, parse_recipe
from counterpoint.train.run import Run

SMALL = {
    "name": "small",
    "data": {"source": "shapes", "count": 96, "size": 32, "label": "background"},
    "views": {"preset": "simclr_small", "size": 24},
    "model": {"backbone": "conv4", "head": [16]},
    "objective": {"name": "ntxent", "tau": 0.5},
    "train": {"epochs": 1, "batch_size": 32},
    "evaluate": {"k": [5], "probes": ["linear-adam", "linear-sgd", "linear-sgd-crops"], "batch_size": 40},
}


def quiet():
    return Console(file=io.StringIO())


def shown(made):
    text = io.StringIO()
    Console(file=text, width=160).print(made)
    return text.getvalue()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison")
    recipes = [
        parse_recipe(SMALL | {"name": "a"}),
        parse_recipe(override(SMALL, ["name=b", "objective.tau=0.1", "evaluate.probes=[linear-adam]"])),
    ]
    return out, compare(recipes, [0, 1], out, console=quiet())


def test_each_protocol_has_a_result(comparison):
    _, lines = comparison
    for result in lines[0].results:
        assert [one.protocol for one in result] == [
            "knn", "linear", "linear-adam", "linear-sgd", "linear-sgd-crops",
        ]  # fmt: skip
    crops, plain = lines[0].results[0][4], lines[0].results[0][3]
    assert crops.settings["augmentation"] == "crop_flip"
    assert crops.settings["train_loss"] != plain.settings["train_loss"]
    assert [one.settings["seed"] for one in (lines[0].results[0][2], lines[0].results[1][2])] == [0, 1]


def test_each_protocol_has_a_row_of_its_own(comparison):
    _, lines = comparison
    made = table(lines)
    assert str(made.title).endswith("mean ± standard deviation over 2 seeds")
    rows = {line.split("│")[2].strip(): line for line in shown(made).splitlines() if "background" in line}
    assert list(rows) == ["kNN, k=5", "linear", "linear-adam", "linear-sgd", "linear-sgd-crops"]
    for name, row in rows.items():
        first, second = (cell.strip() for cell in row.split("│")[3:5])
        values = [
            100 * one.value
            for result in lines[0].results
            for one in result
            if one.protocol == name.split(",")[0].lower()
        ]
        if values:
            assert first.startswith(f"{sum(values) / 2:.1f} ±")
        assert (second == "-") == (name in ("linear-sgd", "linear-sgd-crops"))


def test_one_protocol_with_other_settings_is_another_row_that_says_them():
    def made(value, **settings):
        settings |= {"column": "x", "k": 20, "seed": int(10 * value), "rows_of_zeros": int(10 * value)}
        return Result(protocol="knn", version=1, value=value, n=10, settings=settings)

    lines = [
        Line("a", (0,), ((made(0.5, temperature=0.07),),)),
        Line("b", (0,), ((made(0.9, temperature=0.5),),)),
        Line("c", (0,), ((made(0.2, temperature=0.07),),)),
    ]
    assert shown(table(lines)).splitlines()[0].strip() == "accuracy in percent, 1 seed"
    rows = [line for line in shown(table(lines)).splitlines() if "kNN" in line]
    cells = [[cell.strip() for cell in row.split("│")[2:-1]] for row in rows]
    assert cells == [
        ["kNN, k=20, temperature 0.07", "50.0", "-", "20.0"],
        ["kNN, k=20, temperature 0.5", "-", "90.0", "-"],
    ]


def test_measuring_again_gives_the_same_and_leaves_the_weights(comparison):
    out, lines = comparison
    run = Run(out / "a" / "seed-0")
    before = checkpoints(run.checkpoints)[-1].read_bytes()
    again = measure(run, quiet())
    assert [one.value for one in again] == [one.value for one in lines[0].results[0]]
    assert checkpoints(run.checkpoints)[-1].read_bytes() == before
    assert torch.isfinite(load_features(run.features).h).all()


def test_crops_pass_over_pictures_that_cannot_be_read(tmp_path):
    for i in range(24):
        place = tmp_path / "pictures" / ("light", "dark")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 80), (200 + i if i % 2 == 0 else i, 9, 9)).save(place / f"{i:02d}.png")
    for i in (5, 7, 9, 11):
        (tmp_path / "pictures" / "dark" / f"{i:02d}.png").write_bytes(b"")
    data = {"source": "folder", "path": str(tmp_path / "pictures"), "train": None, "holdout": 0.25}
    recipe = parse_recipe(
        SMALL
        | {
            "data": data | {"on_error": "skip"},
            "train": {"epochs": 1, "batch_size": 8, "workers": 0},
            "evaluate": {"k": [1], "linear": False, "probes": ["linear-sgd-crops"], "batch_size": 10},
        }
    )
    run = fit(recipe, tmp_path / "run", console=quiet())
    probe = measure(run, quiet())[1]
    assert probe.settings["train_n"] + probe.n == 20
    assert probe.settings["train_n"] < 18  # so that some are missing from train
    assert probe.value > 0.7


def test_the_report_names_the_protocols(comparison, tmp_path):
    out, _ = comparison
    page = write_report(
        sorted(path.parent for path in out.rglob("recipe.yaml")), tmp_path / "page.html", title="t"
    ).read_text()
    for title in (
        "Linear probe trained by SGD on crops",
        "Linear probe trained by SGD,",
        "Linear probe trained by Adam",
    ):
        assert title in page


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("evaluate.probes=[linear-agd]", r"unknown linear protocol 'linear-agd': .*did you mean"),
        ("evaluate.probes=[linear-sgd, linear-sgd]", "names a protocol twice"),
        ("evaluate.probes=linear-sgd", r"evaluate\.probes: "),
    ],
)
def test_faults_are_named(word, message):
    with pytest.raises(ValueError, match=message):
        parse_recipe(override(SMALL, [word]))


def test_a_recipe_without_the_text_tower_it_needs_is_refused_before_the_first_trains(tmp_path):
    recipes = [
        parse_recipe(SMALL | {"name": "a"}),
        parse_recipe(override(SMALL, ["evaluate.retrieval=true"])),
    ]
    with pytest.raises(
        ValueError, match=r"recipe 'small': evaluate\.retrieval embeds texts: it needs model\.text"
    ):
        compare(recipes, [0], tmp_path, console=quiet())
    assert list(tmp_path.iterdir()) == []
