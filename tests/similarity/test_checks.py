"""Checks that the tests of the graphs do not reach."""

import numpy as np
import pytest
import torch

from counterpoint.similarity import checks
from counterpoint.similarity.checks import check_count, check_labels, check_symmetric


def test_the_name_given_is_the_name_said():
    with pytest.raises(ValueError, match=r"table\[0, 1\] is nan"):
        check_symmetric(torch.tensor([[1.0, float("nan")], [0.0, 1.0]]), "table")
    with pytest.raises(ValueError, match="classes must be an integer of at least 1, got 0"):
        check_count(0, "classes")


def test_the_first_bad_entry_is_the_first_in_row_order():
    m = torch.zeros(3, 3)
    m[0, 2], m[1, 0] = 1.0, 1.0
    with pytest.raises(ValueError, match=r"m\[0, 1\] is 0, but m\[1, 0\] is 1"):
        check_symmetric(m, "m")


def test_strips_join(monkeypatch):
    m = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    m = m + m.T
    whole = check_symmetric(m, "m")
    monkeypatch.setattr(checks, "STRIP", 3)
    assert torch.equal(check_symmetric(m, "m"), whole)
    assert torch.equal(whole, m)
    for i, j, value, words in [
        (5, 6, 9.0, r"m\[5, 6\] is 9, but m\[6, 5\] is"),
        (6, 1, 9.0, r"m\[1, 6\] is .*, but m\[6, 1\] is 9"),
        (4, 0, float("inf"), r"m\[4, 0\] is inf"),
    ]:
        bad = m.clone()
        bad[i, j] = value
        with pytest.raises(ValueError, match=words):
            check_symmetric(bad, "m")


def test_tolerance_grows_with_the_entry():
    m = torch.tensor([[0.0, 1000.0], [1000.005, 0.0]])
    assert check_symmetric(m, "m")[0, 1].item() == pytest.approx(1000.0025, abs=1e-3)
    with pytest.raises(ValueError, match="symmetric"):
        check_symmetric(torch.tensor([[0.0, 1.0], [1.005, 0.0]]), "m")


def test_booleans_and_half_precision_are_matrices():
    assert check_symmetric(torch.eye(2, dtype=torch.bool), "m").tolist() == [[1, 0], [0, 1]]
    assert check_symmetric(torch.eye(2, dtype=torch.float16), "m").dtype == torch.float32


def test_a_numpy_integer_is_a_count():
    assert type(check_count(np.int64(3))) is int


def test_labels_become_int64():
    assert check_labels(torch.tensor([0, -1], dtype=torch.int16)).dtype == torch.int64
