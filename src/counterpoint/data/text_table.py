"""Texts of any table, for similarity graphs: no pictures are needed."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoint.data.faults import existing_file
from counterpoint.names import hint

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def text_table(path: str | Path, text: str, key: str | None = None) -> tuple[list[str], list[str]]:
    """Keys and texts of a table: one of each per row.

    path: a `.csv` or `.tsv` file with a header, a `.jsonl` file with one object per line (each of these may
        be packed as `.gz`), or a `.parquet` file.
    text, key: the columns of the texts and of the keys; without a key rows are called by their number from 0.
        Numbers become text. A null or NaN is the empty text. White space around a text is left out, but that
        of Parquet is kept: as the data sources `table` and `parquet` have it.

    Raises ValueError for a column that is not there or comes twice, and a file that cannot be read.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "captions.csv"
    >>> _ = file.write_text("name,caption\\na.png,a dog\\nb.png,a cat\\n")
    >>> text_table(file, "caption", "name")
    (['a.png', 'b.png'], ['a dog', 'a cat'])
    """
    import pyarrow as pa

    file = existing_file(path)
    names = [file.suffix, Path(file.stem).suffix] if file.suffix == ".gz" else [file.suffix]
    suffix = names[-1].lower()
    if suffix not in SUFFIXES or (suffix == ".parquet" and len(names) > 1):
        raise ValueError(f"{file} must end in {', '.join(SUFFIXES)}")
    try:
        table = _read(file, suffix, [text] if key is None else [text, key])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{file} cannot be read: {reason}") from None
    for column in filter(None, (text, key)):
        if column not in table.column_names:
            raise ValueError(f"{file} has no column {column!r}: {hint(column, table.column_names)}")
        if table.column_names.count(column) > 1:
            raise ValueError(f"{file} has two columns {column!r}")
        kind = table.schema.field(column).type
        binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
        if pa.types.is_nested(kind) or any(one(kind) for one in binary):
            raise ValueError(f"column {column!r} of {file} must hold texts or numbers, it holds {kind}")
    if suffix == ".csv":
        _check_quotes(file, table)
    try:
        texts = _strings(table[text])
        keys = [str(row) for row in range(len(texts))] if key is None else _strings(table[key])
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} has a text that is not UTF-8: {error.reason}") from None
    return keys, texts if suffix == ".parquet" else [one.strip() for one in texts]


def _read(file: Path, suffix: str, wanted: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    if suffix == ".parquet":
        names = pyarrow.parquet.read_schema(file).names
        # The pictures may lie beside the captions. Where a column is not there, all are read, to be named.
        columns = list(wanted) if all(names.count(name) == 1 for name in wanted) else None
        return pyarrow.parquet.read_table(file, columns=columns, partitioning=None)
    if suffix == ".jsonl":
        table = pyarrow.json.read_json(file)
        # A text such as "2024-05-01" is read as a time, and would be written out as another text.
        times = [(one.name, pa.string()) for one in table.schema if pa.types.is_timestamp(one.type)]
        options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(times))
        return pyarrow.json.read_json(file, parse_options=options) if times else table
    # Quotes have no meaning in most TSV files of captions, and one that is not closed would swallow the rest.
    parse = pyarrow.csv.ParseOptions(
        delimiter="\t" if suffix == ".tsv" else ",",
        quote_char=False if suffix == ".tsv" else '"',
        newlines_in_values=suffix != ".tsv",
    )
    # As they are written: "007" is no number, and "null" may be somebody's caption.
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=False, column_types=_as_text(file, parse))
    return pyarrow.csv.read_csv(file, parse_options=parse, convert_options=convert)


def _as_text(file: Path, parse: Any) -> Any:
    """A schema that reads every column of this file as text."""
    import pyarrow as pa
    import pyarrow.csv

    with pyarrow.csv.open_csv(file, parse_options=parse) as reader:
        return {name: pa.string() for name in reader.schema.names}


def _check_quotes(file: Path, table: Any) -> None:
    """ValueError where a quote that is not closed has swallowed rows, which Arrow takes for a long text."""
    import pyarrow.compute as pc

    if not any(pc.any(pc.match_substring_regex(column, "[\\r\\n]")).as_py() for column in table.columns):
        return
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as stream:
        # Python's reader sees where text goes on after the quote that would be the closing one.
        reader = csv.reader(stream, strict=True)
        limit = csv.field_size_limit(2**31 - 1)  # Arrow has none
        line = 1
        try:
            for _ in reader:
                line = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(
                f"{file} has a quote that is not closed, or text after one, in the row of line {line}: "
                f"{error}"
            ) from None
        finally:
            csv.field_size_limit(limit)


def _strings(column: Any) -> list[str]:
    # NaN, which differs from itself, is how a table of numbers says that there is none.
    return ["" if value is None or value != value else str(value) for value in column.to_pylist()]
