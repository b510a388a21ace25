import re
from pathlib import Path

import pytest
import yaml
from torch import nn

from counterpoint.train.recipe import (
    find_recipes,
    load_recipe,
    override,
    parse_recipe,
    read_recipe,
    recipe_names,
)
from counterpoint.train.setup import load_encoder

SMALL = {
    "name": "small",
    "data": {"source": "shapes", "count": 300},
    "objective": {"name": "ntxent", "tau": 0.2},
}


def test_defaults_come_from_the_things_named():
    recipe = parse_recipe(SMALL)
    plain = recipe.resolved()
    assert plain["objective"]["reduction"] == "mean_log"
    assert plain["data"]["count"] == 300
    assert plain["data"]["seed"] == 0
    assert plain["views"]["flip"] == 0.5


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves_and_reads_back_equal(name):
    recipe = load_recipe(name)
    again = parse_recipe(yaml.safe_load(recipe.to_yaml()))
    assert again == recipe
    assert again.resolved() == recipe.resolved()


def test_the_methods_of_a_comparison_differ_in_nothing_else():
    groups = (
        "demo",
        "cifar100",
        "cifar10",
        "matching",
        "qare/cifar10",
        "qare/cifar100",
        "qare/tiny-imagenet",
    )
    for group in groups:
        plain = [read_recipe(file).resolved() for file in find_recipes(group)]
        assert len(plain) > 1
        for recipe in plain:
            for key in ("name", "objective", "similarity", "momentum"):
                del recipe[key]
        assert all(recipe == plain[0] for recipe in plain)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.lrr=1"], r"optim\.lrr is not a key of the recipe: .*did you mean 'lr'\?"),
        (["optimm.lr=1"], r"optimm is not a key of the recipe: .*did you mean 'optim'\?"),
        (["data.cout=3"], r"data\.cout is not a key of the recipe: .*did you mean 'count'\?"),
        (["objective.taus=1"], r"objective\.taus is not a key of the recipe: .*did you mean 'tau'\?"),
        (["objective.name=ntxnet"], r"unknown objective 'ntxnet': .*did you mean 'ntxent'\?"),
        (["objective.tau=0"], r"tau.*0"),
        (["objective.tau=-1"], r"tau.*-1"),
        (["objective.tau=.nan"], r"tau.*nan"),
        (["data.source=shape"], r"unknown data source 'shape': .*did you mean 'shapes'\?"),
        (["views.preset=simcl"], r"simcl"),
        (["views.flipp=1"], r"flip"),
        (["train.epochs=many"], r"train\.epochs: .*integer.*got 'many'"),
        (["train.epochs=-1"], r"train\.epochs: .*greater than or equal to 0.*got -1"),
        (["optim.lr=fast"], r"optim\.lr: .*got 'fast'"),
        (["optim.name=rmsprop"], r"optim\.name: .*'adam'.*got 'rmsprop'"),
        (["model.head=[1,2,3,4]"], r"model\.head"),
        (["similarity.graph=clas"], r"unknown graph 'clas': .*did you mean 'class'\?"),
        (["name=../../etc"], r"name: "),
        (["model.head_activation=gelu"], r"model\.head_activation: .*'leaky_relu'.*got 'gelu'"),
    ],
)
def test_faults_are_named(words, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_recipe(override(SMALL, words))
    assert "\n" not in str(caught.value)


def test_soft_targets_need_a_graph():
    with pytest.raises(ValueError, match=r"'xclr' needs soft targets: give similarity\.graph"):
        parse_recipe(SMALL | {"objective": {"name": "xclr"}})
    with pytest.raises(ValueError, match=r"'qare' needs soft targets: give similarity\.graph"):
        parse_recipe(SMALL | {"objective": [{"name": "ntxent"}, {"name": "qare", "reference": "graph"}]})


def test_terms_add_up():
    recipe = parse_recipe(
        SMALL
        | {"objective": [{"name": "ntxent", "tau": 0.2}, {"name": "hinge", "margin": 0.3, "weight": 0.5}]}
    )
    import torch

    z0, z1 = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0)).unbind(0)
    alone = [term.build()(z0, z1) for term in recipe.objective]
    assert torch.allclose(recipe.build_objective()(z0, z1), alone[0] + 0.5 * alone[1])


