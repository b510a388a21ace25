"""Texts of tables of every form, and what is said of tables that are none."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import refused

from counterpoint.data.text_table import text_table

TEXTS = ["a dog", "null", "007", "ein Hund, läuft", "一只狗"]


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_texts_are_those_of_the_data_sources(tmp_path, form):
    """`table` leaves out the white space around a caption, `parquet` keeps it."""
    file = tmp_path / f"t.{form}"
    wide = [f"  {text} " for text in TEXTS]
    if form == "parquet":
        pq.write_table(pa.table({"key": list("abcde"), "text": wide}), file)
    elif form == "jsonl":
        rows = [json.dumps({"key": k, "text": text}) for k, text in zip("abcde", wide, strict=True)]
        file.write_text("\n".join(rows))
    else:
        rows = ['a,"  a dog "', "b,  null ", "c,  007 ", 'd,"  ein Hund, läuft "', "e,  一只狗 "]
        if form == "tsv":
            rows = [f"{k}\t{text}" for k, text in zip("abcde", wide, strict=True)]
        file.write_text("\n".join([f"key{',' if form == 'csv' else chr(9)}text", *rows]) + "\n")
    want = wide if form == "parquet" else TEXTS
    assert text_table(file, "text", "key") == (list("abcde"), want)
    assert text_table(file, "text")[0] == list("01234")


def test_bad_tables_are_named(tmp_path):
    file = tmp_path / "t.csv"
    for content, parts in (
        (b"", ("cannot be read",)),
        (b"key,text,text\na,b,c\n", ("two columns 'text'",)),
        (b"key,text\na,b,c\n", ("cannot be read",)),
        (b"key,text\na,\xff\n", ("cannot be read",)),
        (b"key,test\na,b\n", ("no column 'text'", "'test'")),
        (b'key,text\na,"open\nb,c\n', ("a quote that is not closed", "'open\\nb,c")),
    ):
        file.write_bytes(content)
        with refused("t.csv", *parts):
            text_table(file, "text", "key")
    assert text_table(_written(tmp_path / "u.csv", b"key,text\n"), "text", "key") == ([], [])
    whole = _written(tmp_path / "v.csv", b'key,text\na,"two\nlines"\n')
    assert text_table(whole, "text", "key") == (["a"], ["two\nlines"])
    cut = gzip.compress(b"key,text\na,b\n" * 99)[:-9]
    with refused("w.csv.gz cannot be read"):
        text_table(_written(tmp_path / "w.csv.gz", cut), "text", "key")
    for values, kind in (([["a"]], "list"), ([{"a": 1}], "struct"), ([b"a"], "binary")):
        pq.write_table(pa.table({"text": values}), tmp_path / "t.parquet")
        with refused("column 'text'", "t.parquet", f"it holds {kind}"):
            text_table(tmp_path / "t.parquet", "text")
    table = pa.table({"text": pa.array([b"a", b"\xff"]).cast(pa.binary()).view(pa.string())})
    pq.write_table(table, tmp_path / "t.parquet")
    with refused("t.parquet", "not UTF-8"):
        text_table(tmp_path / "t.parquet", "text")


def _written(file, content):
    file.write_bytes(content)
    return file
