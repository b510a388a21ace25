"""Graphs from class names and from vectors; their twins and laws are in test_graph.py."""

import gzip
import json
import warnings

import pytest
import torch
from real_data import real_data

from counterpoint.similarity import (
    ClassGraph,
    EmbeddingGraph,
    InstanceGraph,
    LabelGraph,
    describe,
    encode_texts,
)

PETS = ["tabby_cat", "persian_cat", "fire_truck"]


def imagenet_names() -> list[str]:
    index = json.loads((real_data("imagenet-sample") / "imagenet_class_index.json").read_text())
    return [index[str(i)][1] for i in range(1000)]


def test_class_names_go_through_the_template_and_the_encoder():
    labels = torch.tensor([2, 0, 1, -1, 0])
    graph = ClassGraph.from_names(labels, PETS, template="a drawing of a {}, in {}")
    texts = [f"a drawing of a {n}, in {n}" for n in ("tabby cat", "persian cat", "fire truck")]
    z = encode_texts(texts)
    target = graph.batch(torch.arange(5))
    assert graph.name == "class names (all-MiniLM-L6-v2)"
    assert len(graph) == 5
    torch.testing.assert_close(graph.table, z @ z.T, rtol=0, atol=1e-6)
    assert target[0, 1].item() == pytest.approx((z[2] @ z[0]).item(), abs=1e-6)
    assert target[1, 4] == 1
    assert target[3].tolist() == [0, 0, 0, 1, 0]
    assert target[1, 2] > target[1, 0] + 0.2


def test_names_are_cleaned():
    clean = ClassGraph.from_names(torch.tensor([0, 1]), ["fire truck", "cat"])
    raw = ClassGraph.from_names(torch.tensor([0, 1]), ["  fire__truck_", "cat"])
    assert torch.equal(clean.table, raw.table)


def test_braces_of_a_name_or_a_template_stay():
    graph = ClassGraph.from_names(torch.tensor([0, 1]), ["{x}", "cat"], template="{a} {}")
    z = encode_texts(["{a} {x}", "{a} cat"])
    assert graph.table[0, 1].item() == pytest.approx((z[0] @ z[1]).item(), abs=1e-6)


def test_classes_of_one_name_are_one_and_said():
    with pytest.warns(UserWarning, match=r"cannot tell apart: 0 and 2 \(crane\)$"):
        graph = ClassGraph.from_names(torch.tensor([0, 1, 2]), ["crane", "cat", "crane_"])
    assert graph.batch(torch.arange(3))[0, 2] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClassGraph.from_names(torch.tensor([0]), PETS)


@pytest.mark.parametrize(
    ("names", "template", "words"),
    [
        (PETS, "a photo of a", r"template must have \{\} where the class name goes, got 'a photo of a'"),
        (PETS, "a photo of a {name}", r"template must have \{\}"),
        (PETS, None, r"template must have \{\}"),
        (PETS[:2], "{}", "2 class names for 3 classes"),
        ([], "{}", "names must be a sequence of class names"),
        ("cat", "{}", "names must be a sequence of class names, got 'cat'"),
        (["a", "__", "b"], "{}", r"names\[1\] is '__'"),
        (["a", "b", 3], "{}", r"names\[2\] is 3"),
    ],
)
def test_names_and_templates_are_refused(names, template, words):
    with pytest.raises(ValueError, match=words):
        ClassGraph.from_names(torch.tensor([0, 2, -1]), names, template=template)


def test_a_table_is_refused():
    labels = torch.tensor([0, 3])
    above = torch.eye(4)
    above[1, 2] = above[2, 1] = 1.5
    for bad, words in [
        (torch.eye(3), "the table has 3 classes, but the labels go up to 3: 4 classes are needed"),
        (above, r"table\[1, 2\] is 1.5"),
        (torch.zeros(4, 3), "table must be square"),
        (torch.triu(torch.ones(4, 4)), r"table\[0, 1\] is 1, but table\[1, 0\] is 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            ClassGraph(labels, bad)
    with pytest.raises(ValueError, match=r"labels\[0\] is -2"):
        ClassGraph(torch.tensor([-2]), torch.eye(1))


def test_rounding_above_one_is_one():
    graph = ClassGraph(torch.tensor([0, 0]), torch.tensor([[1.000001]]))
    assert torch.equal(graph.batch(torch.arange(2)), torch.ones(2, 2))


def test_an_identity_table_is_a_label_graph_and_unique_labels_an_instance_graph():
    labels = torch.tensor([0, 1, -1, 1, 2, -1, 0])
    ids = torch.arange(7)
    assert torch.equal(ClassGraph(labels, torch.eye(3)).batch(ids), LabelGraph(labels).batch(ids))
    assert torch.equal(LabelGraph(torch.arange(7)).batch(ids), InstanceGraph(7).batch(ids))


def test_all_unlabelled_samples_are_related_only_to_themselves():
    graph = ClassGraph(torch.full((4,), -1), torch.ones(2, 2))
    assert torch.equal(graph.batch(torch.arange(4)), torch.eye(4))


def test_the_table_of_a_class_can_be_below_one():
    graph = ClassGraph(torch.tensor([0, 0]), torch.tensor([[0.8]]))
    torch.testing.assert_close(graph.batch(torch.arange(2)), torch.tensor([[1.0, 0.8], [0.8, 1.0]]))


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_any_length_of_a_vector_will_do(scale):
    z = torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(20)
    torch.testing.assert_close(EmbeddingGraph(z * scale).batch(ids), EmbeddingGraph(z).batch(ids))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_stays_as_stored(dtype, tolerance):
    z = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    graph = EmbeddingGraph(z.to(dtype))
    assert graph.vectors.dtype == dtype
    target = graph.batch(torch.arange(50))
    assert target.dtype == torch.float32
    assert torch.equal(target.diagonal(), torch.ones(50))
    torch.testing.assert_close(target, EmbeddingGraph(z).batch(torch.arange(50)), rtol=0, atol=tolerance)


def test_a_memory_mapped_file_is_not_copied(tmp_path):
    z = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0)).half()
    path = tmp_path / "vectors.f16"
    path.write_bytes(z.numpy().tobytes())
    mapped = torch.from_file(str(path), shared=False, size=z.numel(), dtype=torch.float16).view(1000, 16)
    graph = EmbeddingGraph(mapped)
    assert graph.vectors.data_ptr() == mapped.data_ptr()
    ids = torch.tensor([999, 3, 500])
    assert torch.equal(graph.batch(ids), EmbeddingGraph(z).batch(ids))


