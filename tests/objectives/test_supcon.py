import math

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import SupCon, ntxent, supcon


def test_anchors_without_positives_are_left_out_and_counted():
    (z,) = random_views(1, 5)
    labels = torch.tensor([3, 0, 3, 1, -1])
    loss, log = SupCon().with_log(z, labels=labels)
    assert int(log["anchors_skipped"]) == 3
    assert int(log["candidates"]) == 4
    unit = torch.nn.functional.normalize(z, dim=1)
    log_p = (unit @ unit.T / 0.1).fill_diagonal_(-math.inf).log_softmax(1)
    torch.testing.assert_close(loss, -(log_p[0, 2] + log_p[2, 0]) / 2)


def test_a_skipped_anchor_is_still_a_candidate():
    (z,) = random_views(1, 4)
    supcon(z, labels=torch.tensor([0, 0, 1, -1])).backward()
    assert (z.grad[2:].abs().sum(1) > 0).all()


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [-1, -1, -1, -1]])
def test_no_anchor_with_a_positive_is_refused(labels: list[int]):
    (z,) = random_views(1, 4)
    with pytest.raises(ValueError, match="none of the 4 anchors has a positive"):
        supcon(z, labels=torch.tensor(labels))


def test_one_view_of_one_sample_is_refused():
    with pytest.raises(ValueError, match="none of the 1 anchors has a positive"):
        supcon(torch.ones(1, 2), labels=torch.tensor([0]))


def test_unlabelled_samples_are_negatives_of_each_other():
    views = random_views(2, 4)
    a = supcon(*views, labels=torch.tensor([0, 0, -1, -1]))
    b = supcon(*views, labels=torch.tensor([0, 0, 1, 2]))
    torch.testing.assert_close(a, b)
    assert float(a) != pytest.approx(supcon(*views, labels=torch.tensor([0, 0, 1, 1])).item())


def test_log():
    views = random_views(2, 4)
    _, log = SupCon().with_log(*views, labels=torch.tensor([0, 0, 1, -1]))
    assert int(log["anchors_skipped"]) == 0
    assert float(log["target_entropy"]) == pytest.approx(math.log(3) / 2, rel=1e-6)
    assert float(log["kl"]) == pytest.approx(float(log["loss"]) - math.log(3) / 2, rel=1e-6)
    assert float(log["chance"]) == pytest.approx(math.log(7))


def test_collapsed_batch_is_ln_of_its_candidates():
    z = torch.ones(6, 3, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 2, -1])
    assert supcon(z, z, labels=labels).item() == pytest.approx(math.log(11), rel=1e-13)


def test_temperature_default_is_not_that_of_ntxent():
    views = random_views(2, 4)
    torch.testing.assert_close(supcon(*views, labels=torch.arange(4)), ntxent(*views, tau=0.1))
