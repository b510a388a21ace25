"""The audit of a data set, written: a table of pairs, a table of doubtful labels, and a page to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from counterpoint import __version__
from counterpoint.evaluate.audit import LabelDoubts, Pairs, suspect_labels, suspect_pairs
from counterpoint.evaluate.features import Features
from counterpoint.files import write_whole
from counterpoint.report.neighbours import small_pictures
from counterpoint.report.page import template

FORMATS = ("parquet", "csv")
SHOWN = 60
PICTURE_BYTES = 1_600_000

Picture = Callable[[str], Image.Image]


@dataclass(frozen=True)
class Audit:
    """What an audit found, and the files it was written to; doubts is None where there are no labels."""

    pairs: Pairs
    doubts: LabelDoubts | None
    files: tuple[Path, ...]


def write_audit(
    features: Features,
    folder: Path | str,
    picture: Picture | None = None,
    count: int = 500,
    candidates: int | None = None,
    by: str = "share",
    column: str | None = None,
    table: str = "parquet",
    overwrite: bool = False,
) -> Audit:
    """Write `pairs`, `labels` (where there are any) and `audit.html` into a folder.

    picture: gives the picture of a key; without it the page shows keys only. A key whose picture it refuses
        with a ValueError is shown without.
    candidates: None takes 32, or all other samples where there are fewer.
    column: the labels to doubt; None takes the first column, if there is one.

    Raises ValueError for a file that is there already unless `overwrite`, for a column that is not there, and
    as `suspect_pairs` and `suspect_labels`; nothing is written then.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp()
    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    >>> [file.name for file in write_audit(Features(h, keys=list("abc")), folder, table="csv").files]
    ['pairs.csv', 'audit.html']
    """
    if table not in FORMATS:
        raise ValueError(f"table must be one of {', '.join(FORMATS)}, got {table!r}")
    labelled = bool(features.labels) or column is not None
    if labelled:
        column = features.column(column)[0]
    names = [f"pairs.{table}", *([f"labels.{table}"] if labelled else []), "audit.html"]
    files = [Path(folder) / name for name in names]
    for file in files:
        if file.exists() and not overwrite:
            raise ValueError(f"{file} is there already: replace it with --overwrite, or give another --out")
    m = min(32, max(1, len(features) - 1)) if candidates is None else candidates
    pairs = suspect_pairs(features, count, m, by, column)
    doubts = suspect_labels(features, count, _fewer(features, column, m), column) if labelled else None
    tables = [pairs.columns(features, column)]
    if doubts is not None:
        tables.append(doubts.columns(features, column))
    html = template("audit.html.jinja").render(
        **_context(features, tables, doubts, picture, {"candidates": m, "by": by, "column": column or "none"})
    )
    for file, columns in zip(files, tables, strict=False):
        write_table(file, columns)
    write_whole(files[-1], html.encode("utf-8"))
    return Audit(pairs, doubts, tuple(files))


def _fewer(features: Features, column: str | None, candidates: int) -> int:
    """The candidates there are among the labelled rows, which may be few."""
    return min(candidates, max(1, int(features.column(column)[1].known.sum()) - 1))


def write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write a table of equally long columns as Parquet or CSV, by the ending of the path.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pairs.csv"
    >>> write_table(path, {"a": ["x", "y"], "score": [0.5, 0.25]})
    >>> path.read_text().splitlines()
    ['"a","score"', '"x",0.5', '"y",0.25']
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    writers: dict[str, Callable[..., object]] = {".parquet": pq.write_table, ".csv": pyarrow.csv.write_csv}
    if path.suffix not in writers:
        raise ValueError(f"{path} must end in {', '.join(writers)}")
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    # An empty column tells no type; text is what most of them hold.
    table = pa.table(
        {
            name: pa.array(values, kinds[next((type(v) for v in values if v is not None), str)])
            for name, values in columns.items()
        }
    )
    write_whole(path, lambda file: writers[path.suffix](table, file))


def _context(
    features: Features,
    tables: Sequence[Mapping[str, Sequence[Any]]],
    doubts: LabelDoubts | None,
    picture: Picture | None,
    settings: Mapping[str, object],
) -> dict[str, Any]:
    pairs = _rows(tables[0])
    labels = _rows(tables[1]) if doubts is not None else []
    uses: dict[str, int] = {}
    shown = [row[name] for row in pairs for name in ("a", "b")]
    shown += [row[name] for row in labels for name in ("key", "own_support", "other_support")]
    for key in shown:
        uses[key] = uses.get(key, 0) + 1
    pictures, unread = _pictures(uses, picture)
    return {
        "title": f"Audit: {features.name or 'embeddings'}",
        "samples": len(features),
        "listed": len(tables[0]["a"]),
        "kinds": {kind: list(tables[0]["kind"]).count(kind) for kind in dict.fromkeys(tables[0]["kind"])},
        "pairs": pairs,
        "doubts": labels,
        "doubted": None if doubts is None else len(doubts),
        "nearer": 0 if doubts is None else int((doubts.score > 0.5).sum()),
        "alone": 0 if doubts is None else doubts.alone,
        "pictures": pictures,
        "unread": unread,
        "settings": {**settings, "layer": features.layer, "counterpoint": __version__},
    }


def _rows(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    columns = [list(values[:SHOWN]) for values in table.values()]
    return [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]


def _pictures(uses: Mapping[str, int], picture: Picture | None) -> tuple[dict[str, str], list[str]]:
    """Data URIs by key, and the reasons why some are missing."""
    if picture is None or not uses:
        return {}, []
    read: dict[str, Image.Image] = {}
    unread = []
    for key in uses:
        try:
            read[key] = picture(key)
        except ValueError as error:
            unread.append(str(error))
    return small_pictures({key: uses[key] for key in read}, read.__getitem__, PICTURE_BYTES), unread
