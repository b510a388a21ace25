"""Carry out the plan of a store: in chunks that a killed build keeps, shared by several processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import ValidationError

from counterpoint import __version__
from counterpoint.files import write_whole
from counterpoint.similarity.store import (
    MANIFEST,
    OWN_VECTORS,
    EmbeddingStore,
    Manifest,
    Plan,
    read_manifest,
)
from counterpoint.similarity.store_files import (
    CHUNKS,
    INDEX,
    KEYS,
    SIDE_FILES,
    TEXTS,
    VECTORS,
    Ints,
    KeyTable,
    VectorFile,
    chunk_bounds,
    file_digest,
    open_ints,
    vector_bytes,
    write_array,
    write_keys,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LONGEST_WAIT = timedelta(days=7)
BUILDING, LOCK, DONE = "building.json", "building.lock", "done-*.txt"
WHOLE = {MANIFEST, VECTORS, *SIDE_FILES}
OURS = {*WHOLE, BUILDING, LOCK}
# What a build leaves that is killed in the middle of a `write_whole`.
PARTS = {f".{name}.part" for name in (*OURS, "done-0.txt")}

Progress = Callable[[int, int], None]
Vectors = Callable[[int, int], NDArray[np.float16]]


@dataclass(frozen=True)
class Contents:
    """What goes into a store. hashes: `(distinct, 2)` of the texts. vectors: rows start to stop, `(m, d)`."""

    plan: Plan
    keys: Sequence[str]
    index: Ints
    hashes: NDArray[np.uint64]
    vectors: Vectors


def write_contents(
    folder: Path, contents: Contents, overwrite: bool, fabric: Fabric | None, progress: Progress | None
) -> EmbeddingStore:
    """Carry out a plan, together with the other processes of the fabric."""
    lock = FileLock(folder / LOCK)
    first = fabric is None or fabric.global_rank == 0
    several = fabric is not None and fabric.world_size > 1
    # Its own, since who is done first waits for the slowest, which by default ends after half an hour.
    group = dist.new_group(timeout=LONGEST_WAIT, backend="gloo") if several else None
    try:
        _together(group, lambda: _prepare(folder, contents, overwrite, lock) if first else None)
        if not (folder / MANIFEST).exists():
            missing: list[int] = []
            _together(group, lambda: missing.extend(_missing(folder, contents.plan)))
            _together(group, lambda: _encode(folder, contents, missing, fabric, progress))
            _together(group, lambda: _finish(folder, contents.plan) if first else None)
    finally:
        if lock.is_locked:
            # While it is held: let go of first, another build may hold it by then, and lose its file.
            with contextlib.suppress(PermissionError):  # Windows keeps files that are open
                (folder / LOCK).unlink(missing_ok=True)
            lock.release()
    return EmbeddingStore.open(folder)


def _together(group: Any, act: Callable[[], None]) -> None:
    """Do a part of the work; where one process fails, all of them stop instead of waiting for it.

    group: of processes, or None for one alone.
    """
    fault: Exception | None = None
    try:
        act()
    except Exception as error:
        fault = error
    if group is not None:
        faults: list[bool] = [False] * dist.get_world_size(group)
        dist.all_gather_object(faults, fault is not None, group=group)
        if fault is None and any(faults):
            fault = ValueError(f"process {faults.index(True)} of the build failed: see its message")
    if fault is not None:
        raise fault


def _prepare(folder: Path, contents: Contents, overwrite: bool, lock: FileLock) -> None:
    """Make the folder one that this plan is being carried out in, or refuse it."""
    plan = contents.plan
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a store is a folder")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = [name for name in found if name != ".DS_Store" and not name.startswith(".nfs")]
    if foreign := [name for name in found if name not in OURS | PARTS and not Path(name).match(DONE)]:
        raise ValueError(f"{folder} holds something else, such as {foreign[0]}: give another folder")
    if MANIFEST in found and set(found) <= WHOLE and not overwrite:
        # Nothing is to be written, and the folder may be one that cannot be written to.
        _refuse(folder, read_manifest(folder).plan, contents)
        _check_own(folder, contents)
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another process is building {folder}") from None
    _clear(folder, sorted(PARTS))
    if (folder / MANIFEST).exists() and not overwrite:
        _refuse(folder, read_manifest(folder).plan, contents)
        _check_own(folder, contents)
        _clear(folder, [BUILDING, DONE])
        return
    if (folder / BUILDING).exists() and not overwrite:
        _refuse(folder, _begun(folder), contents)
        _resume(folder, plan)
        return
    left = set(found) - PARTS - {LOCK}
    # A build writes its keys first, and vectors after `building.json`: what else lies here is not one's.
    if left and not overwrite and (KEYS not in left or VECTORS in left):
        raise ValueError(
            f"{folder} holds {', '.join(sorted(left)[:3])} without a {MANIFEST}, so that nothing says what "
            "that is: replace it with --overwrite, or give another folder"
        )
    # The manifest goes first: what it belonged to is no store from here on.
    _clear(folder, [MANIFEST, BUILDING, DONE, VECTORS, *SIDE_FILES])
    write_keys(folder, contents.keys)
    write_array(folder / INDEX, contents.index.astype("<i8"))
    write_array(folder / TEXTS, contents.hashes)
    write_whole(folder / BUILDING, plan.model_dump_json(indent=1).encode())


def _begun(folder: Path) -> Plan:
    """The plan that a build in this folder was carrying out."""
    try:
        return Plan.model_validate_json((folder / BUILDING).read_bytes())
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ValueError(
            f"{folder / BUILDING} cannot be read: {reason}: begin anew with --overwrite"
        ) from None


def _check_own(folder: Path, contents: Contents) -> None:
    """Refuse a store of other vectors: of one's own neither texts nor an encoder tell that they changed."""
    plan = contents.plan
    if plan.encoder != OWN_VECTORS:
        return
    width = read_manifest(folder).width
    file = VectorFile(folder / VECTORS, plan.distinct, width, plan.chunk_rows)
    for chunk in range(file.chunks):
        start, stop = chunk_bounds(chunk, plan.distinct, plan.chunk_rows)
        vectors = contents.vectors(start, stop)
        if vectors.shape != (stop - start, width) or file.hash_of(vectors) != file.digest(chunk):
            raise ValueError(
                f"{folder} holds another store, which differs in the vectors of rows {start} to {stop - 1}: "
                "replace it with --overwrite, or give another folder"
            )


