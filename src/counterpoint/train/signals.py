"""Signals: the first one asks a run to save and leave at the end of the step it is in.

SIGTERM is how machines are told to shut down and how SLURM ends a job, SIGUSR1 what SLURM can be asked to
send some time before that (`#SBATCH --signal=USR1@120`), SIGINT is Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from counterpoint.ranks.collectives import Ranks

HEEDED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Stopped(SystemExit):
    """Raised by a run that a signal stopped, after its checkpoint was written.

    signal: which one. code: the exit status a shell gives it, 128 + its number: 130 for SIGINT, 143 for
        SIGTERM, 138 for SIGUSR1 on Linux.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)

    def __reduce__(self) -> tuple[type[Stopped], tuple[int]]:
        return Stopped, (int(self.signal),)


class StopSignals:
    """While it is entered, the first signal is noted in `asked` and does nothing else.

    asked: the number of that signal, 0 before there is one. A Ctrl-C after it raises KeyboardInterrupt.

    Python lets only the main thread heed signals; in another one `asked` stays 0.

    >>> with StopSignals() as signals:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     signals.asked == signal.SIGTERM
    True
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in HEEDED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = self.asked or number


def agreed(number: int) -> int:
    """The largest of this number over all processes, so that all leave, or skip, at the same step.

    With one process nothing is sent. With several this is a small message on the CPUs: no GPU is waited for.
    Every process has to call it equally often.
    """
    ranks = Ranks.of(None)
    return number if ranks is None else max(told[0] for told in ranks.tell([number]))
