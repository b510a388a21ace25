"""The audit of a data set, written: a table of pairs, a table of doubtful labels, and a page to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from counterpoint import __version__
from counterpoint.evaluate.audit import LabelDoubts, Pairs, no_doubts, suspect_labels, suspect_pairs
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
    """What an audit found, and the files it was written to.

    doubts: None where no label can be doubted. lines: what there is to say of pairs and labels, in sentences.
    """

    pairs: Pairs
    doubts: LabelDoubts | None
    files: tuple[Path, ...]
    lines: tuple[str, ...]


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
    """Write `pairs`, `labels` (where there are two classes or more) and `audit.html` into a folder.

    picture: gives the picture of a key; without it the page shows keys only. A key whose picture it refuses
        with a ValueError is shown without.
    candidates: None takes 32, or all other samples where there are fewer.
    column: the labels to doubt; None takes the first column, if there is one.
    overwrite: replace what is there; a table of labels that the new audit has none for is removed.

    Raises ValueError for a file that is there already unless `overwrite`, for a folder in the place of one,
    for a column that is not there, and as `suspect_pairs` and `suspect_labels`; nothing is written then.

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
    missing = no_doubts(features, column)
    stale = Path(folder) / f"labels.{table}"
    names = [f"pairs.{table}", *([stale.name] if missing is None else []), "audit.html"]
    files = [Path(folder) / name for name in names]
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} is a folder, and a file is to be written there: give another --out")
        if file.exists() and not overwrite:
            raise ValueError(f"{file} is there already: replace it with --overwrite, or give another --out")
    m = min(32, max(1, len(features) - 1)) if candidates is None else candidates
    pairs = suspect_pairs(features, count, m, by, column)
    doubts = suspect_labels(features, count, _fewer(features, column, m), column) if missing is None else None
    tables = [pairs.columns(features, column)]
    if doubts is not None:
        tables.append(doubts.columns(features, column))
    settings = {"candidates": m, "by": by, "column": column or "none"}
    lines = _lines(features, pairs, doubts, column, missing)
    html = template("audit.html.jinja").render(
        **_context(features, tables, doubts, picture, settings), lines=lines, file=files[0].name
    )
    if missing is not None and overwrite and stale.is_file():
        stale.unlink()
    for file, columns in zip(files, tables, strict=False):
        write_table(file, columns)
    write_whole(files[-1], html.encode("utf-8"))
    return Audit(pairs, doubts, tuple(files), lines)


def _lines(
    features: Features, pairs: Pairs, doubts: LabelDoubts | None, column: str | None, missing: str | None
) -> tuple[str, ...]:
    said = [f"{len(features)} samples, {len(pairs)} pairs listed"]
    if doubts is None:
        return *said, f"no labels are listed: {missing}"
    above = f"{doubts.nearer} of {doubts.judged} labels score above 0.5"
    said.append(f"column {column!r}: {above}, {len(doubts)} listed")
    if doubts.nearer > doubts.judged / 2:
        said.append(
            f"these features do not read column {column!r}: most of its labels score above 0.5, "
            "so that the list of labels is worthless"
        )
    return tuple(said)


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
        "pair_groups": _pair_groups(pairs, str(settings["by"])),
        "label_groups": _by_half(labels, "other classes lie nearer", "its own class lies nearer, or as near"),
        "alone": 0 if doubts is None else doubts.alone,
        "pictures": pictures,
        "unread": unread,
        "settings": {**settings, "layer": features.layer, "counterpoint": __version__},
    }


def _pair_groups(rows: Sequence[dict[str, Any]], by: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """The pairs under headings; weights have no mark such as the 0.5 of shares."""
    same = [row for row in rows if row["kind"] == "identical"]
    rest = [row for row in rows if row["kind"] != "identical"]
    groups = [(f"Identical to the encoder ({len(same)} shown)", same)] if same else []
    if by == "share":
        return groups + _by_half(rest, "probable copies", "alike, rarely copies")
    return groups + ([(f"Alike, by weight ({len(rest)} shown)", rest)] if rest else [])


def _by_half(
    rows: Sequence[dict[str, Any]], above: str, below: str
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Rows parted where the score passes 0.5; an empty part is told too, if there are rows."""
    high = [row for row in rows if row["score"] > 0.5]
    low = [row for row in rows if row["score"] <= 0.5]
    named = ((f"Score above 0.5: {above}", high), (f"Score 0.5 or less: {below}", low))
    return [(f"{words} ({len(part) or 'none'} shown)", part) for words, part in named] if rows else []


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
