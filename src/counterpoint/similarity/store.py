"""A similarity graph on the disk: one fp16 vector per distinct text, read batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from counterpoint.data.samples import Samples
from counterpoint.similarity.classes import EmbeddingGraph
from counterpoint.similarity.store_encode import texts_of
from counterpoint.similarity.store_files import (
    CHUNKS,
    INDEX,
    TEXTS,
    VECTORS,
    Ints,
    KeyTable,
    VectorFile,
    VectorReader,
    chunk_bounds,
    file_digest,
    keys_digest,
    open_ints,
    text_hashes,
    vector_bytes,
    vector_header,
)

MANIFEST = "manifest.json"
OWN_VECTORS = "own vectors"
UNIT = 0.01  # rounded to fp16, unit vectors are off by 0.0005 at most


class Plan(BaseModel):
    """What a store is made of: all that decides its bytes, but for the encoder's own arithmetic.

    data: what the samples are called. text: what of them is encoded: "caption", or a label column.
    samples, distinct: how many samples and how many different texts there are.
    templates: the sentences that a text is put into; their vectors are averaged.
    revision: what tells versions of the encoder apart: a commit, or the SHA-256 of its files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str
    text: str
    samples: int = Field(ge=1)
    distinct: int = Field(ge=1)
    encoder: str
    revision: str
    templates: tuple[str, ...] = Field(min_length=1)
    normalised: Literal[True] = True
    chunk_rows: int = Field(ge=1)
    keys_sha256: str
    texts_sha256: str

    def differences(self, other: Plan) -> list[str]:
        """In what another plan differs, in words: ours first.

        >>> plan = Plan(data="a", text="caption", samples=2, distinct=2, encoder="minilm", revision="1",
        ...             templates=("{}",), chunk_rows=4, keys_sha256="", texts_sha256="")
        >>> plan.differences(plan.model_copy(update={"samples": 3, "keys_sha256": "x"}))
        ['samples: 2 against 3', 'keys']
        """
        hashes = {"keys_sha256": "keys", "texts_sha256": "texts"}
        out = []
        for name in Plan.model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                out.append(hashes.get(name) or f"{name}: {_short(mine)} against {_short(theirs)}")
        return out


class Manifest(Plan):
    """A plan carried out: what was written.

    vectors_sha256: the SHA-256 of the SHA-256 of all chunks, as `vectors.sha256` lists them.
    files: bytes and SHA-256 of every other file.
    sha256: of the manifest itself, without this.
    """

    format: Literal["counterpoint similarity store"] = "counterpoint similarity store"
    version: Literal[1] = 1
    counterpoint: str
    width: int = Field(ge=1)
    vectors_sha256: str
    files: dict[str, tuple[int, str]]
    sha256: str = ""

    def digest(self) -> str:
        """The SHA-256 of everything but `sha256`."""
        return hashlib.sha256(self.model_dump_json(exclude={"sha256"}).encode()).hexdigest()

    @property
    def plan(self) -> Plan:
        """The plan alone."""
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields})


