import os
import signal
import threading
import time
from functools import partial

import pytest
from failing_process import fail_in_one, wait_for_a_signal

from counterpoint.train.processes import _named, start_processes
from counterpoint.train.signals import Stopped


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


def send_once(number, ready):
    """Send this process a signal as soon as that is so, from another thread."""

    def send():
        until = time.monotonic() + 60
        while not ready() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def test_a_signal_is_not_sent_to_a_process_that_has_ended(tmp_path):
    """Its number may be that of another program by then."""

    def ready():
        if not (tmp_path / "heeding").exists() or not (tmp_path / "0").exists():
            return False
        try:
            os.kill(int((tmp_path / "0").read_text() or os.getpid()), 0)
        except ProcessLookupError:
            return True
        return False

    send_once(signal.SIGTERM, ready)
    with pytest.raises(Stopped) as stopped:
        start_processes(2, partial(wait_for_a_signal, tmp_path, early=True))
    assert stopped.value.code == 143


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_that_comes_before_the_processes_heed_it_stops_them(tmp_path, name):
    number = getattr(signal, name)
    send_once(number, lambda: not time.sleep(0.5))
    with pytest.raises(Stopped) as stopped:
        start_processes(2, partial(wait_for_a_signal, tmp_path, early=False))
    assert stopped.value.signal == number
    assert not (tmp_path / "heeding").exists()


def test_an_error_of_the_user_says_its_process_in_its_one_line():
    error = _named(ValueError("the batch is bad"), "process 1 of 2", "trace")
    assert type(error) is ValueError
    assert str(error) == "process 1 of 2: the batch is bad"
