"""Pictures in Parquet files, as the Hugging Face hub lays them out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from counterpoint.data.decode import read_picture
from counterpoint.data.samples import UNLABELLED, Labels, Samples
from counterpoint.names import hint

Table = Any  # a pyarrow.Table; pyarrow has no types, and is imported where it is used
COPY_ROWS = 256  # rows per batch of the uncompressed copy


def parquet(
    path: str | Path,
    split: str | None = "train",
    image_column: str | None = None,
    caption_column: str | None = None,
    label_columns: Sequence[str] | None = None,
    cache: str | Path | None = None,
    memory_limit: int = 4 * 2**30,
) -> Samples:
    """Samples of one split in Hugging Face's Parquet layout.

    path: one Parquet file, or a folder that has `SPLIT-*.parquet`, `SPLIT.parquet` or `SPLIT/*.parquet`, or
        those in its folder `data`. split None reads all its Parquet files; one file is read whole.
    image_column: struct(bytes, path) or plain bytes; the only such column if not given.
    caption_column: a text column, or lists of texts of which the first is used; no captions if not given.
    label_columns: the label columns, first the default one. All `ClassLabel` columns of the `huggingface`
        schema metadata, in schema order, if not given. Whole numbers without class names are called by their
        number; texts are numbered in sorted order. Null and -1 are unlabelled.
    cache: a folder for an uncompressed copy of the split, made once, that is memory-mapped. If not given, the
        encoded pictures are kept in memory; a split of more than `memory_limit` bytes is then refused.

    Keys are the file names in the picture column where each row has its own, else row numbers.
    Pictures are decoded when asked for. Raises ValueError where files or columns are missing.

    >>> import io, tempfile, pyarrow, pyarrow.parquet
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (2, 2), "red").save(file, "png")
    >>> image = {"bytes": file.getvalue(), "path": "red.png"}
    >>> table = pyarrow.table({"image": [image], "text": ["a red square"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pyarrow.parquet.write_table(table, f"{folder}/train-00000-of-00001.parquet")
    ...     samples = parquet(folder, caption_column="text")
    >>> samples.keys, samples.captions, samples.picture(0).getpixel((0, 0))
    (['red.png'], ['a red square'], (255, 0, 0))
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = Path(path).expanduser()
    files = _files(source, split)
    try:
        schemas = [pq.read_schema(file) for file in files]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"a Parquet file of {source} cannot be read: {_one_line(error)}") from error
    layout = _layout(schemas[0], source, image_column, caption_column, label_columns)
    for file, schema in zip(files, schemas, strict=True):
        if any(name not in schema.names for name in layout.columns):
            raise ValueError(
                f"{file} has columns {', '.join(schema.names)}, but {files[0]} {', '.join(schemas[0].names)}"
            )
    try:
        table = _table(files, layout.columns, cache, memory_limit)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"a Parquet file of {source} cannot be read: {_one_line(error)}") from error
    if table.num_rows == 0:
        raise ValueError(f"{source} has no rows" + (f" in split {split!r}" if split else ""))
    encoded, paths = _pictures(table[layout.image])
    keys = _keys(paths, table.num_rows)
    return Samples(
        name=source.name if split is None or source.is_file() else f"{source.name}/{split}",
        keys=keys,
        picture=partial(_picture, encoded, paths, source if source.is_dir() else source.parent, keys),
        labels={name: _labels(table[name], name, layout.classes.get(name), source) for name in layout.labels},
        captions=None if layout.caption is None else _captions(table[layout.caption], layout.caption, source),
    )


def _files(source: Path, split: str | None) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise ValueError(f"{source} is not there")
    found = sorted(source.rglob("*.parquet"))
    if not found:
        raise ValueError(f"{source} has no .parquet files")
    if split is None:
        _check_complete(found)
        return found
    for folder in (source, source / "data"):
        for pattern in (f"{split}-*.parquet", f"{split}.parquet", f"{split}/*.parquet"):
            if files := sorted(folder.glob(pattern)):
                _check_complete(files)
                return files
    names = [file.relative_to(source).as_posix().removeprefix("data/") for file in found]
    splits = sorted({re.split(r"-\d|[/.]", name)[0] for name in names})
    raise ValueError(f"{source} has no Parquet file for split {split!r}: {hint(split, splits)}")


def _check_complete(files: Sequence[Path]) -> None:
    """Refuse a split of which a part is missing, where the names say how many parts there are."""
    names = {file.name for file in files}
    for file in files:
        if match := re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.parquet", file.name):
            parts = [f"{match[1]}-{k:05d}-of-{match[2]}.parquet" for k in range(int(match[2]))]
            if missing := [part for part in parts if part not in names]:
                raise ValueError(
                    f"{file.parent} lacks {missing[0]} ({len(missing)} of {len(parts)} files missing)"
                )


@dataclass(frozen=True)
class _Layout:
    """Which column is what, and the class names that the file carries."""

    image: str
    caption: str | None
    labels: list[str]
    classes: dict[str, list[str]]

    @property
    def columns(self) -> list[str]:
        return [self.image, *self.labels, *([] if self.caption is None else [self.caption])]


def _layout(
    schema: Any, source: Path, image: str | None, caption: str | None, labels: Sequence[str] | None
) -> _Layout:
    classes = _class_names(schema)
    for name in [image, caption, *(labels or ())]:
        if name is not None and name not in schema.names:
            raise ValueError(f"{source} has no column {name!r}: {hint(name, schema.names)}")
    pictures = [field.name for field in schema if _holds_pictures(field.type)]
    if image is not None and image not in pictures:
        raise ValueError(
            f"column {image!r} of {source} holds {schema.field(image).type}, not encoded pictures"
        )
    if image is None and len(pictures) != 1:
        raise ValueError(
            f"{source} has {len(pictures)} picture columns ({', '.join(pictures) or 'none'}) among "
            f"{', '.join(schema.names)}: name one with image_column"
        )
    if caption is not None and not _holds_text(schema.field(caption).type):
        texts = [field.name for field in schema if _holds_text(field.type)]
        raise ValueError(
            f"column {caption!r} of {source} holds {schema.field(caption).type}, not text: "
            f"text columns are {', '.join(texts) or 'none'}"
        )
    chosen = [name for name in schema.names if name in classes] if labels is None else list(labels)
    return _Layout(image or pictures[0], caption, chosen, classes)


def _class_names(schema: Any) -> dict[str, list[str]]:
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {
            name: [str(n) for n in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _holds_pictures(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return any(f.name == "bytes" and _holds_pictures(f.type) for f in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_text(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind):
        return _is_text(kind.value_type)
    return _is_text(kind)


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _table(files: Sequence[Path], columns: list[str], cache: str | Path | None, memory_limit: int) -> Table:
    """The columns of all files: in memory, or memory-mapped from an uncompressed copy."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if cache is None:
        metadata = [pq.read_metadata(file) for file in files]
        size = sum(part.row_group(k).total_byte_size for part in metadata for k in range(part.num_row_groups))
        if size > memory_limit:
            raise ValueError(
                f"{files[0].parent} takes {size / 2**30:.1f} GiB in memory, memory_limit is "
                f"{memory_limit / 2**30:.1f} GiB: name a folder with cache= for a memory-mapped copy, "
                "or raise the limit"
            )
        return pa.concat_tables([pq.read_table(file, columns=columns, partitioning=None) for file in files])
    # The name holds all that decides the contents: a copy of other files or columns is never taken for this.
    stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    copy = Path(cache).expanduser() / f"{_digest([columns, stamp])}.arrow"
    if not copy.is_file():
        _write_copy(files, columns, copy)
    return pa.ipc.open_file(pa.memory_map(str(copy))).read_all()


def _write_copy(files: Sequence[Path], columns: list[str], copy: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from filelock import FileLock

    copy.parent.mkdir(parents=True, exist_ok=True)
    # Several ranks start at once: one writes, the others wait and then find the copy.
    with FileLock(f"{copy}.lock"):
        if copy.is_file():
            return
        unfinished = copy.with_suffix(".unfinished")
        schema = pq.read_table(files[0], columns=columns, partitioning=None).schema.remove_metadata()
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for file in files:
                with pq.ParquetFile(file) as opened:
                    for batch in opened.iter_batches(batch_size=COPY_ROWS, columns=columns):
                        writer.write_table(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
        os.replace(unfinished, copy)


def _digest(value: Any) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:20]


def _pictures(column: Any) -> tuple[Any, list[str | None]]:
    """The encoded bytes of each row, and the file name kept beside them."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    if not types.is_struct(column.type):
        return column, [None] * len(column)
    has_path = any(field.name == "path" for field in column.type)
    paths = pc.struct_field(column, "path").to_pylist() if has_path else [None] * len(column)
    return pc.struct_field(column, "bytes"), paths


def _keys(paths: Sequence[str | None], n: int) -> list[str]:
    named = [path for path in paths if path]
    return named if len(set(named)) == n else [str(i) for i in range(n)]


def _picture(
    encoded: Any, paths: Sequence[str | None], folder: Path, keys: Sequence[str], i: int
) -> Image.Image:
    data = encoded[i].as_buffer()
    if data is not None:
        return read_picture(memoryview(data), keys[i])
    # Rows without bytes name a file beside the Parquet file.
    name = paths[i]
    if not name:
        raise ValueError(f"picture {keys[i]!r} cannot be read: the row has neither bytes nor a path")
    return read_picture(folder / name, keys[i])


def _labels(column: Any, name: str, classes: list[str] | None, source: Path) -> Labels:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)  # pandas writes its categories so
    if pa.types.is_integer(column.type):
        values = torch.from_numpy(pc.fill_null(column.cast(pa.int64()), UNLABELLED).to_numpy().copy())
        names = classes if classes is not None else [str(k) for k in range(max(0, int(values.max()) + 1))]
        try:
            return Labels(values, names)
        except ValueError as error:
            raise ValueError(f"column {name!r} of {source}: {error}") from None
    if not _is_text(column.type):
        raise ValueError(f"label column {name!r} of {source} holds {column.type}, not whole numbers or text")
    texts = column.to_pylist()
    names = sorted({text for text in texts if text is not None})
    number = {text: k for k, text in enumerate(names)}
    return Labels(torch.tensor([UNLABELLED if t is None else number[t] for t in texts]), names)


def _captions(column: Any, name: str, source: Path) -> list[str]:
    captions = [value[0] if isinstance(value, list) and value else value for value in column.to_pylist()]
    for row, text in enumerate(captions):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"column {name!r} of {source} has no caption in row {row}")
    return captions


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
