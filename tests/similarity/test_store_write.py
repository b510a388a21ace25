"""What else an encoder may give, and what may happen in the folder of a store while it is written."""

import hashlib

import pytest
import torch
from pictures import refused
from store_encoders import Hashed

from counterpoint.similarity import EmbeddingStore, build_store
from counterpoint.similarity import store_write as writing

N = 300
KEYS = [f"{i}.png" for i in range(N)]
TEXTS = [f"caption {i}" for i in range(N)]


def build(folder, encoder=None, **words):
    return build_store(folder, KEYS, TEXTS, encoder=encoder or Hashed(), chunk_rows=16, **words)


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return build(tmp_path_factory.mktemp("whole") / "store").path


class Stopping(Hashed):
    """Fails in the fourth chunk."""

    def __call__(self, texts):
        if self.calls == 3:
            raise RuntimeError("stop")
        return super().__call__(texts)


class Changed(Hashed):
    """What another encoder may make of a tensor."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def __call__(self, texts):
        return self.change(super().__call__(texts))


def test_what_an_encoder_may_give(tmp_path, whole):
    """Any real numbers, with a gradient or without; what is no tensor is named."""
    for index, change in enumerate((lambda z: z.requires_grad_(), lambda z: z.double() * 3)):
        store = build(tmp_path / f"{index}", Changed(change))
        assert hashes(store.path)["vectors.npy"] == hashes(whole)["vectors.npy"]
    for change, told in (
        (lambda z: z.numpy(), "got ndarray"),
        (lambda z: z.to(torch.complex64), "got torch.complex64"),
    ):
        with refused("'hashed' must give a tensor of real numbers", told):
            build(tmp_path / "x", Changed(change))
    with refused("encoder must be a name, or a function with a name and a revision, got <function"):
        build(tmp_path / "y", lambda texts: Hashed()(texts))


def test_rows_that_another_machine_spoilt_are_found_and_written_anew(tmp_path, whole):
    folder = tmp_path / "store"

    class Spoiling(Hashed):
        def __call__(self, texts):
            if self.calls == 9:
                with (folder / "vectors.npy").open("r+b") as file:
                    file.seek(128 + 2 * 16 * 20)  # of the second chunk, which is done
                    file.write(b"\x00\x00\x00\x00")
            return super().__call__(texts)

    with refused("rows 16 to 31", "are not those that were written", "again"):
        build(folder, Spoiling())
    with refused("has not ended"):
        EmbeddingStore.open(folder)
    encoder = Hashed()
    build(folder, encoder)
    assert len(encoder.texts) == 16
    assert hashes(folder) == hashes(whole)


def test_a_build_that_ends_leaves_no_second_lock(tmp_path, monkeypatch):
    """One that takes the lock as soon as it is free keeps the file that it holds, or gets none."""
    taken = []
    release = writing.FileLock.release

    def then_another(lock, *words, **more):
        release(lock, *words, **more)
        if not taken and str(tmp_path) in lock.lock_file:  # not when an older one is collected
            taken.append(writing.FileLock(lock.lock_file, is_singleton=False))
            taken[0].acquire(timeout=0)

    monkeypatch.setattr(writing.FileLock, "release", then_another)
    build(tmp_path / "store")
    monkeypatch.undo()
    assert taken[0].is_locked
    with refused("another process is building"):
        build(tmp_path / "store", overwrite=True)
    taken[0].release()


def test_a_store_that_is_whole_is_not_written_to(tmp_path, monkeypatch):
    """So that the same command does where the folder cannot be written to."""
    folder = tmp_path / "store"
    build(folder)

    def no_lock(lock, *words, **more):
        raise PermissionError(13, "Permission denied", str(lock.lock_file))

    monkeypatch.setattr(writing.FileLock, "acquire", no_lock)
    encoder = Hashed()
    assert len(build(folder, encoder)) == N
    assert encoder.calls == 0
    with refused("differs in revision: 2 against 1"):
        build(folder, Hashed("2"))
    with pytest.raises(PermissionError):
        build(folder, Hashed("2"), overwrite=True)


def test_what_systems_leave_in_a_folder_is_no_hindrance(tmp_path, whole):
    folder = tmp_path / "store"
    with pytest.raises(RuntimeError, match="stop"):
        build(folder, Stopping())
    for name in (".DS_Store", ".nfs0000000000a1b2c3"):
        (folder / name).write_bytes(b"theirs")
    build(folder)
    for name in (".DS_Store", ".nfs0000000000a1b2c3"):
        assert (folder / name).read_bytes() == b"theirs"
        (folder / name).unlink()
    assert hashes(folder) == hashes(whole)
