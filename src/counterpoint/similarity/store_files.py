"""The files of a store: vectors in hashed chunks, and keys that are looked up on the disk."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from counterpoint.files import write_whole

VECTORS, CHUNKS, INDEX, TEXTS = "vectors.npy", "vectors.sha256", "index.npy", "texts.npy"
KEYS, KEY_ENDS, KEY_HASHES, KEY_ROWS = "keys.bin", "key_ends.npy", "key_hashes.npy", "key_rows.npy"
SIDE_FILES = (CHUNKS, INDEX, TEXTS, KEYS, KEY_ENDS, KEY_HASHES, KEY_ROWS)

BLOCK = 65_536  # keys per block: part of the keys' hash, so not to be changed
READ = 1 << 22
TEXT_BYTES = 16  # equal hashes are taken for equal texts
KEY_BYTES = 8  # equal hashes are looked at again, key by key

Ints = NDArray[np.int64]


def vector_header(rows: int, width: int) -> bytes:
    """What stands before the vectors in their .npy file: 128 bytes, whatever numpy's version pads to."""
    form = f"{{'descr': '<f2', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + form.ljust(117).encode() + b"\n"


def vector_bytes(rows: int, width: int) -> int:
    """The size of the .npy file of these vectors."""
    return len(vector_header(rows, width)) + 2 * rows * width


def chunk_bounds(chunk: int, rows: int, chunk_rows: int) -> tuple[int, int]:
    """The first row of a chunk, and the row after its last one."""
    return chunk * chunk_rows, min(rows, (chunk + 1) * chunk_rows)


class VectorFile:
    """Fp16 vectors `(rows, width)` as .npy, written and hashed chunk by chunk, in any order, by any process.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> file = VectorFile(folder / "vectors.npy", rows=3, width=2, chunk_rows=2)
    >>> sums = [file.write(1, np.ones((1, 2), np.float16)), file.write(0, np.zeros((2, 2), np.float16))]
    >>> file.finish()
    >>> sums == [file.digest(1), file.digest(0)], np.load(folder / "vectors.npy").tolist()
    (True, [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    """

    def __init__(self, path: Path, rows: int, width: int, chunk_rows: int) -> None:
        self.path, self.rows, self.width, self.chunk_rows = path, rows, width, chunk_rows
        self._header = vector_header(rows, width)

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.rows // self.chunk_rows)

    def write(self, chunk: int, vectors: NDArray[np.float16]) -> str:
        """Write the vectors of a chunk, down to the disk; their SHA-256."""
        start, stop = chunk_bounds(chunk, self.rows, self.chunk_rows)
        if vectors.shape != (stop - start, self.width) or vectors.dtype != np.float16:
            raise ValueError(
                f"chunk {chunk} needs float16 of shape {(stop - start, self.width)}, "
                f"got {vectors.dtype} of shape {vectors.shape}"
            )
        content = _content(vectors)
        # Not "wb": other processes write their chunks into the same file.
        with os.fdopen(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o644), "r+b") as file:
            file.seek(len(self._header) + 2 * start * self.width)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return hashlib.sha256(content).hexdigest()

    @staticmethod
    def hash_of(vectors: NDArray[np.float16]) -> str:
        """The SHA-256 that these vectors have as a chunk."""
        return hashlib.sha256(_content(vectors)).hexdigest()

    def digest(self, chunk: int) -> str | None:
        """The SHA-256 of a chunk as it is on the disk; None where the file ends before it does."""
        start, stop = chunk_bounds(chunk, self.rows, self.chunk_rows)
        size = 2 * (stop - start) * self.width
        try:
            with self.path.open("rb") as file:
                file.seek(len(self._header) + 2 * start * self.width)
                content = file.read(size)
        except FileNotFoundError:
            return None
        return hashlib.sha256(content).hexdigest() if len(content) == size else None

    def finish(self) -> None:
        """Write the header: only now is the file an array."""
        with self.path.open("r+b") as file:
            file.write(self._header)
            file.flush()
            os.fsync(file.fileno())