@pytest.mark.parametrize("word", ["optim.lr", "=3", "optim.lr=[1"])
def test_words_that_are_no_override(word):
    with pytest.raises(ValueError, match="override"):
        override(SMALL, [word])


def test_the_head_of_a_paper_from_the_recipe():
    head = {"head": [256, 64], "head_activation": "leaky_relu"}
    qare = load_encoder(parse_recipe(SMALL | {"model": head})).head
    assert [type(layer) for layer in qare] == [nn.Linear, nn.BatchNorm1d, nn.LeakyReLU, nn.Linear]
    bare = load_encoder(parse_recipe(SMALL | {"model": head | {"head_norm": False}})).head
    assert [type(layer) for layer in bare] == [nn.Linear, nn.LeakyReLU, nn.Linear]
    mmcl = load_encoder(parse_recipe(SMALL | {"model": {"head": [64, 128], "head_final_norm": True}})).head
    assert [layer.bias is None for layer in mmcl if isinstance(layer, nn.Linear | nn.BatchNorm1d)] == [
        True, False, True, True,
    ]  # fmt: skip


def test_an_override_inside_a_plain_value():
    with pytest.raises(ValueError, match="no keys"):
        override(SMALL, ["name.first=1"])


def test_files_that_are_no_recipe(tmp_path):
    for content in ("- a\n- b\n", "a: [", "just text"):
        (tmp_path / "r.yaml").write_text(content)
        with pytest.raises(ValueError, match=r"r\.yaml"):
            load_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"r\.yaml"):
        load_recipe(tmp_path / "r.yaml")
    with pytest.raises(ValueError, match="no recipe file"):
        load_recipe(tmp_path / "absent.yaml")


def test_a_name_stands_for_a_recipe_or_a_group():
    assert [path.stem for path in find_recipes("demo")] == ["simclr", "supcon", "xclr"]
    # The plain method first: it is the baseline.
    assert [path.stem for path in find_recipes("qare/cifar10")] == [
        "simclr", "simclr-qare", "sparseclr", "sparseclr-qare",
    ]  # fmt: skip
    assert [path.stem for path in find_recipes("demo/xclr")] == ["xclr"]
    with pytest.raises(ValueError, match=r"unknown recipe 'demo/xlcr': .*did you mean 'demo/xclr'\?"):
        find_recipes("demo/xlcr")
    with pytest.raises(ValueError, match="group of 3"):
        load_recipe("demo")


@pytest.mark.parametrize("page", ["runs", "evaluate"])
def test_recipe_parts_shown_in_the_docs_are_right(page):
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert blocks
    for block in blocks:
        parse_recipe(SMALL | yaml.safe_load(block))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"data": {"source": "cameras", "path": None}},
            "data.path: input should be a valid string, got None",
        ),
        ({"data": {"source": "shapes", "camera": [1]}}, "data.camera: input should be .* or .*, got"),
        ({"data": {"source": "shapes", "count": True}}, "data.count must be a number, got True"),
        ({"data": {"source": "shapes", "holdout": True}}, "holdout must be a number, got True"),
        ({"objective": {"name": "qare", "weight": True}}, "weight must be a number, got True"),
        ({"objective": {"name": "ntxent", "tau": True}}, "tau must be a number, got True"),
        ({"train": {"epochs": True}}, "epochs must be a number, got True"),
    ],
)
def test_wrong_types_are_told_in_one_line_without_pydantics_names(changed, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_recipe({"name": "x", "data": {"source": "shapes"}, "objective": "ntxent", **changed})
    assert "\n" not in str(caught.value)
    assert "[" not in str(caught.value).split(", got")[0]


def test_not_a_number_reaches_the_source_that_refuses_it(tmp_path):
    from counterpoint.train.setup import load_splits

    data = {"source": "cameras", "path": str(tmp_path), "layout": "cuhk03", "shares": [0.5, float("nan")]}
    recipe = parse_recipe({"name": "x", "data": data, "objective": "ntxent"})
    with pytest.raises(ValueError, match=r"^shares must be two numbers.*got \(0.5, nan\)$"):
        load_splits(recipe.data)
