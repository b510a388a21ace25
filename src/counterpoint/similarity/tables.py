"""Columns and arrays from files, put in the order of a data set's samples."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.samples import UNLABELLED
from counterpoint.extras import need

MISSING = ("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none")
TABLES = (".csv", ".tsv", ".parquet")
ARRAYS = (".npy", ".npz", ".safetensors")


def table_rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """These columns of a CSV, TSV or Parquet table, row by row, as texts."""
    if file.suffix.lower() == ".parquet":
        import pyarrow.lib
        import pyarrow.parquet as parquet

        try:
            table = parquet.read_table(file)
        except pyarrow.lib.ArrowInvalid as error:
            raise ValueError(f"{file} is not a Parquet file: {error}") from None
        _check(file, table.column_names, columns)
        for batch in table.select(list(columns)).to_batches():
            for row in batch.to_pylist():
                yield tuple("" if row[name] is None else str(row[name]) for name in columns)
        return
    with file.open(encoding="utf-8-sig", newline="") as stream:
        try:
            reader = csv.DictReader(
                stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True
            )
            _check(file, reader.fieldnames or [], columns)
            for number, record in enumerate(reader, start=1):
                if None in record or None in record.values():  # a comma or a new line that is not in quotes
                    raise ValueError(
                        f"{file}, row {number} (line {reader.line_num}): it has more or fewer fields than "
                        "the header"
                    )
                yield tuple(record[name] for name in columns)
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
        except csv.Error as error:
            raise ValueError(f"{file} is not a table: {error}") from None


def _check(file: Path, found: Any, columns: tuple[str, ...]) -> None:
    for name in columns:
        if name not in found:
            raise ValueError(f"{file} lacks the column {name!r} (found: {', '.join(found) or 'none'})")
        if list(found).count(name) > 1:
            raise ValueError(f"{file} has two columns {name!r}")


def read_columns(
    file: Path, key: str, keys: Sequence[str], numbers: Sequence[str], categories: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Columns of a table in the order of these keys: numbers as float64, categories as int64.

    key: the column that holds the keys. Missing values ("", nan, n/a, null, none) become NaN and -1.

    Raises ValueError on a table without these columns, a key that comes twice or lacks, or a text that is no
    number, by row.
    """
    if not file.is_file() or file.suffix.lower() not in TABLES:
        raise ValueError(f"table {file} must be a file that ends in {', '.join(TABLES)}")
    found: dict[str, tuple[str, ...]] = {}
    where: dict[str, int] = {}
    for row, values in enumerate(table_rows(file, (key, *numbers, *categories)), start=1):
        if values[0] in found:
            raise ValueError(f"{file}, row {row}: {key} {values[0]!r} is also that of row {where[values[0]]}")
        found[values[0]], where[values[0]] = values[1:], row
    if absent := [one for one in keys if one not in found]:
        raise ValueError(
            f"{file} lacks {len(absent)} of the {len(keys)} samples, the first is {key} {absent[0]!r}"
        )
    columns = list(zip(*(found[one] for one in keys), strict=True))
    parsed = {
        name: torch.tensor(
            [
                _number(text, f"{file}, row {where[one]}: {name}")
                for one, text in zip(keys, column, strict=True)
            ],
            dtype=torch.float64,
        )
        for name, column in zip(numbers, columns, strict=False)
    }
    coded = {}
    for name, column in zip(categories, columns[len(numbers) :], strict=True):
        names = sorted({text.strip() for text in column if text.strip().lower() not in MISSING})
        code = {text: k for k, text in enumerate(names)}
        coded[name] = torch.tensor([code.get(text.strip(), UNLABELLED) for text in column])
    return parsed, coded


def _number(text: str, where: str) -> float:
    if text.strip().lower() in MISSING:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where} must be a number, got {text!r}") from None


def read_rows(path: str | Path, keys_path: str | Path | None) -> tuple[NDArray[Any], list[str] | None]:
    """An array with one row per sample, and the keys of its rows where they are known.

    path: `.npy` (memory-mapped), `.npz` or `.safetensors` with one array beside `keys`.
    keys_path: a text file with a key a line; by default the array `keys` of an `.npz`.

    Raises ValueError on another file, and where there are not as many keys as rows.
    """
    file = Path(path).expanduser()
    if not file.is_file() or file.suffix.lower() not in ARRAYS:
        raise ValueError(f"path {file} must be a file that ends in {', '.join(ARRAYS)}")
    try:
        found = _arrays(file)
    # Each library has errors of its own for a file that is cut short or is something else.
    except Exception as error:
        raise ValueError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
    stored = found.pop("keys", None)
    if len(found) != 1:
        raise ValueError(f"{file} must hold one array beside keys, it holds {', '.join(found) or 'none'}")
    (array,) = found.values()
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{file} must hold numbers of shape (n, m), got {array.dtype} of shape {array.shape}"
        )
    if stored is not None and (stored.ndim != 1 or stored.dtype.kind not in "USiu"):
        raise ValueError(f"keys of {file} must be texts of shape (n,), got {stored.dtype} of {stored.shape}")
    if stored is not None and stored.dtype.kind == "S":
        stored = np.char.decode(stored, "utf-8")
    keys = None if stored is None else [str(one) for one in stored]
    if keys_path is not None:
        lines = Path(keys_path).expanduser()
        if not lines.is_file():
            raise ValueError(f"there is no file of keys {lines}")
        try:
            keys = lines.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{lines} is not UTF-8: {error.reason} at byte {error.start}") from None
    if keys is not None and len(keys) != len(array):
        raise ValueError(f"{file} has {len(array)} rows, but there are {len(keys)} keys")
    return array, keys


def rows_of(
    array: NDArray[Any], stored: Sequence[str] | None, keys: Sequence[str], path: str, what: str = "samples"
) -> Tensor:
    """Which rows of the array these samples, or `what` else, are, `(n,)` int64.

    Raises ValueError on a key without a row, one with two, or a wrong number of rows where none has a key.
    """
    if stored is None:
        if len(array) != len(keys):
            raise ValueError(
                f"{path} has {len(array)} rows for {len(keys)} {what}; where it is of more {what} than are "
                "trained on, give keys, a file with the key of each row"
            )
        return torch.arange(len(keys))
    place = {key: row for row, key in enumerate(stored)}
    if len(place) < len(stored):
        twice = next(key for row, key in enumerate(stored) if place[key] != row)
        raise ValueError(f"{path} has the key {twice!r} twice")
    if absent := [key for key in keys if key not in place]:
        raise ValueError(f"{path} lacks {len(absent)} of the {len(keys)} {what}, the first is {absent[0]!r}")
    return torch.tensor([place[key] for key in keys], dtype=torch.int64)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A copy of an array as a tensor, whatever its byte order and width.

    >>> as_tensor(np.array([[1.0, 2.0]], dtype=">f4"))
    tensor([[1., 2.]])
    """
    return torch.from_numpy(
        array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("="))
    )


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    if file.suffix.lower() == ".npy":
        return {"array": np.load(file, mmap_mode="r", allow_pickle=False)}
    if file.suffix.lower() == ".npz":
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    arrays: dict[str, NDArray[Any]] = need("safetensors.numpy", extra="export").load_file(file)
    return arrays
