import math

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import NTXent
from counterpoint.objectives.row_objective import RowObjective, accuracy, target_entropy
from counterpoint.objectives.rows import Rows


def test_accuracy_counts_anchors_whose_best_candidate_is_a_positive():
    scores = torch.tensor([[-math.inf, 2.0, 1.0], [0.5, -math.inf, 0.4], [1.0, 3.0, -math.inf]])
    assert float(accuracy(Rows(scores, torch.tensor([1, 2, 1]), 2))) == pytest.approx(2 / 3)


def test_accuracy_of_a_soft_target_counts_any_candidate_of_maximal_target():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    target = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.399999, 0.400001, 0.2]])
    assert float(accuracy(Rows(scores, target, 3))) == pytest.approx(2 / 3)


def test_accuracy_of_a_collapsed_batch_is_chance():
    z = torch.ones(8, 3)
    _, log = NTXent().with_log(z, z)
    assert float(log["accuracy"]) == pytest.approx(1 / 15)
    _, log = NTXent().with_log(z, z, z)
    assert float(log["accuracy"]) == pytest.approx(2 / 23)


def test_target_entropy_of_index_and_distribution():
    assert float(target_entropy(torch.tensor([3, 1]))) == 0
    target = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    assert float(target_entropy(target)) == pytest.approx(math.log(4) / 2)


def test_a_row_objective_has_to_define_rows():
    with pytest.raises(TypeError, match=r"abstract method .*rows"):
        RowObjective()(*random_views(2, 3))
