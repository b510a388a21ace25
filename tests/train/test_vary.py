"""Ablations: which recipes are made of one, what they are called, and the numbers that are written."""

import csv
import json

import pytest

from counterpoint.evaluate import Result
from counterpoint.train.compare import Line
from counterpoint.train.recipe import load_recipe, override, parse_recipe
from counterpoint.train.vary import NUMBERS, PLAN, label, parse_vary, vary, write_numbers, write_plan

SMALL = {
    "name": "x",
    "data": {"source": "shapes", "count": 96, "size": 32, "label": "background"},
    "objective": {"name": "xclr"},
    "similarity": {"graph": "caption", "encoder": "static"},
}


def recipe(*changes):
    return parse_recipe(override(SMALL, changes))


def plain(name="plain"):
    given = {key: value for key, value in SMALL.items() if key != "similarity"}
    return parse_recipe(given | {"name": name, "objective": {"name": "ntxent"}})


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("objective.tau_s=0.05,0.1", ("objective.tau_s", [0.05, 0.1])),
        ("data.limit=10,null", ("data.limit", [10, None])),
        ("similarity.graph=instance, label", ("similarity.graph", ["instance", "label"])),
        ("data.root=2020-01-01,b", ("data.root", ["2020-01-01", "b"])),
        ("objective.tau_s=1e-3,2.5e-1,1E+0", ("objective.tau_s", [0.001, 0.25, 1.0])),
        ("model.head=[[16], [16, 8]]", ("model.head", [[16], [16, 8]])),
        ("similarity=[{graph: instance},{graph: class, encoder: static}]",
         ("similarity", [{"graph": "instance"}, {"graph": "class", "encoder": "static"}])),
    ],
)  # fmt: skip
def test_values_are_yaml(word, wanted):
    assert parse_vary(word) == wanted


@pytest.mark.parametrize(
    "word",
    ["objective.tau_s", "=1,2", "a=", "a=1", "a=1,1", "a=[{graph: ,", "a=[1],[2]", "a=[{2020-01-01: 3}, 1]"],
)
def test_words_that_vary_nothing_are_refused(word):
    with pytest.raises(ValueError, match="--vary"):
        parse_vary(word)


def test_one_value_differs_and_nothing_else():
    made = vary([recipe()], ["objective.tau_s=0.05,0.2"])
    assert [one.recipe.name for one in made] == ["x-tau_s-0.05", "x-tau_s-0.2"]
    for one, tau_s in zip(made, (0.05, 0.2), strict=True):
        wanted = recipe(f"objective.tau_s={tau_s}", f"name={one.recipe.name}")
        assert one.recipe == wanted
        assert one.values == {"objective.tau_s": tau_s}


def test_every_combination_of_two_keys():
    made = vary([recipe()], ["similarity.noise=0,0.5", "data.limit=32,null"])
    assert [one.recipe.name for one in made] == [
        "x-noise-0-limit-32", "x-noise-0-limit-all", "x-noise-0.5-limit-32", "x-noise-0.5-limit-all",
    ]  # fmt: skip
    assert [(one.recipe.similarity.noise, one.recipe.data.limit) for one in made] == [
        (0, 32), (0, None), (0.5, 32), (0.5, None),
    ]  # fmt: skip


def test_a_graph_keeps_the_arguments_that_it_takes():
    base = recipe("similarity.noise=0.1")
    made = vary([base], ["similarity.graph=instance,class,random_class,caption"])
    assert [one.recipe.similarity.arguments for one in made] == [
        {}, {"column": None, "encoder": "static", "template": "a photo of a {}"}, {"column": None, "seed": 0},
        {"encoder": "static"},
    ]  # fmt: skip
    assert all(one.recipe.similarity.noise == 0.1 for one in made)


def test_whole_blocks_take_the_place_of_the_old_one():
    words = "similarity=[{graph: class, encoder: minilm}, {graph: class, encoder: static}, {graph: instance}]"
    made = vary([recipe("similarity.noise=0.1")], [words])
    assert [one.recipe.name for one in made] == ["x-class-minilm", "x-class-static", "x-instance"]
    assert [one.recipe.similarity.noise for one in made] == [0, 0, 0]