def _refuse(folder: Path, there: Plan, contents: Contents) -> None:
    """ValueError that says in what the plan of this folder differs from the one to carry out."""
    differences = contents.plan.differences(there)
    if "keys" in differences:
        table, keys = KeyTable(folder), contents.keys
        row = next((i for i in range(min(len(table), len(keys))) if table[i] != keys[i]), None)
        if row is not None:
            differences[differences.index("keys")] = (
                f"keys, the first at sample {row}: {keys[row]!r} against {table[row]!r}"
            )
    elif "texts" in differences:
        differences[differences.index("texts")] = _other_texts(folder, contents)
    if differences:
        raise ValueError(
            f"{folder} holds another store, which differs in {'; '.join(differences)} (the new one against "
            "the one there): replace it with --overwrite, or give another folder"
        )


def _other_texts(folder: Path, contents: Contents) -> str:
    """How many samples have other texts than in this folder, which has the same samples, and the first."""
    hashes, index = open_ints(folder / TEXTS), np.asarray(open_ints(folder / INDEX), np.int64)
    if len(index) != len(contents.index) or not 0 <= index.min() <= index.max() < len(hashes):
        return "texts"  # these files are damaged
    other = (hashes[index] != contents.hashes[contents.index]).any(axis=1)
    first = contents.keys[int(other.argmax())]
    return f"texts: those of {int(other.sum())} samples, the first is {first!r}"


