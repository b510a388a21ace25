"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from counterpoint.data.batches import Batch
from counterpoint.train.log import Row


class Clock:
    """Where the time of the loop goes."""

    def __init__(self) -> None:
        self._begin = self._lap = self._saved = time.perf_counter()
        self._waited, self.images, self._steps = 0.0, 0, 0

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, with the time it takes to get each one counted as waiting."""
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - asked
            if batch is None:
                return
            self._steps += 1
            yield batch

    def lap(self) -> Row:
        """Images per second and the share of time spent waiting for data, since the last lap."""
        now = time.perf_counter()
        span = max(now - self._lap, 1e-9)
        row: Row = {"images_per_s": self.images / span, "data_wait": self._waited / span}
        self._lap, self._waited, self.images = now, 0.0, 0
        return row

    def left(self, step: int, total: int) -> float:
        """Seconds left at the pace of this session."""
        return (time.perf_counter() - self._begin) / max(self._steps, 1) * (total - step)

    def since_save(self) -> float:
        """Seconds since this was last asked."""
        now = time.perf_counter()
        span, self._saved = now - self._saved, now
        return span
