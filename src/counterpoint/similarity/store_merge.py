"""Several stores of parts of a data set, as one."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoint.similarity.store import EmbeddingStore, Plan
from counterpoint.similarity.store_files import (
    INDEX,
    TEXTS,
    Ints,
    KeyTable,
    keys_digest,
    open_ints,
    texts_digest,
)
from counterpoint.similarity.store_write import Contents, Progress, write_contents

SAME = ("text", "encoder", "revision", "templates", "normalised", "width")
# The same text in another batch: the encoder's float32 sums, and then fp16, round differently.
NEAR = 0.01
BLOCK = 65_536


def merge_stores(
    path: str | Path,
    parts: Sequence[EmbeddingStore],
    *,
    data: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EmbeddingStore:
    """Write the samples of several stores into one, in their order; equal texts are stored once.

    parts: made by one encoder from one kind of text and the same templates. A key may be in several of them
        if its text is the same; the first one counts.
    data: what the samples are called; the names of the parts, joined, if not given.

    Raises ValueError for parts that differ or are damaged, and for a key that has different texts in two of
    them.

    >>> import tempfile
    >>> from counterpoint.similarity.store_build import write_store
    >>> folder = tempfile.mkdtemp()
    >>> a = write_store(f"{folder}/a", torch.eye(2), ["x", "y"], name="a")
    >>> b = write_store(f"{folder}/b", torch.eye(2)[:1], ["z"], name="b")
    >>> merge_stores(f"{folder}/all", [a, b]).graph(["z", "x", "y"]).batch(torch.tensor([0, 1, 2]))[0]
    tensor([1., 1., 0.])
    """
    folder = Path(path).expanduser()
    if len(parts) < 2:
        raise ValueError(f"at least two stores are needed to merge, got {len(parts)}")
    if any(part.path.resolve() == folder.resolve() for part in parts):
        raise ValueError(f"{folder} is one of the stores to merge: give another folder")
    _check_alike(parts)
    for part in parts:
        part.check()  # else a damaged row would get a hash that says it is whole
    kept = _kept(parts)
    keys = _Keys([(part.keys, rows) for part, rows in zip(parts, kept, strict=True)])
    hashes = np.concatenate([np.asarray(open_ints(part.path / TEXTS), dtype=np.uint64) for part in parts])
    base = np.cumsum([0, *(part.manifest.distinct for part in parts)])
    # Each distinct text keeps the row it has first; `new` is that row's number among those kept.
    pairs = hashes.view([("a", "<u8"), ("b", "<u8")]).reshape(-1)
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    index = np.concatenate(
        [
            open_ints(part.path / INDEX)[rows] + start
            for part, rows, start in zip(parts, kept, base[:-1], strict=True)
        ]
    )
    old = first[inverse]
    used = np.unique(old[index])
    index = np.searchsorted(used, old[index])
    read = _reader(parts, base)
    _check_near(read, old)
    chosen = hashes[used]
    m = parts[0].manifest
    plan = Plan(
        **m.plan.model_copy(
            update={
                "data": data or " + ".join(part.manifest.data for part in parts),
                "samples": len(keys),
                "distinct": len(used),
                "keys_sha256": keys_digest(keys),
                "texts_sha256": texts_digest(chosen, index),
            }
        ).model_dump()
    )
    contents = Contents(plan, keys, index, chosen, lambda start, stop: read(used[start:stop]))
    return write_contents(folder, contents, overwrite, None, progress)


class _Keys(Sequence[str]):
    """The keys of several tables, of some rows of each, one after another: read when they are asked for."""

    def __init__(self, parts: Sequence[tuple[KeyTable, Ints]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(rows) for _, rows in parts]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        part = bisect.bisect_right(self._ends, row)
        table, rows = self._parts[part]
        return table[int(rows[row - (self._ends[part - 1] if part else 0)])]


def _check_alike(parts: Sequence[EmbeddingStore]) -> None:
    first = parts[0]
    for part in parts[1:]:
        for name in SAME:
            mine, theirs = getattr(first.manifest, name), getattr(part.manifest, name)
            if name == "encoder" and first.manifest.revision == part.manifest.revision:
                # One folder, file by file, which each machine keeps somewhere else.
                mine, theirs = (re.sub(r"^(hf:)?(?=/|~|\.\.?/).*/", r"\1", one) for one in (mine, theirs))
            if mine != theirs:
                raise ValueError(
                    f"stores {first.path} and {part.path} cannot be merged: {name} is {mine!r} in the one "
                    f"and {theirs!r} in the other"
                )


def _kept(parts: Sequence[EmbeddingStore]) -> list[Ints]:
    """The rows of each part whose key no earlier part has; a key with two texts is refused."""
    out: list[Ints] = []
    for i, part in enumerate(parts):
        fresh = np.ones(len(part), bool)
        for earlier in parts[:i]:
            for start in range(0, len(part), BLOCK):
                table = part.keys
                rows = np.arange(start, min(start + BLOCK, len(part)))
                there = earlier.keys.find([table[int(row)] for row in rows])
                twice = there >= 0
                mine = _hashes(part, rows[twice])
                theirs = _hashes(earlier, there[twice])
                if (bad := (mine != theirs).any(axis=1)).any():
                    key = table[int(rows[twice][bad.argmax()])]
                    raise ValueError(
                        f"key {key!r} has one text in store {earlier.path} and another in {part.path}"
                    )
                fresh[rows[twice]] = False
        out.append(np.flatnonzero(fresh))
    return out


def _hashes(store: EmbeddingStore, rows: Ints) -> NDArray[np.uint64]:
    """The hashes of the texts of these samples."""
    texts = open_ints(store.path / TEXTS)
    out: NDArray[np.uint64] = np.asarray(texts[np.asarray(open_ints(store.path / INDEX)[rows])], np.uint64)
    return out


def _reader(parts: Sequence[EmbeddingStore], base: Ints) -> Callable[[Ints], NDArray[np.float16]]:
    """A function from rows, counted through all parts, to their vectors."""
    graphs = [part.graph() for part in parts]

    def read(rows: Ints) -> NDArray[np.float16]:
        out = np.empty((len(rows), parts[0].manifest.width), np.float16)
        owner = np.searchsorted(base, rows, side="right") - 1
        for i, graph in enumerate(graphs):
            if (mine := owner == i).any():
                out[mine] = graph.read(torch.from_numpy(rows[mine] - base[i])).numpy()
        return out

    return read


def _check_near(read: Callable[[Ints], NDArray[np.float16]], old: Ints) -> None:
    """Refuse one text with two vectors: the encoders cannot have been the same, whatever they say."""
    again = np.flatnonzero(old != np.arange(len(old)))
    for start in range(0, len(again), BLOCK):
        rows = again[start : start + BLOCK]
        apart = np.abs(read(rows).astype(np.float32) - read(old[rows]).astype(np.float32)).max()
        if apart > NEAR:
            raise ValueError(
                f"one text has two vectors, {apart:.3g} apart: these stores come from different encoders"
            )
