"""One process at a time trains in a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"
_HELD: set[int] = set()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if need be; ValueError names the process that holds it already.

    The kernel keeps the lock and drops it when the process ends, however it ends: the file that stays behind
    says nothing. On NFS this holds between machines, except with the mount options `nolock` and
    `local_lock=flock`, which keep it within one. Windows has no such lock.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 300).decode(errors="replace").strip() or "another process"
            raise ValueError(f"{folder} is in use by {owner}: wait for it, or stop it first") from None
        except OSError as error:
            raise ValueError(f"{folder / LOCK} cannot be locked: {error.strerror}") from None
        os.ftruncate(file, 0)
        # A full disk keeps the name out of the file, not the lock from holding.
        with contextlib.suppress(OSError):
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        _HELD.add(file)
        yield
    finally:
        _HELD.discard(file)
        os.close(file)


def _let_go() -> None:
    """In a forked child: data workers must not hold the lock of a run that was killed."""
    for file in _HELD:
        with contextlib.suppress(OSError):
            os.close(file)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
