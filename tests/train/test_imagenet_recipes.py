"""The paper-sized recipes run: two steps of each on one picture per ImageNet class."""

import tarfile

import pytest
from real_data import real_data
from short_runs import two_steps

# The machine decides these, not the method.
SMALLER = ["train.precision=32-true", "views.size=96"]


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
    recipe, _, _ = two_steps(f"imagenet/{method}", words, tmp_path)
    assert recipe.model.backbone == "resnet50"
    assert recipe.optim.name == "lars"
