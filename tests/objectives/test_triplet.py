import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import Triplet, triplet


def test_by_hand():
    # cos(z0, z1) = [[0.8, 0], [0.6, 1]]; anchors of z0: gaps 0.8 and 0.4; anchors of z1: 0.2 and 1.
    z0, z1 = torch.eye(2), torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    loss, log = Triplet(margin=0.5).with_log(z0, z1)
    assert loss.item() == pytest.approx((0 + 0.1 + 0.3 + 0) / 4, abs=1e-6)
    assert float(log["active"]) == 0.5
    assert float(log["accuracy"]) == 1
    assert int(log["candidates"]) == 2
    assert "chance" not in log


def test_zero_once_every_gap_is_the_margin():
    z = torch.eye(5, requires_grad=True)
    loss, log = Triplet(margin=0.99).with_log(z, z)
    loss.backward()
    assert loss.item() == 0
    assert float(log["active"]) == 0
    assert (z.grad == 0).all()


def test_collapsed_batch_is_the_margin():
    z = torch.ones(6, 3, dtype=torch.float64)
    assert triplet(z, z, margin=0.3).item() == pytest.approx(0.3, rel=1e-12)


def test_one_sample_has_no_negative_and_counts_0():
    views = random_views(2, 1)
    loss, log = Triplet().with_log(*views)
    loss.backward()
    assert loss.item() == 0
    assert float(log["active"]) == 0
    assert all((z.grad == 0).all() for z in views)


def test_tied_negatives_share_the_gradient():
    anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    other = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]], dtype=torch.float64, requires_grad=True)
    triplet(anchor, other, margin=0.5).backward()
    torch.testing.assert_close(other.grad[1] * torch.tensor([1.0, -1.0], dtype=torch.float64), other.grad[2])


def test_samples_of_one_id_are_not_negatives():
    z = torch.eye(3)[[0, 1, 0]]
    assert triplet(z, z).item() > 0
    assert triplet(z, z, ids=torch.tensor([0, 1, 0])).item() == 0
    assert triplet(z, z, ids=torch.tensor([0, 0, 0])).item() == 0


def test_with_ids_the_farthest_positive_counts():
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    far = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    loss = triplet(far, far, margin=0.1, ids=torch.tensor([0, 0, 1]))
    # Positive and negative of anchor 0: 0.6 and 0; of anchor 1: 0.6 and 0.8; of anchor 2: 1 and 0.8.
    assert loss.item() == pytest.approx((0 + 0.3 + 0) / 3, abs=1e-6)
    assert triplet(z, z, margin=0.1).item() == 0
