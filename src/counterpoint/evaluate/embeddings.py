"""Embeddings of any origin as `Features`: NumPy, torch and Parquet files of keys, vectors and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
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

    Raises ValueError, one line that names the file, where it is none of these, is damaged, holds no vectors,
    or a value is not finite.

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
    except Exception as error:
        # Damaged files raise what their libraries please, a MemoryError for a changed shape among it.
        reason = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError):
            reason = f"it cannot be read: {reason}"
        raise ValueError(reason if str(path) in reason else f"{path}: {reason}") from error


def _npz(path: Path) -> Features:
    stored = np.load(path, allow_pickle=False)
    if not isinstance(stored, NpzFile):
        raise ValueError("it holds one bare array: name it .npy")
    with stored:
        arrays = {name: stored[name] for name in stored.files}
    if "vectors" in arrays or "h" not in arrays:
        return _features(path, arrays)
    _check_features(arrays)
    return load_features(path)


def _check_features(arrays: Mapping[str, Any]) -> None:
    """That arrays under the names of `save_features` are of its kinds too, for the file may be of others."""
    _vectors(arrays["h"])
    n = len(arrays["h"])
    for name, array in arrays.items():
        if name == "keys" or name.startswith(("labels_", "names_")):
            _plain(name, array, None if name.startswith("names_") else n)
            kinds, what = ("iu", "whole numbers") if name.startswith("labels_") else ("U", "text")
            if array.dtype.kind not in kinds:
                raise ValueError(f"{name} must be {what}, got {array.dtype}")


def _npy(path: Path) -> Features:
    stored = np.load(path, allow_pickle=False)
    if isinstance(stored, NpzFile):
        raise ValueError("it holds several arrays: name it .npz")
    return _features(path, {"vectors": stored})


def _pt(path: Path) -> Features:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        # A file of another kind raises KeyError, IndexError and more.
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
    named = map(str, range(len(h)) if keys is None else _plain("keys", keys, len(h)))
    values = stored.get("labels")
    labels = {} if values is None else {COLUMN: _labels(_plain("labels", values, len(h)))}
    return Features(h, list(named), labels, path.stem)


def _vectors(stored: Any) -> Tensor:
    try:
        h = stored if isinstance(stored, Tensor) else torch.from_numpy(np.asarray(stored))
    except (TypeError, ValueError):
        raise ValueError("the vectors must be numbers, all vectors of one length") from None
    if h.is_nested or h.layout != torch.strided or h.is_quantized or h.is_meta:
        form = "a meta tensor" if h.is_meta else "quantised" if h.is_quantized else "nested or sparse"
        raise ValueError(f"vectors must be a plain tensor of numbers, got one that is {form}")
    if h.ndim != 2 or not h.numel() or h.is_complex() or h.dtype == torch.bool:
        raise ValueError(f"vectors must be (n, d) numbers, got {tuple(h.shape)} {h.dtype}")
    return h.detach().float()


def _plain(name: str, values: Any, n: int | None) -> Sequence[Any]:
    """The values of one flat list, tensor or array of n."""
    if isinstance(values, (Tensor, np.ndarray)):
        if values.ndim != 1:
            raise ValueError(f"{name} must be a flat list, got the shape {tuple(values.shape)}")
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"{name} must be a flat list, got {type(values).__name__}")
    if n is not None and len(values) != n:
        raise ValueError(f"{len(values)} {name} for {n} vectors")
    return values


def _labels(values: Sequence[Any]) -> Labels:
    if all(value is None or (isinstance(value, int) and not isinstance(value, bool)) for value in values):
        numbers = [UNLABELLED if value is None else value for value in values]
        for wrong in (max(numbers), min(numbers)):
            if not UNLABELLED <= wrong < MOST_CLASSES:
                raise ValueError(
                    f"label {wrong} is no class number: those are 0 to {MOST_CLASSES - 1}, or -1"
                )
        return Labels(torch.tensor(numbers), [str(c) for c in range(max(numbers) + 1)])
    names = sorted({str(value) for value in values if value is not None})
    number = {name: c for c, name in enumerate(names)}
    return Labels(
        torch.tensor([UNLABELLED if value is None else number[str(value)] for value in values]), names
    )
