"""The graphs a recipe names, built from samples."""

import inspect

import pytest
import torch
from PIL import Image

from counterpoint.data.samples import Labels, Samples
from counterpoint.similarity import (
    GRAPHS,
    ClassGraph,
    EmbeddingGraph,
    InstanceGraph,
    LabelGraph,
    RandomGraph,
    SimilarityGraph,
)

ARGUMENTS = {"column": None, "encoder": "minilm", "template": "a photo of a {}", "seed": 3}
FINE = Labels(torch.tensor([0, 2, 1, -1]), ["tabby_cat", "fire_truck", "persian_cat"])
COARSE = Labels(torch.tensor([0, 0, 1, -1]), ["animal", "vehicle"])
CAPTIONS = ["a cat", "a kitten", "a red truck", "a cat"]


def samples(labels=None, captions=None) -> Samples:
    return Samples(
        "pets", ["a", "b", "c", "d"], lambda i: Image.new("RGB", (8, 8)), labels or {}, captions=captions
    )


FULL = samples({"fine": FINE, "coarse": COARSE}, CAPTIONS)
IDS = torch.arange(4)


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_builder_has_the_same_arguments_and_gives_a_graph(kind):
    assert list(inspect.signature(GRAPHS[kind]).parameters) == ["samples", *ARGUMENTS]
    graph = GRAPHS[kind](FULL, **ARGUMENTS)
    assert isinstance(graph, SimilarityGraph)
    assert len(graph) == 4
    assert graph.batch(IDS).shape == (4, 4)


@pytest.mark.parametrize(
    ("kind", "column", "want", "name"),
    [
        ("instance", None, lambda: InstanceGraph(4), "instances"),
        ("label", None, lambda: LabelGraph(FINE.values), "labels (fine)"),
        ("label", "coarse", lambda: LabelGraph(COARSE.values), "labels (coarse)"),
        ("random_class", "coarse", lambda: RandomGraph("class", labels=COARSE.values, seed=3), None),
        ("random_sample", None, lambda: RandomGraph("sample", n=4, seed=3), "random per sample (seed 3)"),
        (
            "class",
            "coarse",
            lambda: ClassGraph.from_names(COARSE.values, COARSE.names),
            "class names (all-MiniLM-L6-v2)",
        ),
        ("caption", None, lambda: EmbeddingGraph.from_texts(CAPTIONS), "captions (all-MiniLM-L6-v2)"),
    ],
)
def test_a_builder_gives_the_graph_of_its_name(kind, column, want, name):
    graph = GRAPHS[kind](FULL, **{**ARGUMENTS, "column": column})
    assert type(graph) is type(want())
    assert torch.equal(graph.batch(IDS), want().batch(IDS))
    assert graph.name == (name or want().name)


def test_the_template_is_used():
    plain = GRAPHS["class"](FULL, **ARGUMENTS).batch(IDS)
    other = GRAPHS["class"](FULL, **{**ARGUMENTS, "template": "{}"}).batch(IDS)
    assert (plain - other)[0, 1].abs() > 0.01


@pytest.mark.parametrize("kind", ["label", "class", "random_class"])
def test_missing_labels_are_named(kind):
    for data, words in [
        (
            samples(),
            f"a '{kind}' graph needs labels, but data 'pets' has none; it has neither labels nor captions",
        ),
        (samples(captions=CAPTIONS), "data 'pets' has none; it has captions$"),
        (
            samples({"y": Labels(torch.full((4,), -1), ["a"])}),
            "none of the 4 samples of data 'pets' has one in column 'y'",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            GRAPHS[kind](data, **ARGUMENTS)
    with pytest.raises(ValueError, match="no label column 'breed'; it has fine, coarse"):
        GRAPHS[kind](FULL, **{**ARGUMENTS, "column": "breed"})


def test_missing_captions_are_named():
    with pytest.raises(ValueError, match=r"data 'pets' has none; it has label columns fine, coarse$"):
        GRAPHS["caption"](samples({"fine": FINE, "coarse": COARSE}), **ARGUMENTS)
    with pytest.raises(ValueError, match="neither labels nor captions"):
        GRAPHS["caption"](samples(), **ARGUMENTS)
    with pytest.raises(ValueError, match=r"in data 'pets' the one of 'c' \(sample 2\) is ' '"):
        GRAPHS["caption"](samples(captions=["a", "b", " ", "c"]), **ARGUMENTS)
