"""The tiles of a batch are the parts of its whole similarity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.objectives import XCLR
from counterpoint.similarity import (
    ClassGraph,
    EmbeddingGraph,
    InstanceGraph,
    LabelGraph,
    MatrixGraph,
    RandomGraph,
    SimilarityGraph,
)


def graphs() -> dict[str, SimilarityGraph]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, -1, 2, 0, 1, -1, 2, 0, 0, 1, 2])
    vectors = torch.randn(12, 6, generator=generator)
    table = torch.tensor([[1.0, 0.5, -0.2], [0.5, 0.9, 0.1], [-0.2, 0.1, 1.0]])
    square = torch.randn(12, 12, generator=generator)
    return {
        "instances": InstanceGraph(12),
        "labels": LabelGraph(labels),
        "classes": ClassGraph(labels, table),
        "vectors": EmbeddingGraph(vectors),
        "shared vectors": EmbeddingGraph(vectors[:5].half(), index=torch.arange(12) % 5),
        "matrix": MatrixGraph(square + square.T),
        "random classes": RandomGraph("class", labels=labels),
        "random samples": RandomGraph("sample", n=12),
        "sum": 0.5 * EmbeddingGraph(vectors) + 2.0 * LabelGraph(labels),
    }


EACH = pytest.mark.parametrize("name", graphs())


@EACH
@settings(deadline=None, max_examples=10)
@given(
    ids=st.lists(st.integers(0, 11), min_size=1, max_size=15),
    ends=st.tuples(*[st.integers(0, 15)] * 4),
)
def test_tiles_are_parts_of_the_batch(name: str, ids: list[int], ends: tuple[int, int, int, int]):
    graph, n = graphs()[name], len(ids)
    ids = torch.tensor(ids)
    a, b, c, d = (min(end, n) for end in ends)
    rows, columns = slice(min(a, b), max(a, b)), slice(min(c, d), max(c, d))
    tiles, whole = graph.tiles(ids), graph.batch(ids)
    assert len(tiles) == n
    torch.testing.assert_close(tiles.tile(rows, columns), whole[rows, columns], rtol=1e-6, atol=1e-6)
    assert torch.equal(tiles.tile(slice(0, n), slice(0, n)), whole)
    if tiles.bounds is not None:
        low, high = tiles.bounds
        assert low <= float(whole.min()) <= float(whole.max()) <= high


@EACH
def test_an_objective_takes_them(name: str):
    graph, ids = graphs()[name], torch.tensor([3, 0, 7, 7, 11, 2, 5])
    z = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    expected = XCLR(chunk_size=None)(z, z.flip(1), target=graph.batch(ids))
    for chunk in (2, 100):
        loss = XCLR(chunk_size=chunk)(z, z.flip(1), target=graph.tiles(ids))
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)


def test_vectors_are_looked_up_once():
    graph = EmbeddingGraph(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    tiles = graph.tiles(torch.tensor([9, 4]))
    graph.vectors.mul_(float("nan"))
    assert tiles.tile(slice(0, 1), slice(0, 2)).isfinite().all()


def test_ids_that_are_none():
    with pytest.raises(ValueError, match="ids"):
        LabelGraph(torch.tensor([0, 1])).tiles(torch.tensor([2]))
