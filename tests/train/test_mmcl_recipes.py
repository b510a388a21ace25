"""The recipes of MMCL run: two steps of each on pictures that are at hand, at the size of a test."""

import tarfile

import pytest
from PIL import Image
from real_data import real_data
from short_runs import quiet, two_steps

from counterpoint.train.compare import measure
from counterpoint.train.recipe import find_recipes

PAPER = ["cifar100", "imagenet100-inverse", "imagenet100-pgd", "imagenet1k", "stl10"]
CPU = ["cifar10/mmcl", "cifar10/simclr", "cifar100/mmcl", "cifar100/mmcl-exact", "cifar100/mmcl-inverse"]


def small_pictures():
    """CIFAR-10 for all: it is the smaller one, and read once."""
    return f"data={{source: parquet, path: {real_data('cifar10')}, limit: 64}}"


def test_these_are_all():
    assert [path.stem for path in find_recipes("mmcl")] == PAPER


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Forty pictures of ImageNet, one of a class, in folders as the recipes for ImageNet read them."""
    source = real_data("imagenet-sample")
    folder = tmp_path_factory.mktemp("imagenet")
    with tarfile.open(source / "imagenet-sample-1000.tar") as shard:
        members = [member for member in shard if member.isfile() and member.name.endswith((".jpg", ".JPEG"))]
        shard.extractall(folder, members[:40], filter="data")
    return folder / "imagenet-sample"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet1k", "imagenet100-pgd", "imagenet100-inverse"])
def test_on_imagenet(name, pictures, tmp_path):
    words = [f"data={{source: folder, path: {pictures}, train: null, holdout: 0.2}}", "views.size=64"]
    recipe, _, _ = two_steps(f"mmcl/{name}", words, tmp_path)
    assert recipe.model.backbone == "resnet50"
    assert (recipe.optim.name, recipe.optim.lr) == ("lars", 1.2)
    # The warm-up is a tenth of the iterations.
    assert recipe.optim.warmup_epochs == recipe.train.epochs / 10
    assert (recipe.views.spec.mean, recipe.views.spec.std) == ((0, 0, 0), (1, 1, 1))
    solver = "inverse" if name.endswith("inverse") else "pgd"
    assert recipe.objective[0].arguments["solver"] == solver


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar100", "stl10"])
def test_on_small_pictures(name, tmp_path):
    recipe, _, rows = two_steps(f"mmcl/{name}", [small_pictures()], tmp_path)
    assert [row["sigma"] for row in rows] == [50, 50]
    assert recipe.objective[0].schedule == {"sigma": {75: 5, 125: 0.5}}
    assert (recipe.optim.name, recipe.optim.schedule) == ("adam", "constant")


@pytest.mark.parametrize("name", CPU)
def test_those_for_a_cpu(name, tmp_path):
    recipe, _, _ = two_steps(name, [small_pictures()], tmp_path)
    assert 200 in recipe.evaluate.k


def test_the_probe_on_crops_measures_what_a_recipe_trained(tmp_path):
    """The protocol of the ImageNet recipes, on pictures that a small backbone reads quickly."""
    for i in range(40):
        place = tmp_path / "data" / ("train", "val")[i % 4 == 3] / ("light", "dark")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (72, 72), (220 - i, 210, 200) if i % 2 == 0 else (i, 20, 30)).save(
            place / f"{i}.png"
        )
    words = [
        f"data={{source: folder, path: {tmp_path / 'data'}, train: train, test: val}}",
        "views.size=48",
        "model.backbone=conv4",
        "model.head=[16]",
    ]
    _, run, _ = two_steps("mmcl/imagenet1k", words, tmp_path / "run")
    results = {result.protocol: result for result in measure(run, quiet())}
    assert set(results) == {"knn", "linear-sgd-crops"}
    assert results["linear-sgd-crops"].settings["augmentation"] == "crop_flip"
    assert results["linear-sgd-crops"].n == 10
