"""The command line with several processes, as a user starts it: by a recipe and by torchrun."""

import os
import signal
import subprocess
import sys
import time

import pytest
from nursery import Nursery

from counterpoint.train.checkpoint import checkpoints
from counterpoint.train.log import read_metrics
from counterpoint.train.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

WORDS = (
    "train",
    "demo/simclr",
    "data.count=64",
    "data.size=32",
    "views.size=16",
    "model.head=[8]",
    "train.batch_size=15",
    "train.epochs=1000",
    "train.log_every=1",
    "train.save_every=100000",  # no checkpoint but that of a signal, and the last
    "train.accelerator=cpu",
    "optim.warmup_epochs=0",
    "evaluate.k=[1]",
    "evaluate.linear=false",
)
STEPS = 120


def rows(folder):
    return [row["step"] for row in read_metrics(folder / "metrics.csv")]


def saved(folder):
    return [int(path.stem.removeprefix("step-")) for path in checkpoints(folder / "checkpoints")]


def test_a_signal_to_the_parent_of_several_processes_and_torchrun_goes_on(tmp_path):
    folder = tmp_path / "run"
    words = [*WORDS, f"train.steps={STEPS}", "--out", str(folder)]
    with Nursery(tmp_path) as nursery:
        pid = nursery.start(*words, "train.devices=2")
        until = time.monotonic() + 300
        while not ((folder / "metrics.csv").exists() and len(rows(folder)) >= 3):
            assert time.monotonic() < until, nursery.said()
            time.sleep(0.01)
        os.kill(pid, signal.SIGTERM)
        assert nursery.end() == 143, nursery.said()
        said = nursery.said()
    (step,) = saved(folder)
    assert 3 <= step < STEPS
    assert rows(folder) == list(range(1, step + 1))
    assert said.count(f"stopped by SIGTERM after step {step} of {STEPS}") == 1, said
    assert "Traceback" not in said, said
    assert not (folder / "done.json").exists()

    starter = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*starter, "-m", "counterpoint.cli", *words, "--resume"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert rows(folder) == list(range(1, STEPS + 1))
    assert saved(folder)[-1] == STEPS
    # One process measured, and told.
    assert done.stdout.count(f"run: {folder}") == 1
    assert Run(folder).results.is_file()


def test_one_command_trains_with_two_processes_and_measures(tmp_path):
    folder = tmp_path / "run"
    with Nursery(tmp_path) as nursery:
        nursery.start(*WORDS, "train.steps=4", "train.devices=2", "--out", folder)
        assert nursery.end() == 0, nursery.said()
        assert f"run: {folder}" in nursery.said()
    assert rows(folder) == [1, 2, 3, 4]
    assert Run(folder).results.is_file()
