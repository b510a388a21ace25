"""Runs that are told to stop, killed, cut off from the disk: what is left, and that they go on bit-equal."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from nursery import Nursery

from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.recipe import load_recipe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SMALL = (
    "data.count=64",
    "data.size=32",
    "views.size=16",
    "model.head=[8]",
    "train.batch_size=16",
    "train.epochs=10",
    "train.log_every=1",
    "train.save_every=2",
    "train.accelerator=cpu",
    "optim.warmup_epochs=0",
    "evaluate.k=[1]",
    "evaluate.linear=false",
)
STEPS = 40
LONG = (*SMALL[:-7], "train.epochs=100000", *SMALL[-6:])
SAME = ("step", "epoch", "loss", "accuracy", "spread", "lr")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with Nursery(tmp_path_factory.mktemp("nursery")) as made:
        yield made


@pytest.fixture(scope="module")
def whole(nursery, tmp_path_factory):
    """The run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    nursery.start("fit", "demo/simclr", folder, *SMALL)
    assert nursery.end() == 0, nursery.said()
    return folder


def steps(folder):
    return [path.stem for path in checkpoints(folder / "checkpoints")]


def wait_for(condition, seconds=60):
    """What the condition gives once it is true, looking as often as this machine can."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
    raise AssertionError("waited in vain")


def finish(nursery, folder):
    nursery.start("fit", "demo/simclr", folder, *SMALL)
    assert nursery.end() == 0, nursery.said()


def assert_ends_alike(folder, whole):
    """Bit-equal end states and the same log."""
    states = [load_checkpoint(checkpoints(run / "checkpoints")[-1]) for run in (folder, whole)]
    for state in states:
        del state["seconds"]
    assert states[0]["step"] == STEPS
    assert_equal(*states)
    logs = [
        [[row[column] for column in SAME] for row in read_metrics(run / "metrics.csv")]
        for run in (folder, whole)
    ]
    assert logs[0] == logs[1]
    left = [path.name for path in folder.rglob("*.part")]
    assert left == []


def assert_equal(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_equal(a, b)
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    else:
        assert left == right


def rows(folder):
    """Rows of the log so far."""
    try:
        return (folder / "metrics.csv").read_bytes().count(b"\n") - 1
    except OSError:
        return 0


def test_twenty_kills_at_random_moments(nursery, whole, tmp_path):
    rng = random.Random(0)
    kills, runs, resumed = 0, [tmp_path / "0"], 0
    while kills < 20:
        run = runs[-1]
        resumed += bool(steps(run))
        last = checkpoints(run / "checkpoints")
        at = int(last[-1].stem.removeprefix("step-")) if last else 0
        pid = nursery.start("fit", "demo/simclr", run, *SMALL)
        # Some steps on from where it resumes, then anywhere within a step or two; a few before the first.
        some = rng.choice([0, 1, 2, 3, 5, 8])
        if some:
            wait_for(lambda run=run, wanted=at + some: (run / "done.json").exists() or rows(run) >= wanted)
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        code = nursery.end()
        assert code in (0, -signal.SIGKILL), nursery.said()
        kills += code != 0
        if code == 0:
            runs.append(tmp_path / str(len(runs)))
    finish(nursery, runs[-1])
    assert resumed >= 10
    for run in runs:
        assert_ends_alike(run, whole)


def test_kills_while_a_checkpoint_is_written(nursery, whole, tmp_path):
    before = after = 0
    for trial in range(30):
        folder = tmp_path / str(trial)
        pid = nursery.start("fit", "demo/simclr", folder, *SMALL)
        place = folder / "checkpoints"
        wait_for(place.is_dir)
        if trial % 2:
            wait_for(lambda place=place: any(name.endswith(".part") for name in os.listdir(place)))
        else:
            wait_for(lambda place=place: any(name.startswith("step-") for name in os.listdir(place)))
        os.kill(pid, signal.SIGKILL)
        assert nursery.end() == -signal.SIGKILL
        half = any(name.endswith(".part") for name in os.listdir(place))
        if half and before < 2:
            before += 1
        elif not half and steps(folder) and after < 2:
            after += 1
        else:
            continue
        finish(nursery, folder)
        assert_ends_alike(folder, whole)
        if before == after == 2:
            return
    raise AssertionError(f"of 30 kills {before} fell before and {after} after the renaming")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_saves_and_leaves_at_a_step(nursery, whole, tmp_path, name):
    number = getattr(signal, name)
    words = ("train", "demo/simclr", "--out", tmp_path, *SMALL)
    # No checkpoint but the one of the signal.
    pid = nursery.start(*words, "train.save_every=1000")
    wait_for(lambda: (tmp_path / "metrics.csv").exists() and len(read_metrics(tmp_path / "metrics.csv")) >= 3)
    os.kill(pid, number)
    assert nursery.end() == 128 + number, nursery.said()
    (saved,) = steps(tmp_path)
    step = int(saved.removeprefix("step-"))
    assert 3 <= step < STEPS
    said = nursery.said()
    assert f"stopped by {name} after step {step} of {STEPS}" in said
    assert f"--resume continues it from step {step}" in said
    assert "Traceback" not in said
    assert not (tmp_path / "done.json").exists()
    nursery.start(*words, "--resume")
    assert nursery.end() == 0, nursery.said()
    assert_ends_alike(tmp_path, whole)


def test_a_second_interrupt_leaves_at_once():
    from counterpoint.train.signals import StopSignals

    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_two_processes_do_not_train_in_one_folder(nursery, tmp_path):
    words = ("train", "demo/simclr", "--out", tmp_path, *LONG, "--resume")
    pid = nursery.start(*words)
    try:
        wait_for(lambda: steps(tmp_path))
        with pytest.raises(ValueError, match=f"{tmp_path} is in use by process {pid} on "):
            fit(load_recipe("demo/simclr", [*LONG]), tmp_path, resume=True)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert nursery.end() == -signal.SIGKILL
    # The kernel let go of the folder.
    pid = nursery.start(*words)
    newest = steps(tmp_path)
    wait_for(lambda: steps(tmp_path) != newest)
    os.kill(pid, signal.SIGTERM)
    assert nursery.end() == 143, nursery.said()


LARGE = ("data.size=96", "train.workers=2", "views.size=32")  # not kept in memory: read by workers


def test_data_workers_do_not_hold_the_folder_and_leave_signals_to_the_run(nursery, tmp_path):
    words = ("train", "demo/simclr", "--out", tmp_path, *LONG, *LARGE, "--resume")
    pid = nursery.start(*words)
    wait_for(lambda: steps(tmp_path))
    workers = wait_for(lambda: children(pid))
    os.kill(pid, signal.SIGKILL)
    nursery.end()
    # They outlive the run by seconds, until they look for their parent.
    assert all(Path(f"/proc/{worker}").exists() for worker in workers)
    newest = steps(tmp_path)
    pid = nursery.start(*words)
    wait_for(lambda: steps(tmp_path) != newest)
    os.killpg(pid, signal.SIGTERM)  # to the workers too
    assert nursery.end() == 143, nursery.said()


def test_a_data_worker_that_dies_is_named(nursery, tmp_path):
    pid = nursery.start("train", "demo/simclr", "--out", tmp_path, *LONG, *LARGE)
    wait_for(lambda: steps(tmp_path))
    workers = wait_for(lambda: (lambda found: len(found) == 2 and found)(children(pid)))
    os.kill(workers[1], signal.SIGKILL)
    assert nursery.end() == 2, nursery.said()
    line = nursery.said().strip().splitlines()[-1]
    assert f"data worker 1 (pid {workers[1]}) was killed by signal 9 (SIGKILL" in line
    assert "Traceback" not in nursery.said()


def children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_goes_on(nursery, whole, tmp_path):
    size = checkpoints(whole / "checkpoints")[-1].stat().st_size
    disk = tmp_path / "disk"
    disk.mkdir()
    # Two checkpoints fit, and what is written of a third does not.
    room = f"size={int(2.5 * size) // 4096 * 4}k"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", room, "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        folder = disk / "run"
        nursery.start("train", "demo/simclr", "--out", folder, *SMALL)
        assert nursery.end() == 2, nursery.said()
        said = nursery.said()
        assert "No space left on device" in said
        assert "the last one is of step 4: training goes on" in said
        assert "no checkpoint of step 40" in said
        assert "make room" in said.splitlines()[-1]
        assert steps(folder) == ["step-00000002", "step-00000004"]
        assert [row["step"] for row in read_metrics(folder / "metrics.csv")] == list(range(1, STEPS + 1))
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        finish(nursery, folder)
        assert_ends_alike(folder, whole)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_refuses_large_files_does_not_stop_the_run(nursery, whole, tmp_path):
    nursery.start("train", "demo/simclr", "--out", tmp_path, *SMALL, largest_file=20_000)
    assert nursery.end() == 2, nursery.said()
    assert "there is none before it: training goes on" in nursery.said()
    assert "File too large" in nursery.said()
    assert steps(tmp_path) == []
    finish(nursery, tmp_path)
    assert_ends_alike(tmp_path, whole)


RANKS = """
import os, signal, sys
import torch.distributed as dist
from counterpoint.train.signals import StopSignals, agreed

# Torch is imported once; the two ranks are forked before it computes anything.
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
with StopSignals() as signals:
    for step in range(1, 9):
        if rank == 1 and step == 5:
            signal.raise_signal(signal.SIGTERM)
        if stop := agreed(signals.asked):
            break
open(f"{sys.argv[1]}/rank-{rank}", "w").write(f"step {step} signal {stop}")
dist.barrier()
if rank == 0:
    os.wait()
"""


def test_all_processes_leave_at_the_step_of_the_one_that_was_told(tmp_path):
    subprocess.run([sys.executable, "-c", RANKS, tmp_path], check=True, timeout=120)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["step 5 signal 15"] * 2
