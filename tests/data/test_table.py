"""Tables of pictures: CSV, TSV and JSON lines, as they come, and every fault by row."""

import json

import pytest
from pictures import colour_at, encoded, refused

from counterpoint.data.table import table

NAMES = ("a.png", "b.png", "c.png", "d/e.png")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "d").mkdir()
    for name, colour in zip(NAMES, ("red", "blue", "white", "black"), strict=True):
        (tmp_path / name).write_bytes(encoded(colour))
    return tmp_path


def written(place, text, name="t.csv", encoding="utf-8"):
    (place / name).write_bytes(text.encode(encoding))
    return place / name


def jsonl(place, *rows):
    return written(place, "".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")


def test_csv(place):
    samples = table(
        written(place, "path,caption,label\na.png,red,warm\nd/e.png,none,\nb.png,blue,cold\nc.png,light,-1\n")
    )
    assert samples.name == "t"
    assert samples.keys == ["a.png", "d/e.png", "b.png", "c.png"]
    assert samples.captions == ["red", "none", "blue", "light"]
    assert samples.column().names == ["cold", "warm"]
    assert samples.column().values.tolist() == [1, -1, 0, -1]
    assert colour_at(samples.picture(2)) == (0, 0, 255)


def test_quotes_newlines_bom_and_other_columns(place):
    text = '\ufeffid,caption,path\r\n1,"two, with ""quotes""\nand a line",a.png\r\n\r\n2,Straße ☂,b.png\r\n'
    samples = table(written(place, text))
    assert samples.captions == ['two, with "quotes"\nand a line', "Straße ☂"]
    assert samples.keys == ["a.png", "b.png"]
    assert samples.labels == {}


def test_tsv_and_jsonl(place):
    samples = table(written(place, "path\tcaption\na.png\tone, two\n", "t.tsv"))
    assert samples.captions == ["one, two"]
    samples = table(
        jsonl(place, {"path": "a.png", "caption": "x\ny", "label": 3}, {"path": "b.png", "caption": "ü"})
    )
    assert samples.captions == ["x\ny", "ü"]
    assert samples.column().values.tolist() == [3, -1]
    assert samples.column().names == ["0", "1", "2", "3"]


def test_bom_and_blank_lines_in_jsonl(place):
    text = '\ufeff{"path": "a.png", "caption": "one\u2028two"}\n\n{"path": "b.png", "caption": "x"}'
    assert table(written(place, text, "t.jsonl")).captions == ["one\u2028two", "x"]


def test_labels_without_captions(place):
    samples = table(written(place, "path,label\na.png,1\nb.png,0\nc.png,-1\n"))
    assert samples.captions is None
    assert samples.column().values.tolist() == [1, 0, -1]
    assert samples.column().names == ["0", "1"]
    samples = table(written(place, "path,label\na.png,1\nb.png,x\n"))
    assert samples.column().names == ["1", "x"]
    samples = table(written(place, "path,label\na.png,\nb.png,-1\n"))
    assert samples.column().values.tolist() == [-1, -1]
    assert list(samples.column().names) == []


def test_columns_of_labels_by_name(place):
    text = "path,kind,colour,split\na.png,cup,red,x\nb.png,,0,y\nc.png,hat,red,x\n"
    samples = table(written(place, text), split="x", label_columns=["colour", "kind"])
    assert list(samples.labels) == ["colour", "kind"]
    assert samples.column().names == ["0", "red"]
    assert samples.labels["kind"].names == ["cup", "hat"]
    assert samples.labels["kind"].values.tolist() == [0, 1]
    assert samples.captions is None
    rows = [{"path": "a.png", "year": 2}, {"path": "b.png", "year": 0}]
    assert table(jsonl(place, *rows), label_columns=["year"]).column("year").values.tolist() == [2, 0]
    for columns, parts in (
        (["color"], ["no column 'color'", "did you mean 'colour'"]),
        (["path"], ["no column 'path' of labels"]),
        ([], ["at least one"]),
        ("kind", ["a list of columns"]),
    ):
        with refused("t.csv" if columns and columns != "kind" else "label_columns", *parts):
            table(place / "t.csv", label_columns=columns)
    with refused("row 2", "kind", "got 1.5"):
        table(
            jsonl(place, {"path": "a.png", "kind": "x"}, {"path": "b.png", "kind": 1.5}),
            label_columns=["kind"],
        )


def test_split_keeps_the_numbers_of_the_whole_table(place):
    text = "path,caption,label,split\na.png,r,ant,train\nb.png,b,bee,test\nc.png,c,cat,train\n"
    text += "d/e.png,e,bee,train\n"
    file = written(place, text)
    test = table(file, split="test")
    assert (test.name, test.keys, test.captions) == ("t/test", ["b.png"], ["b"])
    assert test.column().names == ["ant", "bee", "cat"]
    assert test.column().values.tolist() == [1]
    assert len(table(file, split="train")) == 3
    assert len(table(file)) == 4
    with refused("no row of split 'tset'", "test, train", "did you mean 'test'?"):
        table(file, split="tset")
    with refused("no column 'split'", "path, caption"):
        table(written(place, "path,caption\na.png,r\n"), split="train")


def test_root_and_absolute_paths(place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("tables")
    file = written(elsewhere, f"path,caption\ne.png,x\n{place / 'a.png'},y\n")
    samples = table(file, root=place / "d")
    assert colour_at(samples.picture(0)) == (0, 0, 0)
    assert colour_at(samples.picture(1)) == (255, 0, 0)
    with refused("is not there"):
        table(file, root=place / "absent")


def test_a_picture_with_several_captions(place):
    samples = table(written(place, "path,caption\na.png,one\na.png,two\nb.png,x\na.png,three\n"))
    assert samples.keys == ["a.png", "a.png#2", "b.png", "a.png#3"]
    assert samples.captions == ["one", "two", "x", "three"]
    assert colour_at(samples.picture(3)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ("file,caption", ["lacks the column 'path'", "found: file, caption"]),
        ("paths,caption", ["column 'paths' but no 'path'"]),
        ("path,captoin", ["column 'captoin' but no 'caption'", "found: path, captoin"]),
        ("path,label,Caption", ["column 'Caption' but no 'caption'"]),
        ("path,caption,labels", ["column 'labels' but no 'label'"]),
        ("path,text", ["needs a column 'caption' or 'label'", "found: path, text"]),
        ("path,caption,path", ["two columns 'path'"]),
    ],
)
def test_headers(place, header, parts):
    with refused(*parts):
        table(written(place, header + "\n" + ",".join("a" * (header.count(",") + 1)) + "\n"))


def test_missing_pictures_are_counted(place):
    text = 'path,caption\na.png,"x\ny"\nz.png,y\nb.png,z\nd/y.png,w\n'
    file = written(place, text)
    with refused("2 of 4 samples", "row 2 (line 4): there is no picture 'z.png'", str(place)):
        table(file)
    with pytest.warns(UserWarning, match="2 of 4 samples cannot be used"):
        samples = table(file, on_error="skip")
    assert samples.keys == ["a.png", "b.png"]
    assert samples.captions == ["x\ny", "z"]


@pytest.mark.parametrize("empty", ["", "  ", '""'])
def test_empty_captions_are_named_by_row(place, empty):
    with refused("1 of 2 samples", "row 2 (line 3) has an empty caption"):
        table(written(place, f"path,caption\na.png,x\nb.png,{empty}\n"))


def test_empty_values(place):
    with refused("row 1 (line 2) has no path"):
        table(written(place, "path,caption\n,x\n"))
    with refused("row 2 (line 2) has an empty caption"):
        table(jsonl(place, {"path": "a.png", "caption": "x"}, {"path": "b.png", "caption": None}))
    with refused("row 2 (line 2) has a caption that is not Unicode"):
        table(jsonl(place, {"path": "a.png", "caption": "x"}, {"path": "b.png", "caption": "a dog \ud83d"}))
    with refused("none is left"):
        table(written(place, "path,caption\nz.png,x\n"), on_error="skip")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("path,caption\n", ["has no rows"]),
        ("path,caption\na.png,one, two\n", ["row 1 (line 2)", "3 fields", "the header has 2"]),
        ("path,caption\na.png\n", ["row 1 (line 2)", "1 fields"]),
        ('path,caption\na.png,x\nb.png,"never closed\n', ["line 3"]),
        ("path,label\na.png,0\nb.png,-3\n", ["row 2 (line 3)", "label -3 is not allowed"]),
        ("path,label\na.png,123456789\n", ["label 123456789 is not allowed", "999999"]),
    ],
)
def test_bad_csv(place, text, parts):
    with refused(*parts):
        table(written(place, text))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["has no rows"]),
        ('{"path": "a.png", "caption": "x"}\n{"path"\n', ["row 2 (line 2) is not JSON"]),
        ("[1]\n", ["row 1 (line 1)", "expected an object, got list"]),
        ('{"path": 3, "caption": "x"}\n', ["row 1 (line 1)", "path must be text, got 3"]),
        ('{"path": "a.png", "label": 0.5}\n', ["row 1 (line 1)", "whole number, got 0.5"]),
        ('{"file": "a.png", "caption": "x"}\n', ["lacks the column 'path'", "found: file, caption"]),
    ],
)
def test_bad_jsonl(place, text, parts):
    with refused(*parts):
        table(written(place, text, "t.jsonl"))


def test_bad_files(place):
    with refused("is not there"):
        table(place / "absent.csv")
    with refused("is a folder"):
        table(place)
    with refused("must end in .csv, .tsv, .jsonl"):
        table(written(place, "path,caption\n", "t.xlsx"))
    with refused("is not UTF-8", "at byte"):
        table(written(place, "path,caption\na.png,Straße\n", encoding="latin-1"))
    with refused("on_error='no'"):
        table(written(place, "path,caption\na.png,x\n"), on_error="no")


def test_a_bad_picture_is_named(place):
    (place / "a.png").write_bytes(b"text")
    samples = table(written(place, "path,caption\na.png,x\n"))
    with refused("picture 'a.png'", "it is no picture"):
        samples.picture(0)
