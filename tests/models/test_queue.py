"""The queue against a list that keeps its newest rows."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.models.queue import Queue


@given(st.integers(1, 9), st.lists(st.integers(0, 12), max_size=8))
def test_it_holds_the_newest_rows_and_never_an_unfilled_slot(length, batches):
    queue, plain, number = Queue(length, width=2), [], 0
    for n in batches:
        # No pushed row is zero, as unfilled slots are.
        z = torch.arange(number + 1.0, number + n + 1).repeat(2, 1).T
        number += n
        queue.push(z)
        plain = (plain + z[:, 0].tolist())[-length:]
        held = queue.contents()
        assert held.shape == (len(plain), 2)
        assert len(queue) == len(plain)
        assert sorted(held[:, 0].tolist()) == plain


def test_the_oldest_rows_give_way_first():
    queue = Queue(4, width=1)
    for value in range(1, 7):
        queue.push(torch.tensor([[float(value)]]))
        assert queue.contents().max() == value
    assert sorted(queue.contents().flatten().tolist()) == [3, 4, 5, 6]


def test_a_state_brings_contents_and_place_back():
    queue = Queue(5, width=3)
    queue.push(torch.randn(3, 3))
    other = Queue(5, width=3)
    other.load_state_dict(copy.deepcopy(queue.state_dict()))
    assert torch.equal(other.contents(), queue.contents())
    more = torch.randn(4, 3)
    for each in (queue, other):
        each.push(more)
    assert torch.equal(other.contents(), queue.contents())
    assert len(other) == 5


def test_what_is_pushed_has_no_gradient_and_is_a_copy():
    queue, z = Queue(2, width=1), torch.ones(2, 1, requires_grad=True)
    queue.push(z)
    assert not queue.contents().requires_grad
    with torch.no_grad():
        z.mul_(5)
    assert queue.contents().flatten().tolist() == [1, 1]
    queue.push(torch.full((1, 1), 2.0, dtype=torch.bfloat16))
    assert queue.contents().dtype == torch.float32


@pytest.mark.parametrize("length", [0, -1, 1.5, True])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(ValueError, match="length of a queue must be a whole number of at least 1"):
        Queue(length, width=2)


@pytest.mark.parametrize(
    "z", [torch.ones(2, 3), torch.ones(2), torch.ones(2, 2, dtype=torch.int64), [[1.0, 2.0]]]
)
def test_rows_that_do_not_fit_are_refused(z):
    with pytest.raises(ValueError, match=r"a queue of width 2 takes floating rows \(n, 2\), got"):
        Queue(4, width=2).push(z)
