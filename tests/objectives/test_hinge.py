import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import Hinge, hinge


def test_by_hand():
    # cos = [[1, 0.8, 0], [0.8, 1, 0.6], [0, 0.6, 1]]: 0.5 is violated by 0.3, 0.3, 0.1 and 0.1.
    z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    loss, log = Hinge(margin=0.5).with_log(z, z)
    assert loss.item() == pytest.approx((0.3 + 0.3 + 0.1 + 0.1) / 6, abs=1e-6)
    assert float(log["active"]) == pytest.approx(4 / 6)
    assert float(log["accuracy"]) == 1
    assert int(log["candidates"]) == 3
    assert "chance" not in log


def test_zero_once_every_gap_is_the_margin():
    z = torch.eye(5, requires_grad=True)
    loss = hinge(z, z, margin=0.99)
    loss.backward()
    assert loss.item() == 0
    assert (z.grad == 0).all()


def test_collapsed_batch_is_the_margin():
    z = torch.ones(6, 3, dtype=torch.float64)
    assert hinge(z, z, margin=0.3).item() == pytest.approx(0.3, rel=1e-12)


def test_one_sample_has_no_negative_and_counts_0():
    views = random_views(2, 1)
    loss = hinge(*views)
    loss.backward()
    assert loss.item() == 0
    assert all((z.grad == 0).all() for z in views)


def test_samples_of_one_id_are_not_negatives():
    z = torch.eye(3)[[0, 1, 0]]
    assert hinge(z, z).item() > 0
    assert hinge(z, z, ids=torch.tensor([0, 1, 0])).item() == 0


def test_each_anchor_has_the_same_weight_whatever_its_number_of_negatives():
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])
    # Anchors 0 and 1 have one negative each, anchor 2 has two; every violation of 0.3 is 0.1.
    assert hinge(z, z, margin=0.3, ids=torch.tensor([0, 0, 1])).item() == pytest.approx(0.1, abs=1e-6)
