"""Two gloo processes against one: the same losses step by step, and the same weights."""

import json
import math
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from two_processes import ALIKE, end, float64, quiet, recipe, shards, train_all

from counterpoint.train.checkpoint import load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.processes import start_processes
from counterpoint.train.run import Run


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The folder of what two processes trained; one process had begun `begun` and stopped after two steps."""
    folder = tmp_path_factory.mktemp("both")
    with float64():
        begun = fit(recipe("ntxent", save_every=2), folder / "begun", console=quiet())
    end(begun).unlink()
    begun.done.unlink()
    shards(folder / "shards")
    start_processes(2, partial(train_all, folder))
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    with float64():
        return {name: fit(recipe(name), folder / name, console=quiet()) for name in ALIKE}


def assert_alike(run, other):
    """The weights of float64 to 1e-12, and what is logged, which has six digits, to 1e-5."""
    rows, others = read_metrics(run.metrics), read_metrics(other.metrics)
    assert [row["step"] for row in rows] == [row["step"] for row in others] == [1, 2, 3, 4]
    for row, same in zip(rows, others, strict=True):
        for key in row.keys() - {"images_per_s", "data_wait"}:
            both = [math.nan if value is None else value for value in (row[key], same[key])]
            assert both[0] == pytest.approx(both[1], rel=1e-5, abs=1e-5, nan_ok=True), key
    weights, same = (load_checkpoint(end(r))["encoder"] for r in (run, other))
    assert weights.keys() == same.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], same[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("objective", ALIKE)
def test_two_processes_train_as_one_does(both, one, objective):
    run = Run(both / objective)
    assert_alike(run, one[objective])
    assert json.loads(run.done.read_text())["processes"] == 2
    # In double precision, or the bound above would say less.
    assert all(w.dtype == torch.float64 for w in load_checkpoint(end(run))["encoder"].values())


def test_the_queue_and_the_momentum_encoder_of_two_processes_are_those_of_one(both, one):
    found, wanted = (load_checkpoint(end(run))["momentum"] for run in (Run(both / "moco"), one["moco"]))
    assert found["queue._extra_state"] == wanted["queue._extra_state"]
    assert len(wanted["queue.slots"]) == 17
    tensors = [name for name, value in wanted.items() if isinstance(value, torch.Tensor)]
    for name in tensors:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-12)


def test_two_processes_with_a_gradient_cache_train_as_one_without(both, one):
    assert_alike(Run(both / "parts"), one["ntxent"])


def test_a_run_of_one_process_is_continued_by_two(both, one):
    assert_alike(Run(both / "begun"), one["ntxent"])


def test_a_step_that_is_not_finite_is_skipped_by_both(both):
    run = Run(both / "skipped")
    assert json.loads(run.done.read_text())["skipped"] == 1
    assert [row["step"] for row in read_metrics(run.metrics)] == [1, 2, 4]
    assert all(torch.isfinite(w).all() for w in load_checkpoint(end(run))["encoder"].values())


def test_each_process_writes_its_share_of_a_batch_that_is_not_finite(both):
    shares = [both / "stopped" / f"nan-step-3-process-{rank}" for rank in range(2)]
    ids = [load_file(share / "batch.safetensors")["ids"] for share in shares]
    assert [len(own) for own in ids] == [6, 7]
    assert len(set(torch.cat(ids).tolist())) == 13
    for share in shares:
        assert json.loads((share / "batch.json").read_text())["loss"] == {"loss": "nan"}


def test_what_either_process_leaves_out_of_a_stream_is_counted(both):
    rows = read_metrics(Run(both / "from_shards").metrics)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["left_out"] == 4
    assert "skipped 4 broken pictures, the first is made-0000" in (both / "said").read_text()


def test_what_the_first_process_finds_is_known_to_all(both):
    wrong = "invalid literal for int() with base 10: 'x'"
    for rank in range(2):
        assert (both / f"seen-{rank}").read_text() == f"2 told by 0; {wrong}"
