"""The paper-sized recipes run: two steps of each on one picture per ImageNet class."""

import io
import json
import tarfile

import pytest
from real_data import real_data
from rich.console import Console

from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.recipe import load_recipe

# The machine decides these, not the method: two cores, an encoder of texts that is at hand, eight pictures.
SMALLER = [
    "train.steps=2",
    "train.batch_size=8",
    "train.precision=32-true",
    "train.accelerator=cpu",
    "train.workers=2",
    "train.log_every=1",
    "views.size=96",
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    source = real_data("imagenet-sample")
    folder = tmp_path_factory.mktemp("imagenet")
    with tarfile.open(source / "imagenet-sample-1000.tar") as shard:
        shard.extractall(folder, filter="data")
    return folder / "imagenet-sample", source / "imagenet_class_index.json"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["simclr", "supcon", "xclr"])
def test_two_steps(method, pictures, tmp_path):
    folder, names = pictures
    data = f"data={{source: folder, path: {folder}, names: {names}, train: null, holdout: 0.1}}"
    words = [data, *SMALLER, *(["similarity.encoder=minilm"] if method == "xclr" else [])]
    recipe = load_recipe(f"imagenet/{method}", words)
    assert recipe.model.backbone == "resnet50"
    assert recipe.optim.name == "lars"
    run = fit(recipe, tmp_path, console=Console(file=io.StringIO()))
    rows = read_metrics(run.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    assert json.loads(run.done.read_text())["steps"] == 2
