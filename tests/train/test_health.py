import math

import pytest
import torch

from counterpoint.train.health import last_verdict, spread, verdict


def test_spread_of_random_directions_is_near_one():
    z = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert spread(z) == pytest.approx(1.0, abs=0.01)


def test_spread_ignores_length():
    z = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    assert spread(z) == pytest.approx(spread(z * torch.rand(50, 1).add(0.1)), abs=1e-6)


def test_a_zero_row_gives_no_nan():
    assert math.isfinite(spread(torch.zeros(3, 4)))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"spread": 0.05, "loss": 1.0, "chance": 6.2}, "collapsed"),
        ({"spread": 0.9, "loss": 6.19, "chance": 6.2}, "at chance"),
        ({"spread": 0.9, "loss": 6.21, "chance": 6.2}, "at chance"),
        ({"spread": 0.9, "loss": 6.5, "chance": 6.2}, "above chance"),
        # Soft targets: the loss can never go far below chance, and this one has gone a quarter of the way.
        ({"spread": 0.9, "loss": 6.0, "chance": 6.2, "target_entropy": 5.4}, None),
        ({"spread": 0.9, "loss": 3.0, "chance": 6.2}, None),
        ({"spread": 0.9, "loss": 0.2}, None),
        ({}, None),
    ],
)
def test_verdict(row, expected):
    said = verdict(row)
    assert (said is None) == (expected is None)
    assert expected is None or said.startswith(expected)


def test_a_short_run_is_not_judged_by_chance():
    def log(steps, rows, loss=2.947, spread=0.9):
        row = {"spread": spread, "loss": loss, "chance": 0.498}
        return [row | {"step": float(steps * (i + 1) // rows)} for i in range(rows)]

    assert last_verdict(log(3, 3)).startswith(
        "too short to tell: 3 steps, 3 of them logged; the loss is 2.947"
    )
    assert last_verdict(log(40, 2)).startswith("too short to tell: 40 steps, 2 of them logged")
    assert last_verdict(log(60, 3)).startswith("above chance: the loss is 2.947")
    assert last_verdict(log(60, 3, loss=0.497)).startswith("at chance")
    assert last_verdict(log(3, 1, loss=0.1)) is None
    assert last_verdict(log(3, 1, spread=0.01)).startswith("collapsed")
    assert last_verdict([]) is None
