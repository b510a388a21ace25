"""Sums, products, clips and shuffles against the dense matrices, and the laws every graph keeps."""

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
    MetadataGraph,
    RandomGraph,
    ShuffledGraph,
    SparseGraph,
    SumGraph,
    Taxonomy,
    TaxonomyGraph,
)

N = 12
KINDS = Taxonomy({"cat": ["animal"], "dog": ["animal"], "animal": ["thing"], "bus": ["thing"]})
LABELS = torch.tensor([0, 1, 2, 0, -1, 1, 2, 2, 0, -1, 1, 0])


def parts(seed: int):
    g = torch.Generator().manual_seed(seed)
    size = torch.randn(N, generator=g)
    size[3] = float("nan")
    return {
        "labels": LabelGraph(LABELS),
        "vectors": EmbeddingGraph(torch.randn(N, 3, generator=g)),
        "taxonomy": TaxonomyGraph(LABELS, ["cat", "dog", "bus"], KINDS, "wup"),
        "classes": ClassGraph(LABELS, KINDS.similarity(["cat", "dog", "bus"])),
        "metadata": MetadataGraph({"size": size}, {"label": LABELS}, weights={"size": 2.0}),
        "sparse": SparseGraph.nearest(EmbeddingGraph(torch.randn(N, 3, generator=g)), k=2),
        "random": RandomGraph("class", labels=LABELS, seed=seed),
    }


def made(seed: int):
    p = parts(seed)
    return {
        **p,
        "sum": 0.5 * p["vectors"] + 0.25 * p["taxonomy"] + 0.25 * p["metadata"],
        "product": p["vectors"] * p["metadata"],
        "clip": p["vectors"].clip(0, 0.5),
        "power": p["taxonomy"] ** 2,
        "threshold": p["classes"].at_least(0.3),
        "shuffled": ShuffledGraph(p["taxonomy"], 0.5, seed),
        "nested": (p["labels"] + p["sparse"]).clip(0, 1) * p["vectors"] ** 0.5,
    }


@pytest.mark.parametrize("kind", made(0))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), ids=st.lists(st.integers(0, N - 1), min_size=1, max_size=20))
def test_laws_of_every_graph(kind, seed, ids):
    graph, ids = made(seed)[kind], torch.tensor(ids)
    whole, batch = graph.batch(torch.arange(N)), graph.batch(ids)
    assert torch.equal(batch, batch.T)
    # Any batch is the whole at its ids: repeats, any order, any length.
    torch.testing.assert_close(batch, whole[ids][:, ids], atol=1e-6, rtol=0)
    torch.testing.assert_close(batch, graph.between(ids, ids), atol=1e-6, rtol=0)
    torch.testing.assert_close(graph.between(ids[:3], ids), batch[:3], atol=1e-6, rtol=0)
    assert bool((batch.diagonal()[:, None] >= batch - 1e-6).all())


@pytest.mark.parametrize("seed", [0, 1])
def test_combined_graphs_are_the_dense_ones(seed):
    p = parts(seed)
    a, b, ids = p["vectors"], p["metadata"], torch.arange(N)
    x, y = a.batch(ids), b.batch(ids)
    for graph, want in [
        (0.3 * a + b * 2, 0.3 * x + 2 * y),
        (a * b, x * y),
        (a.clip(-0.1, 0.6), x.clamp(-0.1, 0.6)),
        (a**1.5, x.clamp_min(0) ** 1.5),
        (b.at_least(0.4), torch.where(y < 0.4, 0.0, y)),
    ]:
        torch.testing.assert_close(graph.batch(ids), want, atol=1e-6, rtol=0)


def test_names_say_what_was_combined():
    a, b = LabelGraph(LABELS, "fine"), InstanceGraph(N)
    assert (0.5 * a + b).name == "0.5 * fine + instances"
    assert ((a + b) * b).name == "(fine + instances) * instances"
    assert (a.clip(0, 1) ** 2).name == "(fine, clipped to 0 .. 1) ** 2"
    assert ShuffledGraph(a, 0.25).name == "fine with 25 % shuffled"
    assert 2 * (a + b) is not None
    assert (2 * (a + b)).weights == (2.0, 2.0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_samples_gets_the_relations_of_others(share):
    labels = torch.arange(1000)
    graph = ShuffledGraph(LabelGraph(labels), share, seed=3)
    wrong = graph.sources != torch.arange(1000)
    assert int(wrong.sum()) == round(share * 1000)
    # Nothing is lost or doubled, and the seed decides.
    assert torch.equal(graph.sources.sort().values, torch.arange(1000))
    assert torch.equal(graph.sources, ShuffledGraph(LabelGraph(labels), share, seed=3).sources)
    if share:
        assert not torch.equal(graph.sources, ShuffledGraph(LabelGraph(labels), share, seed=4).sources)


def test_shuffling_a_graph_is_shuffling_its_labels():
    ids = torch.arange(N)
    graph = ShuffledGraph(LabelGraph(LABELS), 0.5, seed=1)
    assert torch.equal(graph.batch(ids), LabelGraph(LABELS[graph.sources]).batch(ids))
    assert not torch.equal(graph.batch(ids), LabelGraph(LABELS).batch(ids))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LabelGraph(LABELS) + InstanceGraph(3), "'labels' has 12 of them and 'instances' has 3"),
        (lambda: LabelGraph(LABELS) * InstanceGraph(3), "a product needs graphs over the same samples"),
        (lambda: SumGraph([], []), "at least one graph"),
        (lambda: SumGraph([InstanceGraph(2)], []), "one weight per graph, got 1 graphs and 0"),
        (lambda: SumGraph(["x"], [1.0]), "similarity graphs, got str"),
        (lambda: float("nan") * InstanceGraph(2), "weights must be finite, got nan"),
        (lambda: 1e39 * InstanceGraph(2), r"weights must be finite, got 1e\+39"),
        (lambda: InstanceGraph(2).clip(1, 0), "low <= high, got low=1 and high=0"),
        (lambda: InstanceGraph(2).clip(float("nan")), "low <= high"),
        (lambda: InstanceGraph(2).clip(float("inf")), "a finite value to keep, got low=inf and high=inf"),
        (lambda: InstanceGraph(2).clip(high=-float("inf")), "a finite value to keep"),
        (lambda: InstanceGraph(2) ** 0, "exponent must be a finite number above 0, got 0"),
        (lambda: InstanceGraph(2).at_least(float("inf")), "least must be a finite number"),
        (lambda: ShuffledGraph(InstanceGraph(2), 1.1), r"share must lie in \[0, 1\], got 1\.1"),
        (lambda: ShuffledGraph(InstanceGraph(2), 0.5, True), "seed must be an integer, got True"),
    ],
)
def test_what_algebra_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_no_sum_with_what_is_no_graph():
    with pytest.raises(TypeError):
        InstanceGraph(2) + 1
    with pytest.raises(TypeError):
        InstanceGraph(2) * "x"
    assert isinstance(MatrixGraph(torch.eye(2)) * 2, SumGraph)
