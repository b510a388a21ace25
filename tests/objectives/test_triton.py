"""Triton's kernels: under its interpreter against the plain form in float64, and compiled for GPUs.

No GPU has run them: see docs/streaming.md.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from counterpoint.objectives import NTXent
from counterpoint.objectives.triton_switch import takes_triton

TESTS = Path(__file__).parents[1]
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


def in_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        check=False,
    )


@needs_triton
def test_kernels_under_the_interpreter():
    asked = {"TRITON_INTERPRET": "1", "COUNTERPOINT_TRITON": "1"}
    done = in_python("-m", "pytest", "-p", "no:cacheprovider", str(TESTS / "triton_cases.py"), **asked)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 50
    assert "skipped" not in done.stdout


@needs_triton
def test_the_benchmark_checks_them_and_needs_a_gpu(tmp_path: Path):
    script = str(TESTS.parent / "benchmarks" / "gpu.py")
    done = in_python(script, "--interpret", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "gpu-checks-interpreted.csv").read_text().splitlines()
    assert len(lines) == 7
    assert all(",True," in line for line in lines[1:])
    done = in_python(script, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert done.stderr.count("\n") == 1


@needs_triton
def test_kernels_compile_for_gpus_and_fit_them():
    done = in_python(str(TESTS / "triton_compiled.py"), TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == "all fit"


def test_a_value_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNTERPOINT_TRITON", "yes")
    with pytest.raises(ValueError, match="COUNTERPOINT_TRITON must be 0 or 1, got 'yes'"):
        NTXent(chunk_size=8)(torch.eye(4), torch.eye(4))


def test_the_cpu_keeps_its_tiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNTERPOINT_TRITON", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not takes_triton(torch.eye(4))
    assert NTXent(chunk_size=8)(torch.eye(4), torch.eye(4)).isfinite()


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNTERPOINT_TRITON", "1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"counterpoint\[triton\]"):
        takes_triton(torch.eye(4))
