import math

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import InfoNCE, infonce


def test_collapsed_batch_is_ln_n():
    z = torch.ones(7, 3, dtype=torch.float64)
    assert infonce(z, z).item() == pytest.approx(math.log(7), rel=1e-14)


def test_anchors_are_of_the_first_view():
    # z0 agrees with itself; both of its samples are nearest to sample 0 of z1, at the same distance.
    z0, z1 = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    there, back = infonce(z0, z1, tau=0.1).item(), infonce(z1, z0, tau=0.1).item()
    assert there == pytest.approx(5.0, abs=1e-3)
    assert back == pytest.approx(math.log(2), abs=1e-3)


def test_more_views_are_the_mean_over_pairs():
    a, b, c = random_views(3, 5)
    expected = (infonce(a, b) + infonce(a, c) + infonce(b, c)) / 3
    torch.testing.assert_close(infonce(a, b, c), expected)


def test_log():
    z = torch.eye(5)
    _, log = InfoNCE().with_log(z, z)
    assert {key: round(float(value), 6) for key, value in log.items() if key not in ("loss", "kl")} == {
        "chance": round(math.log(5), 6),
        "target_entropy": 0,
        "accuracy": 1,
        "candidates": 5,
    }