class VectorReader:
    """The vectors of a finished file, some rows at a time: `VectorReader(path, rows, width).read(which)`.

    They are not mapped: around each row that is touched the system would map as much of the file as it keeps
    in one piece, up to megabytes, and 1,000 batches of a large store held gigabytes of it.
    """

    def __init__(self, path: Path, rows: int, width: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._start, self._width = len(vector_header(rows, width)), width
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, rows: Ints) -> NDArray[np.float16]:
        """The vectors `(m, width)` of these rows, best in order: neighbours are read at once.

        Raises ValueError where the file ends before a row does.
        """
        size = 2 * self._width
        first = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        lengths = np.diff(first, append=len(rows)) * size
        pieces = list(zip((self._start + rows[first] * size).tolist(), lengths.tolist(), strict=True))
        if hasattr(os, "posix_fadvise"):
            # All are asked for before the first is waited for.
            for offset, length in pieces:
                os.posix_fadvise(self._file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)
        content = bytearray().join([self._piece(offset, length) for offset, length in pieces])
        if len(content) != len(rows) * size:
            raise ValueError(
                f"{self._file.name} is damaged: it has {len(content)} of {len(rows) * size} bytes"
            )
        return np.frombuffer(content, dtype="<f2").reshape(-1, self._width)

    def _piece(self, offset: int, length: int) -> bytes:
        if hasattr(os, "pread"):
            # It has no place in the file that forked processes or threads would share.
            return os.pread(self._file.fileno(), length, offset)
        with open(self._file.name, "rb") as file:
            file.seek(offset)
            return file.read(length)


def _content(vectors: NDArray[np.float16]) -> bytes:
    return np.ascontiguousarray(vectors, dtype="<f2").tobytes()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_file(path: Path) -> mmap.mmap:
    """A file as memory that is read when it is touched."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def open_ints(path: Path) -> NDArray[np.generic]:
    """An array of the store, read from the disk where it is touched."""
    try:
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    # numpy reads the header as Python, and one with a flipped bit fails in as many ways.
    except Exception:
        raise ValueError(f"{path} is damaged: its header cannot be read") from None
    return array


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    """One hash per text, `(n, 2)` uint64: what a store keeps of its texts."""
    out = np.empty((len(texts), 2), "<u8")
    for start in range(0, len(texts), BLOCK):
        rows = range(start, min(start + BLOCK, len(texts)))
        # A key may be the name of a file that is not UTF-8.
        block = (texts[row].encode("utf-8", "surrogatepass") for row in rows)
        digests = b"".join(hashlib.blake2b(text, digest_size=TEXT_BYTES).digest() for text in block)
        out[start : start + BLOCK] = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    return out


def texts_digest(hashes: NDArray[np.uint64], index: Ints) -> str:
    """The hash of which text each sample has: of the hashes of all texts, and the text of each sample."""
    digest = hashlib.sha256(hashes.tobytes())
    digest.update(index.astype("<i8").tobytes())
    return digest.hexdigest()


def key_hashes(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """One hash per key, `(n,)` uint64."""
    digests = b"".join(hashlib.blake2b(key, digest_size=KEY_BYTES).digest() for key in keys)
    return np.frombuffer(digests, dtype="<u8")


def key_blocks(keys: Sequence[str]) -> Iterator[tuple[int, list[bytes]]]:
    """The keys as UTF-8, block by block, with the number of the first: a long list is never there twice."""
    for start in range(0, len(keys), BLOCK):
        block = [keys[row] for row in range(start, min(start + BLOCK, len(keys)))]
        for row, key in enumerate(block, start):
            if not isinstance(key, str) or not key:
                raise ValueError(f"keys[{row}] is {key!r}: every key must be a string that is not empty")
        # Names of files that are not UTF-8 come as lone surrogates.
        yield start, [key.encode("utf-8", "surrogatepass") for key in block]


class KeyDigest:
    """The hash of a list of keys, in their order."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, block: Sequence[bytes]) -> None:
        """The next block of keys."""
        # With the lengths, so that "a", "bc" is not "ab", "c".
        self._sum.update(np.fromiter(map(len, block), "<i8", len(block)).tobytes())
        self._sum.update(b"".join(block))

    def hexdigest(self) -> str:
        """The hash of all blocks so far."""
        return self._sum.hexdigest()


