"""One piece of a batch per CPU core.

torch by itself shares every single operation among the cores and waits for all of them each time. Augmenting
a batch takes hundreds of short operations: on a busy machine most of the time goes into waiting. A core that
takes a piece of the batch through all of them waits once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def alone() -> Iterator[None]:
    """Within it torch works on one core in this thread: for short operations that it would share.

    Its helper threads keep a core busy for some milliseconds after each of those, waiting for the next.

    >>> with alone():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def for_each(do: Callable[[T], None], pieces: Sequence[T]) -> None:
    """Call `do` with each piece, on as many cores at once as torch uses (`torch.get_num_threads`).

    Raises what `do` raises.

    >>> out = torch.zeros(4)
    >>> for_each(lambda i: out[i].fill_(i), [0, 1, 2, 3])
    >>> out
    tensor([0., 1., 2., 3.])
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(pieces) < 2:
        with alone():
            for piece in pieces:
                do(piece)
        return
    inference = torch.is_inference_mode_enabled()

    def on_a_core(piece: T) -> None:
        # A thread does not inherit the mode, and may not write to an inference tensor without it.
        with torch.inference_mode(inference):
            do(piece)

    pool = _pool(threads)
    # The matrix library has one thread count for the whole process, and would share its products again.
    with alone():
        for _ in pool.map(on_a_core, pieces):
            pass


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch works alone."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="counterpoint-views")
    together = threading.Barrier(threads)

    def work_alone(_: int) -> None:
        # The first question gives the thread the count of the process; only after it does its own one hold.
        torch.get_num_threads()
        torch.set_num_threads(1)
        together.wait()

    for _ in pool.map(work_alone, range(threads)):
        pass
    return pool


if hasattr(os, "register_at_fork"):
    # The threads of a pool do not live on in a forked process.
    os.register_at_fork(after_in_child=_pool.cache_clear)