def test_autocast_does_not_round_the_target():
    graph = EmbeddingGraph(torch.randn(64, 384, generator=torch.Generator().manual_seed(0)))
    ids = torch.arange(64)
    plain = graph.batch(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = graph.vectors @ graph.vectors.T
        target = graph.batch(ids)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(target, plain)


def test_no_gradient_flows_into_the_vectors():
    z = torch.randn(4, 3, requires_grad=True)
    assert not EmbeddingGraph(z).batch(torch.arange(4)).requires_grad


def test_vectors_are_refused_by_row():
    z = torch.ones(70_000, 2)
    late = z.clone()
    late[69_999] = 0
    nan = z.clone()
    nan[5, 1], nan[4, 0] = float("nan"), float("inf")
    for bad, words in [
        (late, r"vectors\[69999\] is zero"),
        (nan, r"vectors\[4\] is not finite"),
        (torch.ones(3), r"float32 of shape \(3,\)"),
        (torch.ones(3, 2, dtype=torch.int64), "int64"),
        (torch.ones(0, 2), r"\(0, 2\)"),
        (torch.ones(2, 0), r"\(2, 0\)"),
        ([[1.0]], "got list"),
    ]:
        with pytest.raises(ValueError, match=words):
            EmbeddingGraph(bad)
    for index, words in [
        (torch.tensor([0, 3]), r"index\[1\] is 3"),
        (torch.tensor([0.0]), "index must be an int64"),
        (torch.empty(0, dtype=torch.int64), "at least one sample"),
    ]:
        with pytest.raises(ValueError, match=words):
            EmbeddingGraph(torch.ones(3, 2), index=index)


def test_equal_captions_are_exactly_one():
    captions = ["a dog runs", "a bus", "a dog runs", "the dog is running", "a bus"]
    graph = EmbeddingGraph.from_texts(captions)
    target = graph.batch(torch.arange(5))
    z = encode_texts(captions)
    assert graph.name == "captions (all-MiniLM-L6-v2)"
    assert len(graph) == 5
    assert len(graph.vectors) == 3
    assert target[0, 2] == 1
    assert target[1, 4] == 1
    torch.testing.assert_close(target, z @ z.T, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"texts\[1\] is ''"):
        EmbeddingGraph.from_texts(["a", ""])


def test_opposite_vectors_are_not_clipped():
    assert EmbeddingGraph(torch.tensor([[1.0, 2.0], [-2.0, -4.0]])).batch(torch.arange(2))[0, 1] < -0.99999


@pytest.mark.slow
def test_the_imagenet_graph_has_the_mean_that_the_docs_state():
    with pytest.warns(UserWarning, match=r"134 and 517 \(crane\), 638 and 639 \(maillot\)$"):
        graph = ClassGraph.from_names(torch.arange(1000), imagenet_names())
    numbers = describe(graph, torch.arange(1000))
    print(numbers)
    assert numbers["mean"] == pytest.approx(0.355, abs=0.002)
    assert numbers["q05"] == pytest.approx(0.232, abs=0.004)
    assert numbers["q95"] == pytest.approx(0.488, abs=0.004)
    near = graph.batch(torch.arange(1000)).fill_diagonal_(-1)
    names = imagenet_names()
    for name, neighbours in [
        ("Persian_cat", {"Egyptian_cat"}),
        ("violin", {"cello"}),
        ("school_bus", {"minibus", "trolleybus"}),
    ]:
        assert names[int(near[names.index(name)].argmax())] in neighbours


def test_captions_of_one_picture_are_nearer_than_captions_of_others():
    with gzip.open(real_data("caption-text") / "captions.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [next(file).rstrip("\n").split("\t") for _ in range(301)][1:]
    pictures = sorted({row[1] for row in rows})
    labels = torch.tensor([pictures.index(row[1]) for row in rows])
    target = EmbeddingGraph.from_texts([row[2] for row in rows]).batch(torch.arange(300))
    same = (labels[:, None] == labels) & ~torch.eye(300, dtype=torch.bool)
    assert target[same].mean() > target[labels[:, None] != labels].mean() + 0.3
