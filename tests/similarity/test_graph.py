"""Graphs against slow twins: one Python call per pair."""

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.similarity import (
    ClassGraph,
    EmbeddingGraph,
    InstanceGraph,
    LabelGraph,
    MatrixGraph,
    RandomGraph,
    SimilarityGraph,
)

WORD = 2**64


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def uniform(i: int, j: int, seed: int) -> float:
    start = mix(seed % WORD)
    bits = mix((mix(start ^ mix(i % WORD)) + mix(start ^ mix(j % WORD))) % WORD)
    return ((bits >> 41) + 0.5) / 2**23


def make(kind: str, n: int, seed: int):
    """A graph over n samples, and its twin: a function of one pair of samples."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 4, (n,), generator=g)
    y = labels.tolist()

    def same(i: int, j: int) -> bool:
        return y[i] == y[j] != -1

    if kind == "instance":
        return InstanceGraph(n), lambda i, j: float(i == j)
    if kind == "label":
        return LabelGraph(labels), lambda i, j: float(i == j or same(i, j))
    if kind == "matrix":
        m = torch.randn(n, n, generator=g)
        m = (m + m.T) / 2
        return MatrixGraph(m), lambda i, j: m[i, j].item()
    if kind == "random_class":
        graph = RandomGraph("class", labels=labels, seed=seed)

        def twin(i: int, j: int) -> float:
            if i == j or same(i, j):
                return 1.0
            return 0.0 if -1 in (y[i], y[j]) else uniform(y[i], y[j], seed)

        return graph, twin
    if kind == "random_sample":
        return RandomGraph("sample", n=n, seed=seed), lambda i, j: uniform(i, j, seed)
    if kind == "class":
        t = torch.rand(4, 4, generator=g)
        t = (t + t.T) / 2

        def twin(i: int, j: int) -> float:
            if i == j:
                return 1.0
            return 0.0 if -1 in (y[i], y[j]) else t[y[i], y[j]].item()

        return ClassGraph(labels, t), twin
    vectors = torch.randn(n, 3, generator=g) * torch.rand(n, 1, generator=g).add(0.01)
    index = torch.randint(n, (n,), generator=g) if kind == "shared_embedding" else None
    rows = list(range(n)) if index is None else index.tolist()

    def cosine(i: int, j: int) -> float:
        a, b = vectors[rows[i]].tolist(), vectors[rows[j]].tolist()
        return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    return EmbeddingGraph(vectors, index=index), cosine


KINDS = [
    "instance",
    "label",
    "matrix",
    "random_class",
    "random_sample",
    "class",
    "embedding",
    "shared_embedding",
]
LOOKED_UP = [kind for kind in KINDS if "embedding" not in kind]


@st.composite
def graphs(draw, kinds=tuple(KINDS)):
    kind, n, seed = draw(st.sampled_from(kinds)), draw(st.integers(1, 12)), draw(st.integers(0, 2**31))
    return kind, n, *make(kind, n, seed)


def draw_ids(data, n: int, most: int = 12) -> torch.Tensor:
    return torch.tensor(data.draw(st.lists(st.integers(0, n - 1), max_size=most)), dtype=torch.int64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_batch_is_the_twin(kind, n):
    graph, twin = make(kind, n, seed=n)
    ids = torch.randint(n, (23,), generator=torch.Generator().manual_seed(n))
    want = torch.tensor([[twin(i, j) for j in ids.tolist()] for i in ids.tolist()])
    got = graph.batch(ids)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    torch.testing.assert_close(graph.between(ids[:5], ids[3:]), want[:5, 3:], rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=80)
@given(graphs(), st.data())
def test_laws(made, data):
    kind, n, graph, _ = made
    assert isinstance(graph, SimilarityGraph)
    assert len(graph) == n
    assert graph.name
    ids = draw_ids(data, n)
    target = graph.batch(ids)
    assert target.shape == (len(ids), len(ids))
    assert target.isfinite().all()
    assert torch.equal(target, target.T)
    assert torch.equal(target, graph.batch(ids)), "the same call gives the same target"
    order = torch.tensor(data.draw(st.permutations(range(len(ids)))), dtype=torch.int64)
    torch.testing.assert_close(graph.batch(ids[order]), target[order][:, order], rtol=0, atol=1e-6)
    for i, a in enumerate(ids.tolist()):
        for j, b in enumerate(ids.tolist()):
            if a == b:
                assert target[i, j] == target[i, i], "the same sample twice is like its diagonal"
    if kind not in ("matrix", "random_sample"):
        assert torch.equal(target.diagonal(), torch.ones(len(ids)))
        assert (target <= 1).all()
        assert (target >= (-1 if "embedding" in kind else 0)).all()
    if kind == "random_sample":
        assert (target > 0).all()
        assert (target < 1).all()


@settings(deadline=None, max_examples=80)
@given(graphs(), st.data())
def test_a_pair_is_the_same_in_every_batch(made, data):
    kind, n, graph, _ = made
    ids = draw_ids(data, n)
    pair = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=2)), dtype=torch.int64)
    before, after = draw_ids(data, n), draw_ids(data, n)
    k = len(before)
    alone = graph.batch(pair)
    among = graph.batch(torch.cat([before, pair, after, ids]))[k : k + 2, k : k + 2]
    tolerance = 0 if kind in LOOKED_UP else 1e-6
    torch.testing.assert_close(among, alone, rtol=0, atol=tolerance)
    torch.testing.assert_close(graph.between(pair[:1], pair[1:])[0, 0], alone[0, 1], rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_refused_by_name(kind):
    graph, _ = make(kind, 5, seed=1)
    for bad, words in [
        (torch.tensor([0, 5]), r"ids\[1\] is 5, but the graph has 5 samples: 0 to 4"),
        (torch.tensor([-1, 0]), r"ids\[0\] is -1"),
        (torch.tensor([0, 1], dtype=torch.int32), r"int32 of shape \(2,\)"),
        (torch.tensor([0.0, 1.0]), r"float32"),
        (torch.tensor([True, False, True, False, True]), r"bool"),
        (torch.tensor([[0, 1]]), r"shape \(1, 2\)"),
        (torch.tensor(0), r"shape \(\)"),
        ([0, 1], r"got list"),
    ]:
        with pytest.raises(ValueError, match=words):
            graph.batch(bad)
    good = torch.tensor([0])
    with pytest.raises(ValueError, match=r"rows\[0\] is 9"):
        graph.between(torch.tensor([9]), good)
    with pytest.raises(ValueError, match=r"columns\[0\] is 9"):
        graph.between(good, torch.tensor([9]))


def test_no_ids_give_an_empty_target():
    assert InstanceGraph(3).batch(torch.empty(0, dtype=torch.int64)).shape == (0, 0)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "3", None])
def test_a_count_is_refused(n):
    with pytest.raises(ValueError, match=f"n must be an integer of at least 1, got {n!r}"):
        InstanceGraph(n)


@pytest.mark.parametrize("build", [LabelGraph, lambda y: RandomGraph("class", labels=y)])
def test_labels_are_refused(build):
    for bad, words in [
        (torch.tensor([0, -2]), r"labels\[1\] is -2"),
        (torch.tensor([0.0]), "float32"),
        (torch.tensor([True]), "bool"),
        (torch.tensor([[0]]), r"shape \(1, 1\)"),
        (torch.empty(0, dtype=torch.int64), "at least 1, got 0"),
        ([0, 1], "got list"),
    ]:
        with pytest.raises(ValueError, match=words):
            build(bad)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_any_integer_type_is_a_label(dtype):
    target = LabelGraph(torch.tensor([1, 0, 1], dtype=dtype)).batch(torch.arange(3))
    assert target.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_a_matrix_is_refused_at_its_first_bad_entry():
    m = torch.eye(4)
    nan = m.clone()
    nan[2, 1], nan[3, 0] = float("nan"), float("inf")
    skew = m.clone()
    skew[1, 3], skew[3, 1], skew[3, 2] = 0.25, 0.5, 0.1
    for bad, words in [
        (nan, r"matrix\[2, 1\] is nan"),
        (torch.full((1, 1), 1e300, dtype=torch.float64), r"matrix\[0, 0\] is inf"),
        (skew, r"matrix\[1, 3\] is 0.25, but matrix\[3, 1\] is 0.5"),
        (torch.zeros(2, 3), r"square.*\(2, 3\)"),
        (torch.zeros(0, 0), r"\(0, 0\)"),
        (torch.zeros(4), r"\(4,\)"),
        (torch.eye(2, dtype=torch.complex64), "complex64"),
        ([[1.0]], "list"),
    ]:
        with pytest.raises(ValueError, match=words):
            MatrixGraph(bad)


def test_a_matrix_is_symmetric_to_a_tolerance():
    m = torch.tensor([[1.0, 0.5], [0.5 + 5e-6, 1.0]])
    target = MatrixGraph(m).batch(torch.arange(2))
    assert target[0, 1] == target[1, 0]
    assert target[0, 1].item() == pytest.approx(0.5, abs=5e-6)
    large = torch.tensor([[0.0, 3e38], [3e38, 0.0]])
    assert torch.equal(MatrixGraph(large).matrix, large)


def test_a_matrix_is_kept_apart_from_the_users():
    m = torch.eye(2, requires_grad=True)
    graph = MatrixGraph(m)
    with torch.no_grad():
        m.fill_(7)
    target = graph.batch(torch.arange(2))
    assert torch.equal(target, torch.eye(2))
    assert not target.requires_grad


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "sample"}, "takes n="),
        ({"kind": "sample", "n": 3, "labels": torch.tensor([0])}, "no labels"),
        ({"kind": "sample", "n": 0}, "n must be an integer of at least 1, got 0"),
        ({"kind": "class"}, "takes labels="),
        ({"kind": "class", "labels": torch.tensor([0]), "n": 1}, "no n"),
        ({"kind": "batch", "n": 3}, "kind must be 'class' or 'sample', got 'batch'"),
        ({"kind": "sample", "n": 3, "seed": 1.5}, "seed must be an integer, got 1.5"),
    ],
)
def test_a_random_graph_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        RandomGraph(**arguments)


def test_random_values_are_uniform_and_unrelated():
    ids = torch.arange(1500)
    values = RandomGraph("sample", n=1500, seed=3).batch(ids)
    upper = values[torch.triu(torch.ones_like(values), 1) == 1].double().sort().values
    n = len(upper)
    # Kolmogorov-Smirnov at the 0.1 % level: 1.95 / sqrt(n).
    assert (upper - (torch.arange(n) + 0.5) / n).abs().max() < 1.95 / n**0.5
    assert (values.diagonal().mean() - 0.5).abs() < 0.03
    assert len(values.diagonal().unique()) > 1490
    other = RandomGraph("sample", n=1500, seed=4).batch(ids)
    shifted = values.roll(1, 0)
    for unrelated in (other, shifted):
        correlation = torch.corrcoef(torch.stack([values.flatten(), unrelated.flatten()]))[0, 1]
        assert correlation.abs() < 0.01


def test_random_values_are_never_0_or_1():
    """They are the middles of 2^23 equal steps: odd multiples of 2^-24, exact in float32."""
    steps = RandomGraph("sample", n=300).batch(torch.arange(300)).double() * 2**24
    assert (steps % 2 == 1).all()


def test_the_seed_decides_a_random_graph():
    labels = torch.arange(30)
    for build in (
        lambda s: RandomGraph("class", labels=labels, seed=s),
        lambda s: RandomGraph("sample", n=30, seed=s),
    ):
        targets = [build(seed).batch(labels) for seed in (0, 0, 1, -1, 2**40)]
        assert torch.equal(targets[0], targets[1])
        for other in targets[2:]:
            assert (targets[0] != other).sum() > 500


def test_a_random_class_value_does_not_depend_on_the_other_classes():
    few = RandomGraph("class", labels=torch.tensor([3, 8])).batch(torch.arange(2))
    many = RandomGraph("class", labels=torch.tensor([8, 1, 2, 3, 20])).batch(torch.tensor([3, 0]))
    assert torch.equal(few, many)


def test_targets_do_not_depend_on_the_process():
    script = (
        "import torch\n"
        "from counterpoint.similarity import RandomGraph\n"
        "ids = torch.tensor([0, 5, 77, 999])\n"
        "print(RandomGraph('sample', n=1000, seed=9).batch(ids).tolist())\n"
        "print(RandomGraph('class', labels=torch.arange(1000) % 7, seed=9).batch(ids).tolist())\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ids = torch.tensor([0, 5, 77, 999])
    here = [
        RandomGraph("sample", n=1000, seed=9).batch(ids).tolist(),
        RandomGraph("class", labels=torch.arange(1000) % 7, seed=9).batch(ids).tolist(),
    ]
    assert there == "".join(f"{rows}\n" for rows in here)


@pytest.mark.parametrize("graph", [InstanceGraph(10**12), RandomGraph("sample", n=10**12)])
def test_a_trillion_samples_take_no_memory(graph):
    ids = torch.tensor([10**12 - 1, 0, 10**12 - 1, 123_456_789_012])
    target = graph.batch(ids)
    assert len(graph) == 10**12
    assert target[0, 2] == target[0, 0]
    assert len(target.unique()) > 1


def test_a_graph_of_ones_own():
    class Years(SimilarityGraph):
        name = "years"

        def __init__(self, year):
            self.year = year

        def __len__(self):
            return len(self.year)

        def _between(self, rows, columns):
            return torch.exp(-(self.year[rows, None] - self.year[columns]).abs())

    year = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
    target = Years(year).batch(torch.tensor([2, 0]))
    assert target.dtype == torch.float32
    assert not target.requires_grad
    assert target[0, 1].item() == pytest.approx(math.exp(-3))
    with pytest.raises(TypeError, match="_between"):
        type("Half", (SimilarityGraph,), {"__len__": lambda self: 1})()


def test_a_batch_is_symmetric_though_rounding_was_not():
    class Rounded(InstanceGraph):
        def _between(self, rows, columns):
            return super()._between(rows, columns) + 1e-7 * (rows[:, None] > columns)

    ids = torch.arange(6)
    assert not torch.equal(Rounded(6).between(ids, ids), Rounded(6).between(ids, ids).T)
    target = Rounded(6).batch(ids)
    assert torch.equal(target, target.T)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_on_the_device_of_the_ids(kind):
    graph, _ = make(kind, 40, seed=2)
    ids = torch.arange(40)
    target = graph.batch(ids.cuda())
    assert target.device.type == "cuda"
    torch.testing.assert_close(target.cpu(), graph.batch(ids), rtol=0, atol=1e-6)
