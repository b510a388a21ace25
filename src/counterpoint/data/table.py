"""Pictures with captions or labels in a table: CSV, TSV or JSON lines."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from counterpoint.data.decode import read_picture
from counterpoint.data.faults import (
    OnError,
    check_on_error,
    existing_file,
    existing_folder,
    is_unicode,
    settle,
)
from counterpoint.data.samples import UNLABELLED, Labels, Samples
from counterpoint.names import hint

COLUMNS = ("path", "caption", "label", "split")
MOST_CLASSES = 1_000_000  # a larger class number is an identifier of something else


def table(
    path: str | Path,
    root: str | Path | None = None,
    split: str | None = None,
    on_error: OnError = "stop",
    label_columns: Sequence[str] | None = None,
) -> Samples:
    """Samples from a table with the columns `path`, `caption`, `label` and `split`.

    path: a `.csv` or `.tsv` file with a header, or a `.jsonl` file with one object per line; UTF-8.
    root: the folder that picture paths start from; the table's own folder if not given.
    split: only the rows with that word in column `split`; all rows if not given.
    on_error: what a row without its picture or its caption does: 'stop', or 'skip' to leave it out with a
        warning that gives the number.
    label_columns: the columns of labels, the default one first; `label`, where there is one, if not given.

    `path` is needed, and a caption or labels or both. Other columns are passed over. Labels are class names,
    numbered in the sorted order of the whole table, or, where all are whole numbers, class numbers from 0.
    An empty label, null or -1 means unlabelled. Keys are the paths as written; a path that comes again gets
    `#2`, `#3`.
    Raises ValueError with the row (counted from 1 below the header) and the line of the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (2, 2)).save(f"{folder}/1.png")
    ...     text = 'path,caption,label\\n1.png,"small, and black",dark\\n'
    ...     _ = Path(f"{folder}/pictures.csv").write_text(text)
    ...     samples = table(f"{folder}/pictures.csv")
    >>> samples.keys, samples.captions, samples.column().names
    (['1.png'], ['small, and black'], ['dark'])
    """
    check_on_error(on_error)
    file = existing_file(path)
    base = file.parent if root is None else existing_folder(root)
    columns, rows = _read(file)
    if not rows:
        raise ValueError(f"{file} has no rows")
    _check_columns(file, columns, label_columns)
    labelled = label_columns or [name for name in ("label",) if name in columns]
    labels = {name: _labels(file, rows, name) for name in labelled}
    chosen = _of_split(file, columns, rows, split)
    chosen = _usable(file, base, "caption" in columns, rows, chosen, on_error)
    paths = [str(rows[i].values["path"]) for i in chosen]
    keys = _distinct(paths)
    return Samples(
        name=file.stem if split is None else f"{file.stem}/{split}",
        keys=keys,
        picture=partial(_picture, base, paths, keys),
        labels={name: Labels(one.values[chosen], one.names) for name, one in labels.items()},
        captions=[str(rows[i].values["caption"]).strip() for i in chosen] if "caption" in columns else None,
    )


@dataclass(frozen=True)
class _Row:
    """The values of one row, and where it stands."""

    values: dict[str, Any]
    where: str


def _picture(base: Path, paths: Sequence[str], keys: Sequence[str], i: int) -> Image.Image:
    return read_picture(base / paths[i], keys[i])


def _read(file: Path) -> tuple[list[str], list[_Row]]:
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl}
    suffix = file.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"{file} must end in {', '.join(readers)}")
    try:
        return readers[suffix](file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def _read_csv(file: Path) -> tuple[list[str], list[_Row]]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True)
        records = _records(file, reader)
        _, header = next(records, (0, []))
        header = [name.strip() for name in header]
        if not header:
            raise ValueError(f"{file} is empty")
        if twice := [name for name in header if header.count(name) > 1]:
            raise ValueError(f"{file} has two columns {twice[0]!r}")
        rows: list[_Row] = []
        for line, record in records:
            where = f"row {len(rows) + 1} (line {line})"
            if len(record) != len(header):
                raise ValueError(f"{file}, {where}: {len(record)} fields, but the header has {len(header)}")
            rows.append(_Row(dict(zip(header, record, strict=True)), where))
    return header, rows


def _records(file: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The records that are not blank, each with the line it begins on: one in quotes may hold newlines."""
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{file}, line {line}: {error}") from None
        if record is None:
            return
        if record:
            yield line, record


def _read_jsonl(file: Path) -> tuple[list[str], list[_Row]]:
    rows: list[_Row] = []
    with file.open(encoding="utf-8-sig", newline="\n") as stream:
        for line, text in enumerate(stream, start=1):
            if not text.strip():
                continue
            where = f"row {len(rows) + 1} (line {line})"
            try:
                values = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{file}, {where} is not JSON: {error}") from None
            if not isinstance(values, dict):
                raise ValueError(f"{file}, {where}: expected an object, got {type(values).__name__}")
            for name in ("path", "caption", "split"):
                if not isinstance(values.get(name, ""), (str, type(None))):
                    raise ValueError(f"{file}, {where}: {name} must be text, got {values[name]!r}")
            rows.append(_Row(values, where))
    return list(dict.fromkeys(name for row in rows for name in row.values)), rows


