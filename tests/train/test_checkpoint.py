import json
import pickle
import resource
import signal
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from counterpoint.train.checkpoint import (
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
    newest_step,
    save_checkpoint,
)


def state(step):
    return {"step": step, "weights": torch.arange(1000.0) + step, "random_state": torch.get_rng_state()}


def test_round_trip(tmp_path):
    path = save_checkpoint(tmp_path, 7, state(7))
    loaded = load_checkpoint(path)
    assert loaded["step"] == 7
    assert torch.equal(loaded["weights"], state(7)["weights"])


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 30, 400):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == [
        "step-00000030.safetensors",
        "step-00000400.safetensors",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000030.safetensors",
        "step-00000400.safetensors",
    ]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text"])
def test_a_broken_newest_is_skipped_aloud(tmp_path, damage):
    save_checkpoint(tmp_path, 1, state(1))
    path = save_checkpoint(tmp_path, 2, state(2))
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    replacement = {"truncated": content[:-100], "empty": b"", "flipped": content, "text": b"not a checkpoint"}
    path.write_bytes(bytes(replacement[damage]))
    said = []
    loaded = newest_checkpoint(tmp_path, said.append)
    assert loaded is not None
    assert loaded["step"] == 1
    assert len(said) == 1
    assert "step-00000002.safetensors" in said[0]
    assert "skipped" in said[0]


def test_broken_ones_of_later_steps_do_not_push_a_new_one_out(tmp_path):
    for step in (20, 30):
        save_checkpoint(tmp_path, step, state(step)).write_bytes(b"broken")
    for step in (10, 15, 18):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    loaded = newest_checkpoint(tmp_path, lambda line: None)
    assert loaded is not None
    assert loaded["step"] == 18
    assert [path.stem[-2:] for path in checkpoints(tmp_path)] == ["15", "18", "20", "30"]
    assert (newest_step(tmp_path, 19), newest_step(tmp_path, 40), newest_step(tmp_path, 9)) == (18, 30, 0)


def test_no_checkpoint_at_all(tmp_path):
    assert newest_checkpoint(tmp_path / "absent", print) is None


def test_every_byte_is_covered(tmp_path):
    path = save_checkpoint(tmp_path, 1, {"step": 1, "weights": torch.arange(3.0)})
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="truncated or damaged"):
            load_checkpoint(path)


def test_all_that_a_state_may_hold_comes_back_the_same(tmp_path):
    weight = torch.randn(3, 2)
    given = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "low": torch.randn(4, dtype=torch.bfloat16),
        "tied": [weight, weight],
        "turned": weight.T,
        "empty": torch.empty(0, 5),
        "random": torch.get_rng_state(),
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}, 10: {}}, "groups": [{"betas": (0.9, 0.1)}]},
        "plain": [None, True, 1, 0.1 + 0.2, float("inf"), 'a "quoted" ö', {}],
    }  # fmt: skip
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, given))
    assert_same(loaded, given)


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    else:
        assert left == right


def test_other_readers_of_safetensors_find_the_weights_by_name(tmp_path):
    path = save_checkpoint(tmp_path, 1, {"encoder": {"head.0.weight": torch.ones(2)}, "step": 1})
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == ["encoder/head.0.weight"]
        assert json.loads(file.metadata()["state"])["step"] == 1


def test_what_cannot_be_stored_is_refused_by_its_place(tmp_path):
    with pytest.raises(ValueError, match="cannot hold the set at 'optimizer/groups'"):
        save_checkpoint(tmp_path, 1, {"optimizer": {"groups": {1, 2}}})
    with pytest.raises(ValueError, match="two tensors of the state have the place 'a/b'"):
        save_checkpoint(tmp_path, 1, {"a": {"b": torch.ones(1)}, "a/b": torch.ones(1)})
    assert checkpoints(tmp_path) == []


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


def test_loading_runs_no_code(tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_checkpoint(path)
    torch.save({"step": Evil()}, path)
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_checkpoint(path)
    save_file({"weights": torch.ones(2)}, path)  # not ours
    with pytest.raises(ValueError, match="no SHA-256"):
        load_checkpoint(path)


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    save_checkpoint(tmp_path, 1, state(1))
    (tmp_path / ".step-00000002.safetensors.part").write_bytes(b"half")
    save_checkpoint(tmp_path, 3, state(3))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-00000001.safetensors",
        "step-00000003.safetensors",
    ]


WRITER = """
import resource, signal, sys, torch
from pathlib import Path
from counterpoint.train.checkpoint import save_checkpoint
folder = Path(sys.argv[1])
save_checkpoint(folder, 1, {"step": 1})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # the disk is full after 100 kB
try:
    save_checkpoint(folder, 2, {"step": 2, "weights": torch.zeros(1_000_000)})
except OSError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(
    not hasattr(resource, "RLIMIT_FSIZE") or not hasattr(signal, "SIGXFSZ"), reason="needs POSIX limits"
)
def test_a_full_disk_leaves_the_last_whole_checkpoint(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "refused:" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.safetensors"]
    assert load_checkpoint(tmp_path / "step-00000001.safetensors")["step"] == 1
