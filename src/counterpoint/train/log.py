"""The log of a run: a CSV, TensorBoard where asked for, and a progress bar."""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from counterpoint.extras import need
from counterpoint.files import write_whole

COLUMNS = (
    "step", "epoch", "loss", "chance", "accuracy", "target_entropy", "kl", "anchors_skipped", "spread", "lr",
    "images_per_s", "data_wait",
)  # fmt: skip

Row = dict[str, float | None]


class MetricsLog:
    """Rows of metrics.csv, and the same numbers for TensorBoard.

    after: on resuming, rows past this step are dropped, so that no step stands twice.
    also: columns beside COLUMNS: what this objective logs, and its arguments that have a schedule.
    """

    def __init__(
        self, path: Path, tensorboard: Path | None = None, after: int = 0, also: Sequence[str] = ()
    ) -> None:
        kept = [row for row in _whole_rows(path) if (row["step"] or 0) <= after] if path.exists() else []
        self._columns = tuple(dict.fromkeys([*COLUMNS, *also]))
        write_whole(path, _as_csv(kept, self._columns).encode())
        self._path = path
        self._waiting = ""
        self._events = None
        if tensorboard is not None:
            need("tensorboard", extra="track")
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(tensorboard), purge_step=after + 1)

    def write(self, row: Row) -> None:
        """Append one row; keys that are no column go to TensorBoard only.

        On a full disk the row waits in memory for the next one, and a warning says so.
        """
        self._waiting += _as_csv([row], self._columns, header=False)
        self._append()
        if self._events is not None:
            for key, value in row.items():
                if value is not None and key != "step":
                    self._events.add_scalar(key, value, int(row["step"] or 0))

    def close(self) -> None:
        """Write out what is buffered."""
        self._append()
        if self._events is not None:
            self._events.close()

    def _append(self) -> None:
        whole = self._path.stat().st_size
        try:
            with self._path.open("ab", buffering=0) as handle:
                rows = self._waiting.encode()
                if rows and handle.write(rows) < len(rows):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.truncate(self._path, whole)
            warnings.warn(
                f"{self._path} cannot be written ({error.strerror}): its rows wait in memory", stacklevel=3
            )
        else:
            self._waiting = ""


def _whole_rows(path: Path) -> list[Row]:
    """The rows of a metrics.csv whose writer may have been stopped within the last one."""
    text = path.read_bytes()
    if not text.endswith(b"\n"):
        write_whole(path, text[: text.rfind(b"\n") + 1])
    return read_metrics(path)


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics.csv; empty cells are None. ValueError where it is damaged."""
    try:
        with path.open(newline="") as handle:
            rows = [
                {key: float(value) if value else None for key, value in row.items()}
                for row in csv.DictReader(handle)
            ]
    except (TypeError, ValueError):
        raise ValueError(f"{path} is damaged: some cell is not a number") from None
    if rows and "step" not in rows[0]:
        raise ValueError(f"{path} is damaged: it has no column 'step'")
    return rows


def _as_csv(rows: list[Row], columns: Sequence[str], header: bool = True) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(row.get(key)) for key in columns})
    return text.getvalue()


def _cell(value: float | None) -> Any:
    if value is None or math.isnan(value):
        return ""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


class Bar:
    """A progress bar with loss, throughput and time left; one line per epoch where there is no terminal."""

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self._console, self._title, self._total = console, title, total
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]} images/s  left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task(title, total=total, completed=done, loss="-", rate="-")
        self._progress.start()

    def step(self) -> None:
        """One more step is done."""
        self._progress.advance(self._task)

    def show(self, loss: float, rate: float) -> None:
        """New numbers to show."""
        self._progress.update(self._task, loss=f"{loss:.3f}", rate=f"{rate:,.0f}")

    def epoch(self, epoch: int, epochs: int, loss: float | None, rate: float | None, left: float) -> None:
        """Say how far the run is where there is no live bar."""
        if not self._live and loss is not None:
            speed = f"{rate or 0:,.0f} images/s, {left:.0f} s left"
            self.say(f"epoch {epoch}/{epochs}, loss {loss:.3f}, {speed}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(f"{self._title}: {line}", highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()
