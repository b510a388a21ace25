import resource
import signal
import subprocess
import sys

import pytest
import torch

from counterpoint.train.checkpoint import checkpoints, load_checkpoint, newest_checkpoint, save_checkpoint


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
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000030.pt", "step-00000400.pt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000030.pt", "step-00000400.pt"]


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
    assert "step-00000002.pt" in said[0]
    assert "skipped" in said[0]


def test_no_checkpoint_at_all(tmp_path):
    assert newest_checkpoint(tmp_path / "absent", print) is None


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("code ran",))

    path = save_checkpoint(tmp_path, 1, {"step": Evil()})
    with pytest.raises(Exception, match=r"weights_only|Unsupported"):
        load_checkpoint(path)


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
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.pt"]
    assert load_checkpoint(tmp_path / "step-00000001.pt")["step"] == 1