def test_a_recipe_without_the_key_stays_as_it_is():
    made = vary([plain(), recipe()], ["objective.tau_s=0.1,0.2"])
    assert [(one.recipe.name, dict(one.values)) for one in made] == [
        ("plain", {}), ("x-tau_s-0.1", {"objective.tau_s": 0.1}), ("x-tau_s-0.2", {"objective.tau_s": 0.2}),
    ]  # fmt: skip
    assert made[0].recipe == plain()
    # A graph that its objective does not look at would give the same run again and again.
    made = vary([plain(), recipe()], ["similarity.noise=0,0.5"])
    assert [one.base for one in made] == ["plain", "x", "x"]


@pytest.mark.parametrize(
    ("recipes", "word", "message"),
    [
        ([plain()], "objective.tau_s=0.1,0.2", "tau_s"),
        ([plain()], "similarity.graph=label,instance", "no recipe uses it"),
        ([recipe()], "optim.speed=1,2", "speed"),
        ([recipe()], "similarity.graph=label,no_such", "no_such"),
        ([recipe()], "optim.lr=0.1,fast", "optim.lr"),
        ([recipe()], "similarity.graph=[{graph: label}, {graph: instance}]", "similarity.graph"),
        ([recipe()], "similarity.graph=[[label], [instance]]", "similarity.graph"),
        ([recipe()], "seed=1,2", "same runs again: give the seeds as --seeds"),
        ([recipe()], "name=a,b", "same runs again"),
        ([recipe()], "expect.top=1,2", "same runs again"),
        (
            [recipe()],
            "similarity=[{graph: vectors, path: a/x.npy}, {graph: vectors, path: b/x.npy}]",
            "would both be called 'x-vectors-x'",
        ),
    ],
)
def test_what_no_recipe_takes_is_refused(recipes, word, message):
    with pytest.raises(ValueError, match=message):
        vary(recipes, [word])


def test_a_key_twice_is_refused():
    with pytest.raises(ValueError, match="names a key twice"):
        vary([recipe()], ["optim.lr=0.1,0.2", "optim.lr=0.1,0.2"])


def test_names_of_values_can_stand_in_a_path():
    assert label("similarity", {"graph": "wordnet", "path": "/usr/share/wordnet", "measure": "path"}) == (
        "wordnet-wordnet-path"
    )
    assert label("objective.tau_s", 0.1) == "tau_s-0.1"
    assert label("train.sync_batchnorm", True) == "sync_batchnorm-true"


def test_packaged_recipes_of_the_tables_of_the_guide():
    words = "similarity=[{graph: instance}, {graph: label}, {graph: class, encoder: static}]"
    base = [load_recipe("cifar100/simclr"), load_recipe("cifar100/supcon"), load_recipe("cifar100/xclr")]
    assert len(vary(base, [words])) == 5
    assert len(vary(base, ["objective.tau_s=0.02,0.05,0.1,0.2"])) == 6
    assert len(vary(base, ["data.limit=1000,5000,20000,null"])) == 12


def test_the_numbers_are_means_over_seeds(tmp_path):
    varied = vary([plain(), recipe()], ["objective.tau_s=0.1,0.2"])

    def results(value, seed):
        settings = {"column": "object", "k": 5, "seed": seed, "l2": value}
        return (Result(protocol="knn", version=1, value=value, n=9, settings=settings, chosen=("l2",)),)

    lines = [
        Line(one.recipe.name, (0, 1), (results(0.1 * i, 0), results(0.1 * i + 0.2, 1)))
        for i, one in enumerate(varied, start=1)
    ]
    write_plan(tmp_path, varied)
    write_numbers(tmp_path, varied, lines)
    plan = json.loads((tmp_path / PLAN).read_text())
    assert plan["keys"] == ["objective.tau_s"]
    assert plan["points"][2] == {"name": "x-tau_s-0.2", "base": "x", "values": {"objective.tau_s": 0.2}}
    rows = list(csv.DictReader((tmp_path / NUMBERS).open()))
    assert [row["objective.tau_s"] for row in rows] == ["", "0.1", "0.2"]
    assert [float(row["mean"]) for row in rows] == pytest.approx([0.2, 0.3, 0.4])
    assert [float(row["std"]) for row in rows] == pytest.approx([0.2 / 2**0.5] * 3, abs=1e-6)
    assert {row["seeds"] for row in rows} == {"2"}