def _check_columns(file: Path, found: Sequence[str], label_columns: Sequence[str] | None) -> None:
    """Refuse a table that lacks a column, or has one whose name is almost right."""
    if isinstance(label_columns, str) or (label_columns is not None and not label_columns):
        raise ValueError(f"label_columns must be a list of columns, at least one, got {label_columns!r}")
    for name in label_columns or ():
        if name not in found or name in ("path", "caption", "split"):
            others = [one for one in found if one not in ("path", "caption", "split")]
            raise ValueError(f"{file} has no column {name!r} of labels: {hint(name, others)}")
    have = ", ".join(found)
    for column in COLUMNS if label_columns is None else [name for name in COLUMNS if name != "label"]:
        close = (
            []
            if column in found
            else difflib.get_close_matches(column, set(found) - set(COLUMNS), n=1, cutoff=0.8)
        )
        if close:
            raise ValueError(
                f"{file} has a column {close[0]!r} but no {column!r}: is it {column!r}? (found: {have})"
            )
    if "path" not in found:
        raise ValueError(f"{file} lacks the column 'path' (found: {have}; known: {', '.join(COLUMNS)})")
    if "caption" not in found and "label" not in found and label_columns is None:
        raise ValueError(f"{file} needs a column 'caption' or 'label' (found: {have})")


def _of_split(file: Path, columns: Sequence[str], rows: Sequence[_Row], split: str | None) -> list[int]:
    if split is None:
        return list(range(len(rows)))
    if "split" not in columns:
        raise ValueError(
            f"{file} has no column 'split' to find {split!r} in (found: {', '.join(columns)}); "
            "where there are no splits, a recipe says data.train=null data.holdout=0.1"
        )
    words = [str(row.values.get("split") or "").strip() for row in rows]
    chosen = [i for i, word in enumerate(words) if word == split]
    if not chosen:
        raise ValueError(f"{file} has no row of split {split!r}: {hint(split, sorted(set(words)))}")
    return chosen


def _usable(
    file: Path, base: Path, captioned: bool, rows: Sequence[_Row], chosen: Sequence[int], on_error: OnError
) -> list[int]:
    """The chosen rows that have their picture and, in a captioned table, their caption."""
    faults, good = [], []
    for i in chosen:
        values, where = rows[i].values, rows[i].where
        path = values.get("path") or ""
        if not path:
            faults.append(f"{where} has no path")
        elif captioned and not str(values.get("caption") or "").strip():
            faults.append(f"{where} has an empty caption")
        elif captioned and not is_unicode(str(values["caption"])):
            faults.append(f"{where} has a caption that is not Unicode")
        elif not (base / path).is_file():
            faults.append(f"{where}: there is no picture {path!r} in {base}")
        else:
            good.append(i)
    settle(faults, len(chosen), str(file), on_error)
    return good


def _distinct(paths: Sequence[str]) -> list[str]:
    times: dict[str, int] = {}
    keys = []
    for path in paths:
        times[path] = times.get(path, 0) + 1
        keys.append(path if times[path] == 1 else f"{path}#{times[path]}")
    return keys


def _labels(file: Path, rows: Sequence[_Row], column: str) -> Labels:
    given = [_label(file, row, column) for row in rows]
    known = [(row, label) for row, label in zip(rows, given, strict=True) if label is not None]
    numbers = [_whole_number(label) for _, label in known]
    if known and all(number is not None for number in numbers):
        return _numbered(file, rows, given, column)
    names = sorted({label for _, label in known})
    number = {name: k for k, name in enumerate(names)}
    return Labels(torch.tensor([UNLABELLED if label is None else number[label] for label in given]), names)


def _label(file: Path, row: _Row, column: str) -> str | None:
    label = row.values.get(column)
    if isinstance(label, (bool, float, list, dict)):
        raise ValueError(f"{file}, {row.where}: a {column} is text or a whole number, got {label!r}")
    text = "" if label is None else str(label).strip()
    return None if text in ("", str(UNLABELLED)) else text


def _whole_number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else None


def _numbered(file: Path, rows: Sequence[_Row], given: Sequence[str | None], column: str) -> Labels:
    values = [UNLABELLED if label is None else int(label) for label in given]
    for row, value in zip(rows, values, strict=True):
        if not UNLABELLED <= value < MOST_CLASSES:
            raise ValueError(
                f"{file}, {row.where}: {column} {value} is not allowed: class numbers go from 0 to "
                f"{MOST_CLASSES - 1}, {UNLABELLED} for no label"
            )
    return Labels(torch.tensor(values), [str(k) for k in range(max(values) + 1)])