def keys_digest(keys: Sequence[str]) -> str:
    """The hash of these keys, in this order.

    >>> keys_digest(["a", "bc"]) == keys_digest(["ab", "c"])
    False
    """
    digest = KeyDigest()
    for _, block in key_blocks(keys):
        digest.add(block)
    return digest.hexdigest()


def write_keys(folder: Path, keys: Sequence[str]) -> str:
    """Write the keys and what finds them; their hash.

    Raises ValueError for a key that comes twice, and one that is empty or no string.
    """
    digest = KeyDigest()
    ends, hashes = np.empty(len(keys), "<i8"), np.empty(len(keys), "<u8")
    with (folder / KEYS).open("wb") as file:
        end = 0
        for start, block in key_blocks(keys):
            digest.add(block)
            lengths = np.fromiter(map(len, block), "<i8", len(block))
            ends[start : start + len(block)] = end + lengths.cumsum()
            hashes[start : start + len(block)] = key_hashes(block)
            end = int(ends[start + len(block) - 1])
            file.write(b"".join(block))
        file.flush()
        os.fsync(file.fileno())
    order = hashes.argsort(kind="stable")
    hashes = hashes[order]
    _check_distinct(keys, hashes, order)
    for name, array in ((KEY_ENDS, ends), (KEY_HASHES, hashes), (KEY_ROWS, order.astype("<i8"))):
        write_array(folder / name, array)
    return digest.hexdigest()


def write_array(path: Path, array: NDArray[np.generic]) -> None:
    """Write an array as .npy, whole or not at all."""
    write_whole(path, lambda file: np.save(file, array, allow_pickle=False))


def _check_distinct(keys: Sequence[str], hashes: NDArray[np.uint64], order: NDArray[np.int64]) -> None:
    """Refuse keys that repeat: equal ones have equal hashes, which lie side by side."""
    twins = np.flatnonzero(hashes[1:] == hashes[:-1])
    seen: dict[str, int] = {}
    repeated = []
    for row in sorted({int(order[i]) for i in twins} | {int(order[i + 1]) for i in twins}):
        first = seen.setdefault(keys[row], row)
        if first != row:
            repeated.append((first, row))
    if repeated:
        first, again = repeated[0]
        raise ValueError(
            f"keys must be distinct, but {len(repeated)} of {len(keys)} repeat an earlier one; the first is "
            f"{keys[first]!r}, of samples {first} and {again}"
        )


class KeyTable:
    """The keys of a store, on the disk: the key of a row, and the rows of keys by search in their hashes.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> digest = write_keys(folder, ["a.png", "b.png", "c.png"])
    >>> table = KeyTable(folder)
    >>> table.find(["c.png", "x.png"]).tolist(), table[1], len(table)
    ([2, -1], 'b.png', 3)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends = open_ints(folder / KEY_ENDS)
        self._text = map_file(folder / KEYS)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:
        start = int(self._ends[row - 1]) if row else 0
        return self._text[start : int(self._ends[row])].decode("utf-8", "surrogatepass")

    def find(self, keys: Sequence[str]) -> Ints:
        """The row of each key, `(len(keys),)`; -1 for one that is not there."""
        hashes, rows = open_ints(self._folder / KEY_HASHES), open_ints(self._folder / KEY_ROWS)
        out = np.full(len(keys), -1, np.int64)
        for start, block in key_blocks(keys):
            wanted = key_hashes(block)
            # In the order of the hashes the search walks the file from one end to the other.
            order = wanted.argsort()
            places = np.searchsorted(hashes, wanted[order])
            for i, place in zip(order.tolist(), places.tolist(), strict=True):
                out[start + i] = self._row(block[i], int(wanted[i]), place, hashes, rows)
        return out

    def _row(
        self,
        key: bytes,
        wanted: int,
        place: int,
        hashes: NDArray[np.generic],
        rows: NDArray[np.generic],
    ) -> int:
        """Two keys may have one hash: walk over all that do."""
        while place < len(hashes) and int(hashes[place]) == wanted:
            row = int(rows[place])
            if not 0 <= row < len(self._ends):
                raise ValueError(f"{self._folder / KEY_ROWS} is damaged: it names row {row} of {len(self)}")
            start = int(self._ends[row - 1]) if row else 0
            if self._text[start : int(self._ends[row])] == key:
                return row
            place += 1
        return -1