def _clear(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        for path in folder.glob(name):
            path.unlink()


def _resume(folder: Path, plan: Plan) -> None:
    """Keep the chunks that are on the disk as they were logged, in one log."""
    kept = {}
    # To know that one's own vectors are still those of the log costs as much as to write them again.
    done = {} if plan.encoder == OWN_VECTORS else _done(folder)
    for chunk, (width, digest) in done.items():
        file = VectorFile(folder / VECTORS, plan.distinct, width, plan.chunk_rows)
        if file.digest(chunk) == digest:
            kept[chunk] = f"{chunk} {width} {digest}\n"
    if not kept:
        _clear(folder, [VECTORS])
    logs = [path.name for path in folder.glob(DONE)]
    write_whole(folder / "done-0.txt", "".join(kept[chunk] for chunk in sorted(kept)).encode())
    _clear(folder, [name for name in logs if name != "done-0.txt"])


def _done(folder: Path) -> dict[int, tuple[int, str]]:
    """The chunks that are logged as written: their width and hash."""
    out = {}
    for log in folder.glob(DONE):
        # What follows the last newline was cut off while it was written.
        for line in log.read_text(errors="replace").split("\n")[:-1]:
            # A line that a crash of the machine spoilt is a chunk to write again.
            if found := re.fullmatch(r"([0-9]+) ([0-9]+) ([0-9a-f]{64})", line):
                out[int(found[1])] = (int(found[2]), found[3])
    return out


def _missing(folder: Path, plan: Plan) -> list[int]:
    done = _done(folder)
    return [chunk for chunk in range(-(-plan.distinct // plan.chunk_rows)) if chunk not in done]


def _encode(
    folder: Path,
    contents: Contents,
    missing: Sequence[int],
    fabric: Fabric | None,
    progress: Progress | None,
) -> None:
    """Write this process's share of the chunks that are not there yet."""
    plan = contents.plan
    rank, world = (0, 1) if fabric is None else (fabric.global_rank, fabric.world_size)

    def show() -> None:
        if progress is not None and rank == 0:
            bounds = (chunk_bounds(chunk, plan.distinct, plan.chunk_rows) for chunk in _done(folder))
            progress(sum(stop - start for start, stop in bounds), plan.distinct)

    show()
    with (folder / f"done-{rank}.txt").open("a") as log:
        for number, chunk in enumerate(missing[rank::world]):
            vectors = contents.vectors(*chunk_bounds(chunk, plan.distinct, plan.chunk_rows))
            width = vectors.shape[1]
            if number == 0:
                _check_room(folder, plan, width, len(missing))
            digest = VectorFile(folder / VECTORS, plan.distinct, width, plan.chunk_rows).write(chunk, vectors)
            log.write(f"{chunk} {width} {digest}\n")
            log.flush()
            os.fsync(log.fileno())
            show()


def _check_room(folder: Path, plan: Plan, width: int, missing: int) -> None:
    needed = 2 * width * min(plan.distinct, missing * plan.chunk_rows)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"{folder} has no room: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        )


def _finish(folder: Path, plan: Plan) -> None:
    """Write the manifest: from here on the folder is a store."""
    done = _done(folder)
    widths = {width for width, _ in done.values()}
    if len(widths) > 1:
        raise ValueError(f"the encoder gave vectors of width {' and '.join(map(str, sorted(widths)))}")
    width = widths.pop()
    file = VectorFile(folder / VECTORS, plan.distinct, width, plan.chunk_rows)
    if missing := set(range(file.chunks)) - set(done):
        raise ValueError(f"{len(missing)} of {file.chunks} chunks of {folder} were not written")
    file.finish()
    if (folder / VECTORS).stat().st_size != vector_bytes(plan.distinct, width):
        raise ValueError(f"{folder / VECTORS} was changed by another program during the build")
    # Several machines write into one file, and what a network drive made of it is not known until it is read.
    for chunk in range(file.chunks):
        if file.digest(chunk) != done[chunk][1]:
            start, stop = chunk_bounds(chunk, plan.distinct, plan.chunk_rows)
            raise ValueError(
                f"rows {start} to {stop - 1} of {folder / VECTORS} are not those that were written: another "
                "program or machine changed them; the same command again writes them anew"
            )
    sums = "".join(f"{done[chunk][1]}\n" for chunk in range(file.chunks)).encode()
    write_whole(folder / CHUNKS, sums)
    manifest = Manifest(
        **plan.model_dump(),
        counterpoint=__version__,
        width=width,
        vectors_sha256=hashlib.sha256(sums).hexdigest(),
        files={
            name: ((folder / name).stat().st_size, file_digest(folder / name)) for name in sorted(SIDE_FILES)
        },
    )
    sealed = manifest.model_copy(update={"sha256": manifest.digest()})
    write_whole(folder / MANIFEST, sealed.model_dump_json(indent=1).encode() + b"\n")
    _clear(folder, [BUILDING, DONE])