class EmbeddingStore:
    """A store that was built, merged or written: `EmbeddingStore.open(path)`.

    Nothing but the manifest is read at once, so that opening takes as long for 12 million samples as for ten.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a store. The size of every file is checked, and the hash of the first and the last chunk of
        vectors; `check` reads all.

        Raises ValueError for what is no store, a build that has not ended, and a store that is damaged.

        >>> import tempfile
        >>> from counterpoint.similarity.store_build import write_store
        >>> folder = tempfile.mkdtemp() + "/store"
        >>> _ = write_store(folder, torch.eye(3), ["a", "b", "c"], name="corners")
        >>> EmbeddingStore.open(folder).graph(["c", "a"]).batch(torch.tensor([0, 1]))
        tensor([[1., 0.],
                [0., 1.]])
        """
        folder = Path(path).expanduser()
        store = cls(folder, read_manifest(folder))
        m = store.manifest
        sizes = {name: size for name, (size, _) in m.files.items()}
        sizes[VECTORS] = vector_bytes(m.distinct, m.width)
        for name, size in sizes.items():
            file = folder / name
            if not file.is_file():
                raise ValueError(f"store {folder} is damaged: {name} is not there")
            if (found := file.stat().st_size) != size:
                raise ValueError(f"store {folder} is damaged: {name} has {found} bytes instead of {size}")
        with (folder / VECTORS).open("rb") as file_of_vectors:
            if file_of_vectors.read(len(vector_header(1, 1))) != vector_header(m.distinct, m.width):
                raise ValueError(f"store {folder} is damaged: {VECTORS} has another header")
        if (found := len(open_ints(folder / INDEX))) != m.samples:
            raise ValueError(
                f"store {folder} is damaged: {INDEX} has {found} rows, and {MANIFEST} {m.samples} samples"
            )
        sums = store._sums()
        store._check_chunks(sums, sorted({0, len(sums) - 1}))
        return store

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        m = self.manifest
        return f"EmbeddingStore({m.data!r}, {m.samples} samples, {m.distinct} texts, {m.encoder})"

    def check(self) -> None:
        """Read every file and compare its hash; ValueError that says what is damaged, and which rows."""
        for name, (_, digest) in self.manifest.files.items():
            if file_digest(self.path / name) != digest:
                raise ValueError(f"store {self.path} is damaged: {name} has another SHA-256")
        sums = self._sums()
        self._check_chunks(sums, range(len(sums)))

    @property
    def keys(self) -> KeyTable:
        """The keys of the samples, read from the disk one by one."""
        return KeyTable(self.path)

    def rows(self, keys: Sequence[str]) -> Ints:
        """Where the samples of these keys stand in the store, `(len(keys),)` int64.

        Raises ValueError that counts and names keys the store lacks.
        """
        m = self.manifest
        if len(keys) == m.samples and keys_digest(keys) == m.keys_sha256:
            return np.arange(m.samples)
        found = self.keys.find(keys)
        if len(missing := np.flatnonzero(found < 0)):
            shown = ", ".join(repr(keys[int(i)]) for i in missing[:3])
            raise ValueError(
                f"store {self.path} has {m.samples} samples and lacks {len(missing)} of these {len(keys)}, "
                f"the first: {shown} (the store's first key is {self.keys[0]!r}, of data {m.data!r})"
            )
        return found

    def look_up(self, keys: Sequence[str], captions: Sequence[str]) -> tuple[Ints, dict[int, str]]:
        """As `rows`, for a part of a stream: where the samples stand, and what is wrong with some, by place.

        captions: the first one of each sample; that it is the one which was encoded is looked at where the
            store is of captions.
        """
        m, table = self.manifest, self.keys
        found = table.find(keys)
        first = f"its first key is {table[0]!r}, of data {m.data!r}"
        lacking = np.flatnonzero(found < 0).tolist()
        faults = {i: f"store {self.path} lacks {keys[i]!r} ({first})" for i in lacking}
        known = np.flatnonzero(found >= 0)
        if m.text == "caption" and m.encoder != OWN_VECTORS and len(known):
            bad = self._differ(self._index(found[known]), [captions[i] for i in known.tolist()])
            for i in known[bad].tolist():
                faults[i] = (
                    f"store {self.path} was built from another caption of {keys[i]!r}, which is now "
                    f"{captions[i][:80]!r}: build the store again"
                )
        return found, faults

    def graph(self, keys: Sequence[str] | None = None) -> StoreGraph:
        """The similarity graph of the samples of these keys, in their order; of all samples if not given.

        Raises ValueError that counts and names keys the store lacks.
        """
        if keys is not None and not len(keys):
            raise ValueError("keys has no entry: at least one sample is needed")
        return StoreGraph(self, torch.from_numpy(self._index(None if keys is None else self.rows(keys))))

    def graph_of(self, samples: Samples) -> StoreGraph:
        """The similarity graph of a data set, in its order.

        Raises ValueError for keys the store lacks, and where the data has the texts that were encoded and
        they are others by now: how many, and the first.
        """
        m = self.manifest
        index = self._index(self.rows(samples.keys))
        has = samples.captions is not None if m.text == "caption" else m.text in samples.labels
        if has and m.encoder != OWN_VECTORS:
            texts = texts_of(samples, m.text)[1]
            bad = self._differ(index, texts)
            if bad.any() and m.text != "caption":
                # `build --table` takes class names as they are written.
                labels = samples.labels[m.text]
                written = [labels.names[label] for label in labels.values.tolist()]
                bad &= self._differ(index, written)
            if bad.any():
                first = int(bad.argmax())
                raise ValueError(
                    f"store {self.path} was built from other texts than data {samples.name!r} has: "
                    f"{int(bad.sum())} of {len(samples)} differ, the first is that of "
                    f"{samples.keys[first]!r}, now {texts[first][:80]!r}: build the store again"
                )
        return StoreGraph(self, torch.from_numpy(index))

    def _differ(self, index: Ints, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which of these texts, `(n,)`, are not those that the rows `index` of the vectors were made of."""
        stored = open_ints(self.path / TEXTS)[index]
        differ: NDArray[np.bool_] = (stored != text_hashes(texts)).any(axis=1)
        return differ

    def _index(self, rows: Ints | None) -> Ints:
        """Which of the vectors these samples have, or all."""
        stored = open_ints(self.path / INDEX)
        index = np.array(stored if rows is None else stored[rows], dtype=np.int64)
        if index.min() < 0 or index.max() >= self.manifest.distinct:
            raise ValueError(f"store {self.path} is damaged: {INDEX} names rows that {VECTORS} does not have")
        return index

    def _sums(self) -> list[str]:
        """The hash of each chunk, checked against the manifest."""
        m = self.manifest
        content = (self.path / CHUNKS).read_bytes()
        if hashlib.sha256(content).hexdigest() != m.vectors_sha256:
            raise ValueError(f"store {self.path} is damaged: {CHUNKS} has another SHA-256")
        return content.decode().split()

    def _check_chunks(self, sums: Sequence[str], chunks: Sequence[int]) -> None:
        m = self.manifest
        file = VectorFile(self.path / VECTORS, m.distinct, m.width, m.chunk_rows)
        for chunk in chunks:
            if file.digest(chunk) != sums[chunk]:
                start, stop = chunk_bounds(chunk, m.distinct, m.chunk_rows)
                raise ValueError(
                    f"store {self.path} is damaged: rows {start} to {stop - 1} of {VECTORS} have another "
                    "SHA-256"
                )


class StoreGraph(EmbeddingGraph):
    """The graph of a store's samples: a batch reads its rows from the disk, and no others.

    index: `(n,)` int64, the row of the vectors that each sample has. It is all that is held in memory.
    The vectors were checked when they were stored.
    """

    index: Tensor

    def __init__(self, store: EmbeddingStore, index: Tensor) -> None:
        m = store.manifest
        self.store, self.index = store, index
        self.name = f"store of {m.data} ({m.text}, {m.encoder})"
        self._reader = VectorReader(store.path / VECTORS, m.distinct, m.width)

    def __reduce__(self) -> tuple[type[StoreGraph], tuple[EmbeddingStore, Tensor]]:
        # Another process opens the file itself.
        return StoreGraph, (self.store, self.index)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        a = self._rows(rows)
        b = a if columns is rows else self._rows(columns)
        # The product is taken where the ids are: on a GPU it costs nothing.
        left = self._unit(a).to(rows.device)
        right = left if b is a else self._unit(b).to(rows.device)
        with torch.autocast(rows.device.type, enabled=False):
            value = left @ right.T
        a, b = a.to(rows.device), b.to(rows.device)
        return value.clamp_(-1, 1).masked_fill_(a[:, None] == b, 1.0)

    def _rows(self, ids: Tensor) -> Tensor:
        return self.index[ids.cpu()]

    def _unit(self, rows: Tensor) -> Tensor:
        # Each row once and in the order of the file, so that neighbours share a page.
        distinct, back = torch.unique(rows.cpu(), return_inverse=True)
        z = self.read(distinct).float()
        norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        # Opening reads the first and the last chunk alone: what is damaged between them is not trained on.
        bad = ~((norm - 1).abs() <= UNIT)
        if bool(bad.any()):
            raise ValueError(
                f"store {self.store.path} is damaged: row {int(distinct[int(bad.nonzero()[0, 0])])} of "
                f"{VECTORS} has length {float(norm[bad][0]):g} instead of 1; `counterpoint similarity info "
                "--check` reads all"
            )
        unit: Tensor = (z / norm)[back]
        return unit

    def read(self, rows: Tensor) -> Tensor:
        """The stored vectors `(m, d)` fp16 of these rows of the file, best in order."""
        return torch.from_numpy(self._reader.read(rows.numpy()))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store; ValueError where there is none, or none that can be read."""
    file = folder / MANIFEST
    if not folder.is_dir():
        raise ValueError(f"there is no store {folder}")
    if not file.is_file():
        unfinished = (folder / "building.json").is_file()
        raise ValueError(
            f"{folder} is a store whose build has not ended: run the same `similarity build` again to go on"
            if unfinished
            else f"{folder} is not a store: it has no {MANIFEST}"
        )
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ValueError(f"{file} cannot be read: {where or 'JSON'}: {fault['msg']}") from None
    if manifest.sha256 != manifest.digest():
        raise ValueError(f"store {folder} is damaged: {MANIFEST} has another SHA-256")
    return manifest


def _short(value: object) -> str:
    text = str(value)
    return repr(value) if isinstance(value, tuple) else text if len(text) <= 40 else f"{text[:37]}..."
