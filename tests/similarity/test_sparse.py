"""Sparse graphs against dense twins in plain loops."""

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from counterpoint.similarity import EmbeddingGraph, InstanceGraph, SparseGraph
from counterpoint.similarity import sparse as module


def slow_nearest(x: torch.Tensor, k: int) -> torch.Tensor:
    """The dense matrix, one sample at a time."""
    n = len(x)
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    g = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j: -float(unit[i] @ unit[j]))
        for j in others[:k]:
            if unit[i] @ unit[j] > 0:
                g[i, j] = g[j, i] = unit[i] @ unit[j]
    return g.fill_diagonal_(1.0)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_nearest_neighbours_are_exact_across_blocks(k, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7)
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(k))
    graph = SparseGraph.nearest(EmbeddingGraph(x), k)
    torch.testing.assert_close(graph.batch(torch.arange(40)).double(), slow_nearest(x, k), atol=1e-6, rtol=0)
    assert graph.name == f"{k} nearest in embeddings"


@pytest.mark.parametrize("k", [1, 5, 20])
def test_neighbours_are_looked_for_a_tile_at_a_time(k, monkeypatch):
    """Against all samples at once, a block of 1,024 of 12,000,000 would take 49 GB."""
    monkeypatch.setattr(module, "BLOCK", 7)
    monkeypatch.setattr(module, "WIDE", 9)
    asked = []

    class Watched(EmbeddingGraph):
        def _between(self, rows, columns):
            asked.append((len(rows), len(columns)))
            return super()._between(rows, columns)

    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(k))
    graph = SparseGraph.nearest(Watched(x), k)
    torch.testing.assert_close(graph.batch(torch.arange(40)).double(), slow_nearest(x, k), atol=1e-6, rtol=0)
    assert set(asked) == {(7, 9), (7, 4), (5, 9), (5, 4)}


def test_a_batch_is_a_block_of_the_edges_in_a_loop():
    g = torch.Generator().manual_seed(0)
    rows, columns = torch.randint(0, 30, (2, 80), generator=g)
    weights = torch.rand(80, generator=g) + 0.1
    dense = torch.zeros(30, 30)
    for a, b, w in zip(rows.tolist(), columns.tolist(), weights.tolist(), strict=True):
        if a != b:
            dense[a, b] = dense[b, a] = max(w, float(dense[a, b]))
    dense.fill_diagonal_(1.0)
    graph = SparseGraph(rows, columns, weights, n=30)
    ids = torch.tensor([3, 29, 0, 3, 17, 17, 5])
    assert torch.equal(graph.batch(ids), dense[ids][:, ids])
    assert torch.equal(graph.between(ids[:2], torch.arange(30)), dense[ids[:2]])
    assert graph.between(ids, ids[:0]).shape == (7, 0)
    assert SparseGraph(rows[:0], columns[:0], n=3).batch(torch.arange(3)).equal(torch.eye(3))


def test_a_large_graph_stays_small():
    n = 300_000
    ids = torch.arange(n - 1)
    graph = SparseGraph(ids, ids + 1, n=n)
    assert graph.matrix.nnz == 2 * (n - 1)
    assert graph.batch(torch.tensor([n - 1, 0, n - 2]))[0].tolist() == [1, 0, 1]


def test_edge_lists_are_read_by_key(tmp_path):
    text = "a,b,weight,note\nx,y,0.5,\ny,x,0.25,\ny,z,1,\nx,other,0.9,\n"
    (tmp_path / "e.csv").write_text(text)
    graph = SparseGraph.read(tmp_path / "e.csv", ["x", "y", "z"])
    want = [[1, 0.5, 0], [0.5, 1, 1], [0, 1, 1]]
    assert graph.batch(torch.arange(3)).tolist() == want
    table = pa.table({"a": ["x", "y"], "b": ["y", "z"], "weight": [0.5, 1.0]})
    parquet.write_table(table, tmp_path / "e.parquet")
    assert SparseGraph.read(tmp_path / "e.parquet", ["x", "y", "z"]).batch(torch.arange(3)).tolist() == want


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\nx,y\n", "lacks the column 'weight'"),
        ("a,b,weight\nx,y,far\n", "row 1: weight must be a number, got 'far'"),
        ("a,b,weight\nx,y,1\nx,y,nan\n", "row 2: weight must be finite and not 0, got 'nan'"),
        ("a,b,weight\np,q,1\n", "no edge between two of the 2 samples, such as 'x'"),
    ],
)
def test_bad_edge_lists_are_named(tmp_path, text, words):
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        SparseGraph.read(tmp_path / "e.csv", ["x", "y"])
    with pytest.raises(ValueError, match="must be a file that ends in"):
        SparseGraph.read(tmp_path / "absent.csv", ["x", "y"])


ONE = torch.tensor([0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SparseGraph(ONE, torch.tensor([5]), n=3), r"columns\[0\] is 5, but the graph has 3"),
        (lambda: SparseGraph(ONE, ONE, torch.tensor([1.0, 2.0]), n=3), "equally many, got 1, 1 and 2"),
        (lambda: SparseGraph(ONE, ONE, torch.tensor([float("nan")]), n=3), r"weights\[0\] is nan"),
        (lambda: SparseGraph(ONE, ONE, torch.tensor([0.0]), n=3), r"weights\[0\] is 0: "),
        (lambda: SparseGraph(ONE, ONE, n=0), "n must be an integer of at least 1"),
        (lambda: SparseGraph.nearest(InstanceGraph(3), 3), "k is 3, but there are only 2 other samples"),
        (lambda: SparseGraph.nearest(InstanceGraph(3), 1, least=1.0), r"least must lie in \[0, 1\)"),
    ],
)
def test_what_a_sparse_graph_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        make()
