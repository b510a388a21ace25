import os
from functools import partial

import pytest
from failing_process import fail_in_one

from counterpoint.train.processes import start_processes


@pytest.mark.parametrize(
    ("kind", "shown", "words"),
    [
        (ValueError, ValueError, "^process 1 of 2: the batch is bad$"),
        (ZeroDivisionError, ZeroDivisionError, "^the batch is bad$"),
        (None, ChildProcessError, "^process 1 of 2 was killed by SIGKILL$"),
    ],
)
def test_the_error_of_one_process_ends_all_and_is_told_with_its_number(kind, shown, words):
    before = dict(os.environ)
    with pytest.raises(shown, match=words) as caught:
        start_processes(2, partial(fail_in_one, kind))
    if kind is not None:
        assert "in process 1 of 2" in "".join(caught.value.__notes__)
    assert dict(os.environ) == before
