"""The class map against all pairs one by one, and neighbours against a full sort."""

import math

import pytest
import torch
from feature_sets import clusters, split
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.evaluate import class_map, neighbours


def slow_map(rows: list[list[float]], labels: list[int], classes: list[int]) -> list[list[float]]:
    """Mean cosine over all pairs of different samples."""
    out = []
    for a in classes:
        line = []
        for b in classes:
            pairs = [
                sum(x * y for x, y in zip(rows[i], rows[j], strict=True))
                / (math.hypot(*rows[i]) * math.hypot(*rows[j]))
                for i in range(len(rows))
                for j in range(len(rows))
                if i != j and labels[i] == a and labels[j] == b
            ]
            line.append(sum(pairs) / len(pairs))
        out.append(line)
    return out


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-20, 1.0, 1e15]))
def test_the_map_is_the_mean_over_pairs(seed: int, scale: float):
    h, y = clusters(25, 6, 3, noise=1.0, seed=seed)
    h, y = torch.cat([h, h[:3]]), torch.cat([y, torch.arange(3)])  # repeated rows are pairs as well
    y[3] = -1
    got = class_map(split(h * scale, y, 3))
    wanted = torch.tensor(slow_map(h.double().tolist(), y.tolist(), [0, 1, 2]))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(got, got.T)
    mixed = torch.randperm(28, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(class_map(split(h[mixed], y[mixed], 3)), got)


def test_classes_choose_and_order():
    h, y = clusters(30, 6, 4, noise=1.0, seed=1)
    y[y == 1] = 0  # class "1" is left without a sample
    full = torch.tensor(slow_map(h.double().tolist(), y.tolist(), [3, 0]))
    torch.testing.assert_close(class_map(split(h, y, 4), classes=["3", "0"]), full, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"a class needs two samples to have a pair, got '1' \(0\)"):
        class_map(split(h, y, 4))
    with pytest.raises(ValueError, match="column 'kind' has no class 'cat'; it has 0, 1, 2, 3"):
        class_map(split(h, y, 4), classes=["cat"])
    with pytest.raises(ValueError, match="each class once"):
        class_map(split(h, y, 4), classes=["0", "0"])


def test_rows_of_zeros_have_similarity_zero():
    got = class_map(split(torch.tensor([[1.0, 0], [0, 0], [2, 0], [0, 0]]), [0, 0, 1, 1]))
    assert got.tolist() == [[0.0, 0.25], [0.25, 0.0]]


def test_neighbours_are_those_of_a_full_sort():
    h, y = clusters(700, 8, 5, noise=1.0, seed=2)
    unit = h.double() / h.double().norm(dim=1, keepdim=True)
    full = (unit @ unit.T).fill_diagonal_(-2)
    queries = torch.randperm(700, generator=torch.Generator().manual_seed(0))[:600]  # more than one block
    order = full[queries].sort(dim=1, descending=True)
    for k in (1, 6, 699):
        indices, similarities = neighbours(split(h, y), queries, k)
        assert indices.shape == (600, k)
        torch.testing.assert_close(similarities.double(), order.values[:, :k], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(full[queries[:, None], indices], order.values[:, :k], rtol=1e-5, atol=1e-5)
        assert not (indices == queries[:, None]).any()


def test_a_query_among_many_equals_is_left_out_too():
    features = split(torch.ones(9, 3), [0, 1] * 4 + [0])
    indices, similarities = neighbours(features, [0, 4, 8], k=3)
    assert indices.tolist() == [[1, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert torch.allclose(similarities, torch.ones(3, 3))


def test_no_queries_give_no_neighbours():
    indices, similarities = neighbours(split(torch.eye(3), [0, 1, 2]), [], k=2)
    assert indices.shape == similarities.shape == (0, 2)


@pytest.mark.parametrize(
    ("queries", "k", "says"),
    [
        ([3], 1, "query 3 is not among the 3 samples"),
        ([-1], 1, "query -1 is not among the 3 samples"),
        ([0], 3, "k must be between 1 and the 2 other samples, got 3"),
        ([0], 0, "k must be between 1 and the 2 other samples, got 0"),
    ],
)
def test_refuses_by_name(queries: list[int], k: int, says: str):
    with pytest.raises(ValueError, match=says):
        neighbours(split(torch.eye(3), [0, 1, 2]), queries, k)
