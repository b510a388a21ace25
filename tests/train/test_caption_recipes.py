"""The recipes for captions run: two steps of each, on shards made of the built-in pictures."""

import tarfile

import pytest
from real_data import real_data
from short_runs import quiet, two_steps
from tar_shards import write_shards

from counterpoint.data import SOURCES
from counterpoint.data.webdataset_shards import shards
from counterpoint.similarity.store_build import build_store
from counterpoint.train.compare import measure
from counterpoint.train.recipe import load_recipe
from counterpoint.train.sources import _class_names

SMALLER = [
    "train.precision=32-true",
    "views.size=32",
    "model.backbone=conv4",
    "data.samples=16",
    "data.on_error=stop",
    "evaluate_on={source: shapes, count: 24, size: 32}",
]
TEXT = [
    "model.text.width=16",
    "model.text.layers=1",
    "model.text.heads=2",
    "evaluate.zero_shot.names=data",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("captions"), shards=2, each=12, texts=2)[0].parent


@pytest.mark.parametrize("size", ["cc3m", "cc12m"])
@pytest.mark.parametrize("method", ["simclr", "xclr", "clip"])
def test_of_the_paper(folder, tmp_path, method, size):
    words = [f"data.path={folder}", *SMALLER, *(TEXT if method == "clip" else [])]
    if method == "xclr":
        indexed = shards(folder)
        build_store(tmp_path / "store", indexed.keys, indexed.captions)
        words.append(f"similarity.path={tmp_path / 'store'}")
    recipe, run, rows = two_steps(f"{method}/{size}", words, tmp_path / "run")
    assert recipe.data.streamed
    assert ("tau" in rows[0]) is (method == "clip")
    published = load_recipe(f"{method}/{size}")
    assert (published.model.backbone, published.train.batch_size) == ("resnet50", 1024)
    if size == "cc3m" and method == "clip":
        measured = {(r.protocol, r.settings["k"]) for r in measure(run, quiet()) if r.protocol == "zero_shot"}
        assert measured == {("zero_shot", 1), ("zero_shot", 5)}


@pytest.mark.parametrize("method", ["simclr", "xclr", "clip"])
def test_small(folder, tmp_path, method):
    _, run, _ = two_steps(
        f"captions/{method}", [f"data.path={folder}", "views.size=32", "data.holdout=0.5"], tmp_path
    )
    results = measure(run, quiet())
    if method == "clip":
        asked = [
            (r.metric, r.settings["direction"], r.n) for r in results if r.settings.get("k") in (None, 1)
        ]
        assert asked == [
            ("recall", "picture to caption", 12),
            ("mAP", "picture to caption", 12),
            ("recall", "caption to picture", 24),
            ("mAP", "caption to picture", 24),
            ("assignment", "one to one", 12),
        ]
    else:
        assert results == []


@pytest.mark.parametrize(
    "words",
    [
        ["objective=[{name: sparseclr}, {name: qare, weight: 0.5}]"],
        ["objective={name: xclr, tau: 0.1, tau_s: 0.1}", "similarity={graph: caption, encoder: minilm}"],
    ],
)
def test_other_losses_on_picture_and_caption(folder, tmp_path, words):
    words = [f"data.path={folder}", "views.size=32", "data.holdout=0.5", *words, "name=other"]
    recipe, run, rows = two_steps("captions/clip", words, tmp_path)
    assert recipe.name == "other"
    assert all(0 < row["loss"] < 100 for row in rows)
    assert {r.settings["direction"] for r in measure(run, quiet())} >= {
        "picture to caption",
        "caption to picture",
    }


def test_names_of_imagenet_for_its_folders(tmp_path):
    """By the ids that the folders are called by, or by those that a file of names goes with."""
    pytest.importorskip("open_clip")
    source = real_data("imagenet-sample")
    with tarfile.open(source / "imagenet-sample-1000.tar") as shard:
        shard.extractall(tmp_path, filter="data")
    for names in (None, source / "imagenet_class_index.json"):
        samples = SOURCES["folder"](tmp_path / "imagenet-sample", names=names)
        found = _class_names(samples, None, "imagenet")
        assert (len(found), found[134], found[517]) == (1000, "crane bird", "construction crane")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["evaluate.retrieval=true", "model.text=null", "objective=ntxent", "views.count=2"],
            "needs model.text",
        ),
        (["evaluate.zero_shot={}"], "has no labels"),
        (["evaluate.zero_shot.templates=clip8"], "did you mean 'clip7'"),
        (
            ["evaluate.zero_shot.names=imagenet", "evaluate_on={source: shapes, count: 24, size: 32}"],
            "names='imagenet' are those of ImageNet's 1,000 classes",
        ),
        (["evaluate_on={source: folder, path: nowhere}"], "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(folder, tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        two_steps(
            "captions/clip",
            [f"data.path={folder}", "views.size=32", "data.holdout=0.5", *words],
            tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
