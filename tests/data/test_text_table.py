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
        (b'key,text\na,"open\nb,c\n', ("a quote that is not closed", "line 2")),
    ):
        file.write_bytes(content)
        with refused("t.csv", *parts):
            text_table(file, "text", "key")
    assert text_table(_written(tmp_path / "u.csv", b"key,text\n"), "text", "key") == ([], [])
    # The next quote closes it: without a word, rows would be missing.
    swallowed = b'key,text\na,"open\nb,fine\nc,"two words"\nd,fine\n'
    for name, content in (("s.csv", swallowed), ("s.csv.gz", gzip.compress(swallowed))):
        with refused(name, "a quote that is not closed", "line 2"):
            text_table(_written(tmp_path / name, content), "text", "key")
    long = "x" * 200_000
    whole = _written(tmp_path / "l.csv", f'key,text\na,"{long}\nb"\n'.encode())
    assert text_table(whole, "text", "key") == (["a"], [f"{long}\nb"])
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


def test_texts_that_look_like_times_stay_as_they_are(tmp_path):
    file = tmp_path / "t.jsonl"
    rows = [("2024-05-01", "2024-05-01 12:30:00"), ("2024-05-02", None)]
    file.write_text("\n".join(json.dumps({"key": key, "text": text}) for key, text in rows))
    assert text_table(file, "text", "key") == (["2024-05-01", "2024-05-02"], ["2024-05-01 12:30:00", ""])


def test_a_number_that_is_missing_is_no_text(tmp_path):
    pq.write_table(pa.table({"size": [1.5, float("nan"), None]}), tmp_path / "t.parquet")
    assert text_table(tmp_path / "t.parquet", "size") == (["0", "1", "2"], ["1.5", "", ""])


def test_of_a_parquet_file_only_the_columns_asked_for_are_read(tmp_path):
    """The other one is damaged, so that reading it would fail."""
    file = tmp_path / "t.parquet"
    table = pa.table({"text": ["a dog", "a cat"], "image": [b"\x01" * 3000, b"\x02" * 3000]})
    pq.write_table(table, file, compression="none", use_dictionary=False)
    place = pq.read_metadata(file).row_group(0).column(1).data_page_offset
    content = bytearray(file.read_bytes())
    content[place : place + 50] = b"\xff" * 50
    file.write_bytes(content)
    assert text_table(file, "text") == (["0", "1"], ["a dog", "a cat"])
    with refused("t.parquet cannot be read"):
        text_table(file, "image")


def _written(file, content):
    file.write_bytes(content)
    return file
