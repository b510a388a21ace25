"""What docs/similarity-store.md shows is run as it stands there."""

import doctest
import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image
from tar_shards import server, write_shards

from counterpoint.cli import main
from counterpoint.similarity import EmbeddingStore

PAGE = Path(__file__).parents[2] / "docs" / "similarity-store.md"


def test_the_examples_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried >= 9
    assert failed == 0


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, start in (("pictures.csv", 0), ("more.csv", 40)):
        rows = ["path,caption,label"]
        for i in range(start, start + 40):
            Image.new("RGB", (24, 24), (6 * (i % 40), 90, 40)).save(f"{i}.png")
            rows.append(f"{i}.png,a square of shade {i % 30},{'dark' if i % 2 else 'light'}")
        Path(name).write_text("\n".join(rows) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    shown = [line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert len(shown) == 7
    for line in shown:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, f"{line}: {capsys.readouterr().err}"
    out = capsys.readouterr().out
    assert "every file has the hash it was written with" in out
    assert "80 samples, 30 texts\nstore: stores/all" in out
    assert "40 samples, 2 texts" in out
    page = Path("pictures.html").read_text(encoding="utf-8")
    assert page.count("<img") > 20
    assert "a square of shade" in page
    assert "Batches of 16: " in page
    assert "http" not in re.sub(r"http://www.w3.org/\S+", "", page)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("build", "--out", "s"), ("--data or --table",)),
        (("build", "--out", "s", "--table", "no.csv", "--text", "a"), ("no.csv", "not there")),
        (("build", "--out", "s", "--table", "t.csv"), ("--text",)),
        (
            ("build", "--out", "s", "--table", "t.csv", "--text", "captoin"),
            ("captoin", "mean 'caption'"),
        ),
        (("build", "--out", "s", "--table", "t.csv", "--text", "caption"), ("1 of 2 texts", "'1'")),
        (("build", "--out", "s", "--data", "source: tabel, path: t.csv"), ("tabel", "'table'")),
        (("build", "--out", "s", "--data", "demo/nothing"), ("demo/nothing",)),
        (("build", "--out", "s", "--data", "source: shapes", "--text", "smell"), ("smell", "object")),
        (("info", "absent"), ("there is no store absent",)),
        (("merge", "a", "b", "--out", "c"), ("there is no store a",)),
        (("inspect", "absent/x"), ("there is no store absent/x, and unknown recipe",)),
        (("inspect", "demo/xclr", "--out", "."), (". is a folder",)),
        (("build", "--out", "s", "--data", "source: shapes", "train.epochs=3"), ("'train'", "data.limit")),
        (("build", "--out", "s", "--data", "source: shards, path: d/{0..1}.tar"), ("needs quotes",)),
        (("build", "--out", "s", "--data", "xclr/cc3m", "--split", "test"), ("--split test", "stream")),
        (("build", "--out", "s", "--data", "xclr/cc3m", "--text", "label"), ("--text label", "captions")),
        (("build", "--out", "s", "--data", "xclr/cc3m", "data.path=no.tar"), ("no file matches no.tar",)),
        (("inspect", "xclr/cc3m"), ("xclr/cc3m reads a stream", "its store")),
        (("inspect", "t.csv"), ("there is no store t.csv",)),
        (("inspect", "demo/simclr", "--batch-sizes", "many"), ("--batch-sizes", "many")),
        (("inspect", "demo/simclr"), ("no similarity section",)),
        (
            ("build", "--out", "s", "--table", "t.csv", "--text", "path", "data.limit=3"),
            ("data.limit=3", "--table"),
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(tmp_path, monkeypatch, capsys, words, parts):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("path,caption\na.png,a dog\nb.png,\n")
    monkeypatch.setattr(sys, "argv", ["counterpoint", "similarity", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    err = capsys.readouterr().err.strip()
    assert stop.value.code == 2, err
    assert len(err.splitlines()) == 1
    for part in parts:
        assert part in err
    assert not Path("s").exists()


def test_a_recipe_is_looked_at_in_its_own_batches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("data.count=200", "data.size=32", "train.batch_size=24", "similarity={graph: label}")
    monkeypatch.setattr(sys, "argv", ["counterpoint", "similarity", "inspect", "demo/xclr", *small])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    page = Path("similarity.html").read_text(encoding="utf-8")
    assert [f"Batches of {n}: " in page for n in (6, 24, 96, 200)] == [True, True, True, False]


def test_the_shards_of_a_stream_are_built_without_a_holdout(tmp_path, monkeypatch, capsys):
    """As docs/captions.md and the recipes for CC3M and CC12M have it."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "data" / "cc3m", shards=2, each=4)
    page = PAGE.with_name("captions.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ (counterpoint similarity build .*)$", page, re.M)
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code, capsys.readouterr().err
    assert len(EmbeddingStore.open("data/cc3m-store")) == 8
    for name in ("cc3m", "cc12m"):
        recipe = (PAGE.parents[1] / "recipes" / "xclr" / f"{name}.yaml").read_text(encoding="utf-8")
        assert f"path: data/{name}, train: null, on_error: skip" in recipe


def test_shards_that_are_elsewhere_make_the_same_store(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_shards(tmp_path / "shards", shards=2, each=4, texts=2)[0].parent

    def build(out, *words):
        line = ["counterpoint", "similarity", "build", "--encoder", "static", "--out", out, *words]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, capsys.readouterr().err
        store = EmbeddingStore.open(out)
        return [store.keys[row] for row in range(8)], (store.path / "vectors.npy").read_bytes()

    here = build("here", "--data", "source: shards, path: shards, train: null")
    with server(folder) as (address, asked):
        there = build("there", "--data", "xclr/cc3m", f"data.path={address}/made-{{00000..00001}}.tar")
    assert there == here
    assert asked == ["made-00000.tar", "made-00001.tar"]
