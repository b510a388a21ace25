import math

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives.rows import (
    Rows,
    positive_and_negatives,
    scores_across_views,
    scores_all_views,
    target_across_views,
    target_all_views,
    target_soft,
    unit_views,
)


def test_views_are_stacked_in_blocks_and_self_is_excluded():
    z0, z1 = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    scores = scores_all_views(unit_views("test", [z0, z1]), tau=0.5)
    no = -math.inf
    expected = [[no, 0, 0, 2], [0, no, 2, 0], [0, 2, no, 0], [2, 0, 0, no]]
    assert torch.equal(scores, torch.tensor(expected, dtype=torch.float32))


def test_two_views_have_an_index_for_a_target():
    assert target_all_views(None, random_views(2, 3)).tolist() == [3, 4, 5, 0, 1, 2]


def test_three_views_have_a_uniform_target():
    target = target_all_views(None, random_views(3, 2))
    assert target[0].tolist() == [0, 0, 0.5, 0, 0.5, 0]
    assert target[3].tolist() == [0, 0.5, 0, 0, 0, 0.5]


def test_same_samples_share_the_target():
    same = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    target = target_all_views(same, random_views(2, 3, dtype=torch.float32))
    torch.testing.assert_close(target[0] * 3, torch.tensor([0.0, 1, 0, 1, 1, 0]))
    torch.testing.assert_close(target[5], torch.tensor([0.0, 0, 1, 0, 0, 0]))


def test_an_anchor_without_positives_has_an_empty_target():
    target = target_all_views(torch.eye(2, dtype=torch.bool), random_views(1, 2))
    assert torch.equal(target, torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("both_ways", "pairs"),
    [(False, [(0, 1), (0, 2), (1, 2)]), (True, [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)])],
)
def test_pairs_of_views_lie_one_below_the_other(both_ways: bool, pairs: list[tuple[int, int]]):
    z = unit_views("test", random_views(3, 4))
    scores = scores_across_views(z, 0.5, both_ways)
    expected = torch.cat([z[a] @ z[b].T / 0.5 for a, b in pairs])
    torch.testing.assert_close(scores, expected)
    assert target_across_views(None, scores).tolist() == [0, 1, 2, 3] * len(pairs)


def test_soft_target_is_a_softmax_without_self():
    similarity = torch.tensor([[1.0, 0.2], [0.4, 0.9]])
    target = target_soft(similarity, tau_s=0.5, v=2)
    weights = torch.tensor([math.exp(0.4), math.exp(2.0), math.exp(0.4)])
    torch.testing.assert_close(target[0, 1:], weights / weights.sum())
    assert (target.diagonal() == 0).all()
    torch.testing.assert_close(target.sum(1), torch.ones(4))


def test_vectors_too_short_to_have_a_direction_score_0():
    z = torch.tensor([[1e-13, 0.0], [1e-11, 0.0]], dtype=torch.float64)
    (unit,) = unit_views("test", [z], fewest=1)
    assert unit.tolist() == [[0, 0], [1, 0]]


def test_positive_and_negatives_of_index_and_distribution():
    scores = torch.tensor([[3.0, 1.0, 2.0]])
    positive, negatives = positive_and_negatives(Rows(scores, torch.tensor([2]), 3))
    assert (positive.tolist(), negatives.tolist()) == ([2.0], [[3.0, 1.0, -math.inf]])
    positive, negatives = positive_and_negatives(Rows(scores, torch.tensor([[0.5, 0.0, 0.5]]), 3))
    assert (positive.tolist(), negatives.tolist()) == ([2.0], [[-math.inf, 1.0, -math.inf]])


@pytest.mark.parametrize("name", ["ntxent", "infonce"])
def test_one_table_of_probabilities_is_all_that_waits_for_backward(name: str):
    from counterpoint.objectives import OBJECTIVES

    n, sizes = 64, []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        OBJECTIVES[name]()(*random_views(2, n, d=4, dtype=torch.float32))
    table = (2 * n) ** 2 if name == "ntxent" else n**2
    assert [size for size in sizes if size >= table] == [table]


def test_a_huge_similarity_gives_no_nan():
    similarity = torch.tensor([[1e38, 0.0, -1e38], [0.0, 1e38, 5.0], [1.0, 2.0, 3.0]])
    for v in (1, 2):
        target = target_soft(similarity, 0.01, v)
        torch.testing.assert_close(target.sum(1), torch.ones(3 * v))
