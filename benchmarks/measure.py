"""Timing, memory, versions and CSV files for the benchmarks."""

from __future__ import annotations

import csv
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

PACKAGES = ("torch", "torchvision", "numpy")


def measure(fn: Callable[[], object], repeats: int = 5, warmup: int = 1) -> list[float]:
    """Seconds of each of `repeats` calls, after `warmup` calls that do not count."""
    return measure_in_turn({"": fn}, repeats, warmup)[""]


def measure_in_turn(
    arms: Mapping[str, Callable[[], object]],
    repeats: int = 5,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of `repeats` calls of each arm, taken in turn so that the machine's drift falls on all.

    clock: `time.perf_counter` or `cpu_seconds`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(warmup + repeats):
        for name, fn in arms.items():
            _finish()
            begin = clock()
            fn()
            _finish()
            if turn >= warmup:
                seconds[name].append(clock() - begin)
    return seconds


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def cpu_seconds() -> float:
    """Processor time of this process and its living children so far, in steps of about 10 ms.

    On a machine that others use too it tells more than the time on the wall.
    """
    ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    return time.process_time() + sum(map(_ticks, _children(os.getpid()))) / ticks


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def peak_memory(fn: Callable[[], object], every: float = 0.02) -> float | None:
    """Largest memory of this process and its children during one call, in MiB.

    Pages shared between processes count once (proportional set size). It is looked at every so many seconds.
    None where there is no /proc to tell it.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        fn()
        return None
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, sum(map(_share, [os.getpid(), *_children(os.getpid())])))
            if done.wait(every):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        fn()
    finally:
        done.set()
        watcher.join()
    return peak


def _share(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in own:
            found += [child, *_children(child)]
    return found


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that torch's allocator holds during one call, beyond what it held before."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def versions() -> dict[str, Any]:
    """What a timing depends on: processor, cores, load of the last minute, threads, GPU, library versions."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _processor(),
        "cores": usable,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else "",
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with a header; columns are those of all rows, in the order they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
