import os
from functools import partial

import pytest
from failing_process import fail_in_one

from counterpoint.train.processes import _named, start_processes


@pytest.mark.parametrize(
    ("kind", "shown", "words"),
    [
        (ZeroDivisionError, ZeroDivisionError, "the batch is bad"),
        (None, ChildProcessError, "process 1 of 2 was killed by SIGKILL"),
    ],
)
def test_the_error_of_one_process_ends_all_and_is_told_with_its_number(kind, shown, words):
    before = dict(os.environ)
    with pytest.raises(shown) as caught:
        start_processes(2, partial(fail_in_one, kind))
    assert str(caught.value) == words
    if kind is not None:
        assert "in process 1 of 2" in "".join(caught.value.__notes__)
    assert dict(os.environ) == before


def test_an_error_of_the_user_says_its_process_in_its_one_line():
    error = _named(ValueError("the batch is bad"), "process 1 of 2", "trace")
    assert type(error) is ValueError
    assert str(error) == "process 1 of 2: the batch is bad"
