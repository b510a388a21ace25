"""The recipes of SparseCLR and QARe run: two steps of each, on built-in pictures or those at hand."""

import zipfile

import pytest
import torch
from real_data import real_data
from short_runs import quiet, two_steps

from counterpoint.train.compare import measure
from counterpoint.train.recipe import find_recipes, load_recipe
from counterpoint.train.setup import load_encoder

SETS = ("cifar10", "cifar100", "tiny-imagenet")
METHODS = ("simclr", "simclr-qare", "sparseclr", "sparseclr-qare")
LOSSES = ("infonce", "ntlogistic", "sparseclr", "triplet")
TWO_CAMERAS = "data={source: shapes, camera: both, count: 24, size: 32}"


@pytest.mark.parametrize("data", SETS)
@pytest.mark.parametrize("method", METHODS)
def test_on_small_pictures(data, method, tmp_path):
    words = ["data={source: shapes, count: 24, size: 32}"]
    recipe, _, rows = two_steps(f"qare/{data}/{method}", words, tmp_path)
    assert (recipe.optim.name, recipe.optim.weight_decay, recipe.optim.schedule) == ("adam", 0, "constant")
    assert (recipe.train.epochs, recipe.evaluate.probes) == (200, ("linear-adam",))
    assert load_recipe(f"qare/{data}/{method}").train.batch_size == 128
    weights = {term.name: term.weight for term in recipe.objective}
    loss = {"simclr": "ntxent", "sparseclr": "sparseclr"}[method.removesuffix("-qare")]
    beta = 0.5 if (data, method) == ("cifar10", "sparseclr-qare") else 1
    assert weights == {loss: 1, "qare": beta} if method.endswith("qare") else {loss: 1}
    terms = [torch.tensor([row[f"{name}/loss"] for row in rows]) for name in weights if len(weights) > 1]
    if terms:
        total = terms[0] + beta * terms[1]
        assert total.tolist() == pytest.approx([row["loss"] for row in rows], rel=1e-5)
    # Statistics of the data set; those of CIFAR-10 are the preset's.
    assert recipe.views.spec.mean[0] == {"cifar10": 0.4914, "cifar100": 0.5071, "tiny-imagenet": 0.5}[data]
    assert recipe.views.spec.blur_p == 0


@pytest.mark.parametrize("data", SETS)
def test_the_other_backbones(data):
    for file in find_recipes(f"qare/{data}"):
        text = file.read_text()
        assert "model.backbone=resnet8 (or 32, or 56) with model.extra_linear=true" in text
        assert "model.backbone=resnet34" in text
    small = [[f"model.backbone=resnet{depth}", "model.extra_linear=true"] for depth in (8, 32, 56)]
    for words, width in [*((words, 64) for words in small), (["model.backbone=resnet34"], 512)]:
        recipe = load_recipe(f"qare/{data}/sparseclr-qare", words)
        encoder = load_encoder(recipe).eval()
        with torch.no_grad():
            h, z = encoder(torch.zeros(2, 3, recipe.views.spec.size, recipe.views.spec.size))
        assert (h.shape, z.shape) == ((2, width), (2, 64))


def test_the_weight_of_a_term_is_an_override():
    recipe = load_recipe(
        "qare/cifar10/simclr-qare", ["objective.1.weight=0.125", "objective.1.clamp_min=1.0e-8"]
    )
    assert (recipe.objective[1].weight, recipe.objective[1].arguments["clamp_min"]) == (0.125, 1e-8)


@pytest.mark.parametrize("loss", [*LOSSES, *(f"{loss}-qare" for loss in LOSSES)])
def test_matching_of_shapes(loss, tmp_path):
    recipe, _, _ = two_steps(f"matching/{loss}", [TWO_CAMERAS], tmp_path)
    assert recipe.views.spec.pair_by == "camera"
    weights = {term.name: term.weight for term in recipe.objective}
    assert weights == {loss.removesuffix("-qare"): 1} | ({"qare": 0.5} if loss.endswith("-qare") else {})


def test_these_are_all_of_matching():
    stems = [file.stem for file in find_recipes("matching")]
    assert stems == sorted([*LOSSES, *(f"{loss}-qare" for loss in LOSSES)])


def test_an_objective_list_is_an_override():
    term = "{name: qare, weight: 0.25}"
    words = [f"objective=[{{name: triplet, margin: 0.1}}, {term}]", "name=other"]
    recipe = load_recipe("matching/triplet", words)
    assert [(t.name, t.weight) for t in recipe.objective] == [("triplet", 1), ("qare", 0.25)]


def test_matching_of_omniglot(tmp_path):
    """From files named as Omniglot's are: some characters of the real set."""
    source = real_data("omniglot") / "images_background_small1.zip"
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(tmp_path / "some.zip", "w") as some:
        for name in whole.namelist():
            if "/Balinese/" in name:
                some.writestr(name, whole.read(name))
    words = [f"data.path={tmp_path / 'some.zip'}"]
    _, run, _ = two_steps("matching/sparseclr-qare", words, tmp_path / "run")
    results = measure(run, quiet())
    assert {result.protocol for result in results} == {"matching"}
    # 24 characters by 20 hands: 17 to train, 3 or 4 to validate and to test.
    assignment = next(result for result in results if result.metric == "assignment")
    assert 3 <= assignment.n <= 4
