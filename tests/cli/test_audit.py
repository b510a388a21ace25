import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import TINY, refused
from PIL import Image


@pytest.fixture
def vectors(tmp_path):
    """Embeddings of 40 pictures in a folder; the last three are copies of the first three."""
    h = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    h[37:] = h[:3]
    keys = [f"{i}.png" for i in range(40)]
    for i, key in enumerate(keys):
        Image.new("RGB", (16, 16), (6 * i, 0, 0)).save(tmp_path / key)
    np.savez(tmp_path / "mine.npz", vectors=h, keys=np.array(keys), labels=np.arange(40) % 4)
    return tmp_path / "mine.npz"


def test_a_trained_run(counterpoint, tmp_path):
    folder = tmp_path / "run"
    assert counterpoint("train", "demo/simclr", "--out", folder, *TINY)[0] == 0
    code, out, err = counterpoint("audit", folder, "--count", "20", "--column", "texture")
    assert code == 0, err
    assert "96 samples, 20 pairs listed\ncolumn 'texture': " in out
    assert "of 96 labels score above 0.5, 20 listed" in out
    page = (folder / "audit" / "audit.html").read_text()
    assert page.count("<img") == 5 * 20
    first = pq.read_table(folder / "audit" / "pairs.parquet")
    refused(counterpoint("audit", folder), "pairs.parquet", "--overwrite")
    code, _, err = counterpoint("audit", folder, "--count", "20", "--column", "texture", "--overwrite")
    assert code == 0, err
    assert pq.read_table(folder / "audit" / "pairs.parquet").equals(first)
    code, _, err = counterpoint("audit", folder, "--split", "test", "--layer", "z", "--out", tmp_path / "z")
    assert code == 0, err
    other = pq.read_table(tmp_path / "z" / "pairs.parquet")
    assert set(other["a"].to_pylist()).isdisjoint(first["a"].to_pylist())
    for words, parts in (
        (("--split", "tset"), ("--split", "train or test", "tset")),
        (("--layer", "y"), ("--layer", "'y'")),
        (("--column", "absent"), ("absent", "texture")),
        (("--pictures", tmp_path), ("--pictures",)),
    ):
        refused(counterpoint("audit", folder, "--out", tmp_path / "new", *words), *parts)
    assert not (tmp_path / "new").exists()


def test_embeddings_with_their_pictures(counterpoint, tmp_path, vectors):
    code, _, err = counterpoint("audit", vectors, "--pictures", tmp_path, "--table", "csv", "--count", "5")
    assert code == 0, err
    rows = (tmp_path / "mine-audit" / "pairs.csv").read_text().splitlines()
    assert len(rows) == 6
    assert {tuple(row.split(",")[:2]) for row in rows[1:4]} == {
        (f'"{i}.png"', f'"{37 + i}.png"') for i in range(3)
    }
    assert "data:image/" in (tmp_path / "mine-audit" / "audit.html").read_text()


def test_mistakes_are_one_line_and_exit_2(counterpoint, tmp_path, vectors):
    bad = tmp_path / "bad.npz"
    np.savez(bad, vectors=np.array([[1.0, np.inf], [1.0, 2.0]]))
    np.save(tmp_path / "bare.npy", np.eye(4))
    for words, parts in (
        ((tmp_path / "absent.npz",), ("absent.npz", "not there")),
        ((tmp_path / "0.png",), ("0.png", ".parquet")),
        ((tmp_path,), ("not a run",)),
        ((bad,), ("bad.npz", "not finite")),
        ((tmp_path / "bare.npy", "--column", "kind"), ("no labels",)),
        ((vectors, "--candidates", "40"), ("candidates", "39", "40")),
        ((vectors, "--count", "0"), ("count", "0")),
        ((vectors, "--by", "cosine"), ("by", "cosine")),
        ((vectors, "--table", "xlsx"), ("table", "xlsx")),
        ((vectors, "--split", "test"), ("--split", "folder of a run")),
        ((vectors, "--pictures", tmp_path / "absent"), ("absent",)),
    ):
        refused(counterpoint("audit", *words, "--out", tmp_path / "out"), *parts)
    assert not (tmp_path / "out").exists()


def test_a_source_without_labels_after_one_with_them(counterpoint, tmp_path, vectors):
    words = ("--out", tmp_path / "out", "--table", "csv")
    assert counterpoint("audit", vectors, *words)[0] == 0
    assert (tmp_path / "out" / "labels.csv").exists()
    for name, values in (("one", np.zeros(40, int)), ("none", np.full(40, -1))):
        np.savez(tmp_path / f"{name}.npz", **{**np.load(vectors), "labels": values})
        code, out, err = counterpoint("audit", tmp_path / f"{name}.npz", *words, "--overwrite")
        assert code == 0, err
        assert out.splitlines()[1].startswith("no labels are listed: column 'label' has ")
        assert not (tmp_path / "out" / "labels.csv").exists()
        assert len((tmp_path / "out" / "pairs.csv").read_text().splitlines()) > 3


@pytest.mark.parametrize("name", ["mine.npz", "mine.npy", "mine.pt", "mine.parquet"])
def test_an_empty_file_is_one_line(counterpoint, tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    refused(counterpoint("audit", tmp_path / name), name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_keys_that_are_pipes_or_loops_show_nothing(counterpoint, tmp_path, vectors):
    (tmp_path / "0.png").unlink()
    os.mkfifo(tmp_path / "0.png")
    (tmp_path / "1.png").unlink()
    (tmp_path / "1.png").symlink_to("1.png")
    code, _, err = counterpoint("audit", vectors, "--pictures", tmp_path)
    assert code == 0, err
    page = (tmp_path / "mine-audit" / "audit.html").read_text()
    assert "2 pictures cannot be shown" in page
    assert 'alt="37.png"' in page


def test_keys_that_lead_out_of_the_folder_show_nothing(counterpoint, tmp_path, vectors):
    stored = dict(np.load(vectors))
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "out.npz", **{**stored, "keys": np.array([f"../{i}.png" for i in range(40)])})
    words = ("audit", tmp_path / "out.npz", "--pictures", tmp_path / "in")
    assert counterpoint(*words)[0] == 0
    page = (tmp_path / "out-audit" / "audit.html").read_text()
    assert "<img" not in page
    assert "is not inside" in page
