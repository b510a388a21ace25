"""Taxonomies against networkx and plain definitions, their files, and what they refuse."""

import json
import random

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.similarity.taxonomy import Taxonomy, TaxonomyGraph, place_classes, read_taxonomy

KINDS = {"cat": ["animal", "pet"], "dog": ["animal"], "bus": ["thing"], "animal": ["thing"], "pet": ["thing"]}


def random_dag(seed: int, n: int) -> dict[str, list[str]]:
    """Node k has one to three parents among those before it; node 0 is the root."""
    rng = random.Random(seed)
    dag = {"0": []}
    for k in range(1, n):
        dag[str(k)] = [str(p) for p in rng.sample(range(k), min(k, rng.choice([1, 1, 1, 2, 3])))]
    return dag


def slow(parents: dict[str, list[str]], a: str, b: str, measure: str, depth: int) -> float:
    """One pair, by networkx's paths and the definitions in words."""
    if a == b:
        return 1.0
    graph = nx.DiGraph([(node, above) for node, aboves in parents.items() for above in aboves])
    root = next(node for node in graph if graph.out_degree(node) == 0)

    def up(x):
        return nx.single_source_shortest_path_length(graph, x)

    def distance(x, y):
        return min(up(x)[s] + up(y)[s] for s in up(x).keys() & up(y).keys())

    if measure == "path":
        return 1 / (1 + distance(a, b))
    if measure == "lch":
        return max(0.0, -np.log((1 + distance(a, b)) / (2 * depth)) / np.log(2 * depth))

    def longest(x):
        return 1 + max(map(longest, parents[x])) if parents[x] else 0

    shared = up(a).keys() & up(b).keys()
    deepest = max(up(s)[root] for s in shared)
    ties = sorted(s for s in shared if up(s)[root] == deepest)
    subsumers = [x for x in (a, b) if x in ties] or ties[:1]
    values = []
    for s in subsumers:
        p = longest(s) + 1
        values.append(2 * p / (distance(a, s) + distance(b, s) + 2 * p))
    # Where each of the two is a deepest shared ancestor, they are one node.
    return values[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.sampled_from(["path", "lch", "wup"]))
def test_every_measure_is_that_of_the_slow_definition(seed, n, measure):
    dag = random_dag(seed, n)
    kinds = Taxonomy(dag)
    nodes = random.Random(seed).sample(sorted(dag), min(n, 12))
    found = kinds.similarity(nodes, measure)
    want = torch.tensor([[slow(dag, a, b, measure, kinds.depth) for b in nodes] for a in nodes])
    torch.testing.assert_close(found, want, atol=1e-6, rtol=0, check_dtype=False)
    assert torch.equal(found, found.T)
    assert bool((found.diagonal() == 1).all())
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


def test_nodes_may_come_twice_and_in_any_order():
    kinds = Taxonomy(KINDS)
    plain = kinds.similarity(["cat", "dog", "bus"], "wup")
    index = [2, 0, 0, 1]
    assert torch.equal(kinds.similarity(["bus", "cat", "cat", "dog"], "wup"), plain[index][:, index])


def test_a_graph_is_looked_up_by_class():
    labels = torch.tensor([0, 1, -1, 2, 0])
    graph = TaxonomyGraph(labels, ["cat", "dog", "bus"], Taxonomy(KINDS), "path")
    ids = torch.tensor([4, 2, 1, 0, 4])
    batch = graph.batch(ids)
    assert torch.equal(batch, graph.between(ids, ids))
    assert batch[0].tolist() == pytest.approx([1, 0, 1 / 3, 1, 1])
    assert graph.name == "taxonomy (path)"


def test_a_cycle_is_printed():
    with pytest.raises(
        ValueError,
        match=r"has a cycle: (a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)|"
        r"has a cycle: (a -> c -> b -> a|c -> b -> a -> c|b -> a -> c -> b)",
    ):
        Taxonomy({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})
    with pytest.raises(ValueError, match="has a cycle: a -> a"):
        Taxonomy({"a": ["a"]})


def test_two_roots_are_refused_or_joined():
    two = {"cat": ["animal"], "bus": ["machine"]}
    with pytest.raises(ValueError, match=r"has 2 roots: 'animal', 'machine'; .*virtual_root: true"):
        Taxonomy(two)
    joined = Taxonomy(two, virtual_root=True)
    assert joined.similarity(["cat", "bus"], "path")[0, 1] == pytest.approx(1 / 5)
    assert joined.depth == 2
    # One root needs none: the distances are those without.
    assert torch.equal(
        Taxonomy(KINDS, True).similarity(["cat", "bus"]), Taxonomy(KINDS).similarity(["cat", "bus"])
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Taxonomy({}), "no nodes"),
        (lambda: Taxonomy(KINDS).similarity(["cat", "dgo"]), "no node 'dgo'.*did you mean 'dog'"),
        (lambda: Taxonomy(KINDS).similarity(["cat"], "wu"), "unknown measure 'wu'.*'wup'"),
        (lambda: Taxonomy(KINDS, depth=1), "depth is 1, but a path of these nodes is 2 long"),
        (lambda: place_classes(["cat", "dgo", "bsu"], KINDS, "t"), "no class 'dgo': .*'dog'.*and no 'bsu'"),
    ],
)
def test_what_a_taxonomy_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_every_file_form_gives_the_same_taxonomy(tmp_path):
    edges = [(child, parent) for child, parents in KINDS.items() for parent in parents]
    (tmp_path / "k.csv").write_text("child,parent,note\n" + "".join(f"{c},{p},x\n" for c, p in edges))
    (tmp_path / "k.tsv").write_text("child\tparent\n" + "".join(f"{c}\t{p}\n" for c, p in edges))
    table = pa.table({"child": [c for c, _ in edges], "parent": [p for _, p in edges]})
    parquet.write_table(table, tmp_path / "k.parquet")
    nested = {"thing": {"animal": ["cat", "dog"], "pet": {"cat": None}, "bus": None}}
    (tmp_path / "k.json").write_text(json.dumps(nested))
    (tmp_path / "k.yaml").write_text("thing:\n  animal: [cat, dog]\n  pet: cat\n  bus:\n")
    want = {node: set(above) for node, above in Taxonomy(KINDS).parents.items()}
    for suffix in ("csv", "tsv", "parquet", "json", "yaml"):
        read = read_taxonomy(tmp_path / f"k.{suffix}")
        assert {node: set(above) for node, above in read.parents.items()} == want, suffix


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "child,up\na,b\n", "lacks the column 'parent'"),
        ("a.csv", "child,parent\na,b\n,b\n", "row 2: child is '' and parent is 'b'"),
        ("a.csv", "child,parent\n", "has no rows"),
        ("a.csv", "child,parent\na,b\nb,a\n", r"a\.csv: the taxonomy has a cycle: "),
        ("a.txt", "x", "must end in"),
        ("a.json", "{", "cannot be read"),
        ("a.json", "[1]", "names nested in names"),
        ("a.yaml", "a: [true]", "a name is text, got True under 'a'"),
        ("a.yaml", "a: 1.5", "'a' must hold names or nothing, got 1.5"),
        ("a.parquet", "x", "not a Parquet file"),
        ("a.yaml", "a: &x {b: *x}", "has a cycle: b -> b"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_taxonomy(tmp_path / name)
    with pytest.raises(ValueError, match="there is no file"):
        read_taxonomy(tmp_path / "absent.csv")
