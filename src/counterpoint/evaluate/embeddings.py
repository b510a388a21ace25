"""Embeddings of any origin as `Features`: NumPy, torch and Parquet files of keys, vectors and labels."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoint.data.samples import UNLABELLED, Labels
from counterpoint.evaluate.features import Features, load_features

COLUMN = "label"
MOST_CLASSES = 1_000_000  # a larger class number is an identifier of something else


def load_embeddings(path: Path | str) -> Features:
    """One row per sample from a file, told apart by its ending.

    .npz: `features.npz` as `save_features` writes it, or arrays `vectors`, `keys` and `labels`.
    .npy: the vectors alone, `(n, d)`.
    .pt: a tensor, or a mapping of `vectors`, `keys` and `labels`; read as weights only, so that no code runs.
    .parquet: columns `vector` (lists of numbers), `key` and `label`; others are passed over.

    Keys that are not there are the row numbers. Labels, where there are any, are whole numbers from 0 or
    names; -1 and null mean none.

    Raises ValueError that names the file where it is none of these, holds no vectors, or a value is not
    finite.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mine.npy"
    >>> np.save(path, np.eye(3))
    >>> features = load_embeddings(path)
    >>> features.name, features.keys, features.h.shape
    ('mine', ['0', '1', '2'], torch.Size([3, 3]))
    """
    path = Path(path)
    if path.suffix not in READERS:
        raise ValueError(f"{path} is not a file of embeddings: those end in {', '.join(READERS)}")
    if not path.is_file():
        raise ValueError(f"{path} is not there")
    try:
        return READERS[path.suffix](path)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _npz(path: Path) -> Features:
    with np.load(path, allow_pickle=False) as stored:
        if "vectors" in stored.files:
            return _features(path, {name: stored[name] for name in stored.files})
    return load_features(path)


def _npy(path: Path) -> Features:
    return _features(path, {"vectors": np.load(path, allow_pickle=False)})


def _pt(path: Path) -> Features:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        raise ValueError("it holds more than tensors, numbers and text, or is damaged") from None
    return _features(path, {"vectors": stored} if isinstance(stored, Tensor) else stored)


def _parquet(path: Path) -> Features:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        wanted = {"vector": "vectors", "key": "keys", "label": "labels"}
        found = [name for name in wanted if name in schema.names]
        table = pq.ParquetFile(path).read(columns=found)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    if "vector" not in found:
        raise ValueError(f"it has no column 'vector'; it has {', '.join(schema.names)}")
    return _features(path, {wanted[name]: table[name].to_pylist() for name in found})


READERS: dict[str, Callable[[Path], Features]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".pt": _pt,
    ".parquet": _parquet,
}
"""What reads a file, by its ending."""


def _features(path: Path, stored: Any) -> Features:
    if not isinstance(stored, Mapping) or "vectors" not in stored:
        names = ", ".join(map(str, stored)) if isinstance(stored, Mapping) else type(stored).__name__
        raise ValueError(f"it holds no 'vectors'; it holds {names or 'nothing'}")
    h = _vectors(stored["vectors"])
    keys = stored.get("keys")
    named = [str(i) for i in range(len(h))] if keys is None else [str(key) for key in _plain(keys)]
    labels = {} if stored.get("labels") is None else {COLUMN: _labels(_plain(stored["labels"]))}
    return Features(h, named, labels, path.stem)


def _vectors(stored: Any) -> Tensor:
    try:
        h = stored if isinstance(stored, Tensor) else torch.from_numpy(np.asarray(stored))
    except (TypeError, ValueError):
        raise ValueError("the vectors must be numbers, all vectors of one length") from None
    if h.ndim != 2 or not len(h) or h.is_complex() or h.dtype == torch.bool:
        raise ValueError(f"vectors must be (n, d) numbers, got {tuple(h.shape)} {h.dtype}")
    return h.detach().float()


def _plain(values: Any) -> Sequence[Any]:
    return values.tolist() if isinstance(values, (Tensor, np.ndarray)) else list(values)


def _labels(values: Sequence[Any]) -> Labels:
    if all(value is None or (isinstance(value, int) and not isinstance(value, bool)) for value in values):
        numbers = torch.tensor(
            [UNLABELLED if value is None else value for value in values], dtype=torch.int64
        )
        if len(numbers) and int(numbers.max()) >= MOST_CLASSES:
            raise ValueError(f"label {int(numbers.max())} is no class number: those are below {MOST_CLASSES}")
        return Labels(numbers, [str(c) for c in range(int(numbers.max()) + 1)])
    names = sorted({str(value) for value in values if value is not None})
    number = {name: c for c, name in enumerate(names)}
    return Labels(
        torch.tensor([UNLABELLED if value is None else number[str(value)] for value in values]), names
    )
