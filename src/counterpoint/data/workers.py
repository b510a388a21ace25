"""The worker processes of a loader: one that dies is named."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def watched(loader: Iterable[Any]) -> Iterator[Any]:
    """What a DataLoader gives; a worker process that died is named, and how it died."""
    items = _quietly(loader)
    workers = list(getattr(items, "_workers", ()))
    try:
        yield from items
    except (RuntimeError, OSError, EOFError) as error:
        # torch's own error has the pid alone, or "exited unexpectedly". Where the worker was just handing
        # over a batch, its connection breaks, which is noticed before the process is seen to be gone.
        dead = _dead(workers, seconds=0 if isinstance(error, RuntimeError) else 5)
        if not dead:
            raise
        raise ChildProcessError(
            "; ".join(f"data worker {i} (pid {worker.pid}) {_end(worker.exitcode)}" for i, worker in dead)
        ) from None


def _quietly(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's iterator, without the handler of SIGCHLD that comes with it.

    That one raises wherever the process happens to be when a worker dies: in the middle of a step, say. The
    loader notices by itself when it waits for a batch.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    items = iter(loader)
    signal.signal(signal.SIGCHLD, before)
    return items


def _dead(workers: Sequence[Any], seconds: float) -> list[tuple[int, Any]]:
    """The worker processes that have ended, with their numbers; waits so long for the first one."""
    until = time.monotonic() + seconds
    while True:
        dead = [(number, worker) for number, worker in enumerate(workers) if worker.exitcode is not None]
        if dead or time.monotonic() > until:
            return dead
        time.sleep(0.05)


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by signal {-code} ({name}{hint})"
