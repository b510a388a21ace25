"""New processes of this machine for one run, and the error of the one that fails."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from torch.multiprocessing.spawn import ProcessExitedException
from torch.multiprocessing.spawn import start_processes as torch_start

from counterpoint.train.signals import Stopped, StopSignals

GRACE = 5.0  # seconds that the other processes have to leave by themselves when one has failed


def start_processes(count: int, function: Callable[[], object]) -> None:
    """Call the function in so many new processes, each with its LOCAL_RANK, and wait for them.

    Where one raises, the others are stopped and its error is raised here, with its number. Where one is
    killed, that is a ChildProcessError. A signal to stop is passed on to all; where it ends them before they
    heed it, `Stopped` is raised.

    function: something that pickles; a script of yours needs `if __name__ == "__main__":`.
    """
    port = os.environ.get("MASTER_PORT") or _free_port()
    with tempfile.TemporaryDirectory(prefix="counterpoint-") as folder, StopSignals() as signals:
        context = torch_start(  # type: ignore[no-untyped-call]
            _process,
            (function, port, Path(folder), warnings.showwarning),
            nprocs=count,
            join=False,
            start_method="spawn",
        )
        try:
            told = False
            while not context.join(timeout=0.2, grace_period=GRACE):
                if signals.asked and not told:
                    told = True
                    for process in context.processes:
                        if process.is_alive():  # the number of one that has ended may be another's
                            os.kill(process.pid, signals.asked)
        except ProcessExitedException as error:
            failures = [pickle.loads(file.read_bytes()) for file in Path(folder).glob("*.error")]
            # The first to fail is the reason; the others only lost their connection to it.
            failures.sort(key=lambda failure: failure[:2])
            codes = [process.exitcode for process in context.processes]
            # Those that did not leave by themselves were sent a SIGTERM.
            ours = (-signal.SIGTERM, -signals.asked)
            killed = [i for i, code in enumerate(codes) if code < 0 and code not in ours]
            if killed and all(lost for lost, *_ in failures):
                name = signal.Signals(-codes[killed[0]]).name
                raise ChildProcessError(f"process {killed[0]} of {count} was killed by {name}") from None
            if signals.asked and all(lost for lost, *_ in failures):
                raise Stopped(signals.asked) from None
            if not failures:
                raise ChildProcessError(f"one of {count} processes ended without a word: {error}") from None
            *_, rank, failure, trace = failures[0]
            raise _named(failure, f"process {rank} of {count}", trace) from None
        finally:
            for process in context.processes:
                process.kill()


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return str(listener.getsockname()[1])


def _process(
    index: int, function: Callable[[], object], port: str, folder: Path, show: Callable[..., None]
) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal's Ctrl-C reaches the first process, which passes it on, once
    os.environ.update(LOCAL_RANK=str(index), MASTER_PORT=port)
    warnings.showwarning = show
    if index > 0:
        warnings.simplefilter("ignore")
    try:
        function()
    except BaseException as error:
        failure = error if _pickles(error) else RuntimeError(f"{type(error).__name__}: {error}")
        trace = traceback.format_exc()
        lost = isinstance(error, RuntimeError) and "distributed_c10d.py" in trace
        content = pickle.dumps((lost, time.time_ns(), index, failure, trace))
        part = folder / f"{index}.part"
        part.write_bytes(content)
        part.rename(folder / f"{index}.error")
        raise SystemExit(1) from None


def _pickles(error: BaseException) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _named(error: BaseException, who: str, trace: str) -> BaseException:
    """The same error, which says in which process it happened."""
    if type(error) in (ValueError, ImportError, ModuleNotFoundError, MemoryError, RuntimeError):
        error = type(error)(f"{who}: {error}")
    error.add_note(f"in {who}:\n{trace}")
    return error
