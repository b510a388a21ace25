"""The commands of the guides can be run as they are written."""

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser as torchrun_options
from torch.nn.parallel import DistributedDataParallel

from counterpoint.objectives import NTXent
from counterpoint.ranks import AcrossRanks
from counterpoint.train.recipe import load_recipe
from counterpoint.train.signals import Stopped

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
COMMANDS = [
    line
    for guide in ("which-graph", "ablations", "finetune")
    for line in re.findall(r"^counterpoint (compare .*)$", (GUIDES / f"{guide}.md").read_text(), re.M)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_plan_of_a_comparison(command, counterpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = counterpoint(*shlex.split(command), "--dry-run")
    assert code == 0, err
    assert "# would write:" in out
    if "--vary" in command:
        keys = re.findall(r"--vary \"?([a-z_.]+)=", command)
        assert all(f"{key}=" in out for key in keys)


def test_there_are_commands_to_try():
    assert len(COMMANDS) >= 7


SCALE = (GUIDES / "scale.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", SCALE, re.M | re.S)
STARTED = [
    line
    for language, block in BLOCKS
    if not language
    for line in block.replace("\\\n", " ").splitlines()
    if re.search(r"\bcounterpoint\b", line)
]


@pytest.mark.parametrize("line", STARTED)
def test_the_commands_of_the_guide_to_scale(line, counterpoint, tmp_path, monkeypatch):
    """The recipe takes every change, the command every option, and the starter every one of its own."""
    monkeypatch.chdir(tmp_path)
    starter, *words = shlex.split(line)
    if starter == "torchrun":
        started = torchrun_options().parse_args(words)
        assert started.module
        assert started.training_script == "counterpoint.cli"
        words = started.training_script_args
    elif starter == "srun":
        assert words[:2] == ["--kill-on-bad-exit=1", "counterpoint"]
        words = words[2:]
    else:
        assert starter == "counterpoint"
    assert words[0] == "train"
    code, out, err = counterpoint(*words, "--dry-run")
    assert code == 0, err
    for key, value in (word.split("=") for word in words if "=" in word):
        assert f" {key.split('.')[-1]}: {value}\n" in out
    if "--out" in words:
        assert f"# would write to {words[words.index('--out') + 1]} " in out


def test_the_guide_to_scale_has_commands_for_each_way():
    assert [line.split()[0] for line in STARTED] == [
        *["counterpoint"] * 5,
        *["torchrun"] * 2,
        "srun",
        *["counterpoint"] * 2,
    ]


@pytest.mark.parametrize("change", sorted(set(re.findall(r"`((?:train|optim)\.[a-z_]+=[^`]+)`", SCALE))))
def test_what_the_guide_to_scale_sets(change):
    load_recipe("demo/simclr", [change])


def test_the_job_script_of_the_guide_to_scale(tmp_path):
    (script,) = (block for _, block in BLOCKS if block.startswith("#!/bin/bash"))
    file = tmp_path / "train.sbatch"
    file.write_text(script)
    subprocess.run(["bash", "-n", file], check=True)
    # What a run that was told to stop leaves with, and what the script takes for it.
    assert {Stopped(number).code for number in (signal.SIGUSR1, signal.SIGTERM)} == {
        int(code) for code in re.findall(r"-eq (\d+)", script)
    }


def test_the_loop_of_the_guide_to_scale(tmp_path):
    (block,) = (block for language, block in BLOCKS if language == "python")
    first, second = torch.randn(2, 128, 6, generator=torch.Generator().manual_seed(0))
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(6, 4))
        whole = NTXent(tau=0.1)(model(first), model(second))
        (wanted,) = torch.autograd.grad(whole, [model.module.weight])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names = {"model": model, "first": first, "second": second, "optimizer": optimizer}
        exec(block, {**names, "AcrossRanks": AcrossRanks, "NTXent": NTXent})
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(model.module.weight.grad, wanted, rtol=1e-4, atol=1e-6)
