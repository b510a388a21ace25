"""Whatever is wrong with a file of embeddings is one line that names it."""

import zipfile

import numpy as np
import pytest
import torch
from pictures import refused

from counterpoint.evaluate import Features, save_features
from counterpoint.evaluate.embeddings import load_embeddings

VECTORS = np.arange(12.0).reshape(4, 3)


def told(path, *parts):
    with refused(path.name, *parts):
        load_embeddings(path)


@pytest.mark.parametrize("ending", ["npz", "npy", "pt", "parquet"])
@pytest.mark.parametrize("content", [b"", b"no such thing", b"PK\x03\x04", b"\x93NUMPY", b"PAR1"])
def test_no_file_of_that_kind(tmp_path, ending, content):
    path = tmp_path / f"mine.{ending}"
    path.write_bytes(content)
    told(path)


def test_text_as_pt(tmp_path):
    path = tmp_path / "mine.pt"
    for text in ("hello world\n", "key,x,y\na,1,2\n", "import this", "\x80\x02."):
        path.write_text(text, encoding="latin-1")
        told(path, "damaged")


@pytest.mark.parametrize("form", ["vectors", "features"])
@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
def test_npz_cut_or_with_flipped_bits(tmp_path, form, pack):
    path = tmp_path / "mine.npz"
    keys = np.array(list("abcd"))
    pack(path, **{"vectors" if form == "vectors" else "h": VECTORS, "keys": keys})
    whole = path.read_bytes()
    for kept in (0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(kept * len(whole))])
        told(path)
    flipped = 0
    for place in range(0, len(whole), 7):
        for bit in (1, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            error = None
            try:
                load_embeddings(path)
            except ValueError as raised:
                error = str(raised)
                flipped += 1
            # A bit that matters to no reader changes nothing.
            assert error is None or ("mine.npz" in error and "\n" not in error)
    assert flipped > 20


def test_npz_and_npy_under_each_others_name(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS)
    (tmp_path / "a.npy").rename(tmp_path / "bare.npz")
    told(tmp_path / "bare.npz", ".npy")
    np.savez(tmp_path / "a.npz", vectors=VECTORS)
    (tmp_path / "a.npz").rename(tmp_path / "many.npy")
    told(tmp_path / "many.npy", ".npz")


@pytest.mark.filterwarnings("ignore:.*[Ss]parse")
@pytest.mark.parametrize(
    ("stored", "parts"),
    [
        ({"keys": 3}, ("keys", "int")),
        ({"labels": 5}, ("labels", "int")),
        ({"keys": "abcd"}, ("keys", "str")),
        ({"labels": torch.tensor(1)}, ("labels", "()")),
        ({"labels": torch.zeros(4, 2)}, ("labels", "(4, 2)")),
        ({"labels": [0, 1]}, ("2 labels for 4",)),
        ({"labels": []}, ("0 labels for 4",)),
        ({"labels": [0, 1, 2, 1 << 70]}, ("label 1180591620717411303424",)),
        ({"labels": [0, 1, 2, -2]}, ("label -2",)),
        ({"vectors": torch.zeros(5, 0)}, ("(n, d)", "(5, 0)")),
        ({"vectors": torch.zeros(0, 5)}, ("(n, d)", "(0, 5)")),
        ({"vectors": torch.eye(4).to_sparse()}, ("sparse",)),
        ({"vectors": torch.empty(4, 4, device="meta")}, ("meta",)),
        ({"vectors": "text"}, ("numbers",)),
        ({"vectors": None}, ("numbers",)),
    ],
)
def test_pt_of_other_kinds(tmp_path, stored, parts):
    torch.save({"vectors": torch.eye(4), **stored}, tmp_path / "mine.pt")
    told(tmp_path / "mine.pt", *parts)


@pytest.mark.filterwarnings("ignore")
def test_pt_quantised(tmp_path):
    torch.save(torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8), tmp_path / "mine.pt")
    told(tmp_path / "mine.pt")


@pytest.mark.parametrize(
    ("stored", "parts"),
    [
        ({"vectors": VECTORS, "labels": np.array(1)}, ("labels", "()")),
        ({"vectors": VECTORS, "keys": np.array("abcd")}, ("keys", "()")),
        ({"vectors": np.zeros((5, 0))}, ("(n, d)", "(5, 0)")),
        ({"vectors": np.array([["a", "b"]])}, ("numbers",)),
        ({"vector": VECTORS, "keys": np.arange(4)}, ("'vectors'", "vector, keys")),
        ({"h": np.array([["a", "b"]]), "keys": np.array(["a"])}, ("numbers",)),
        ({"h": np.zeros((4, 0)), "keys": np.array(list("abcd"))}, ("(4, 0)",)),
        ({"h": VECTORS}, ("'keys'",)),
        ({"h": VECTORS, "keys": np.array("abcd")}, ("keys", "()")),
        ({"h": VECTORS, "keys": np.arange(4)}, ("keys", "text", "int64")),
    ],
)
def test_npz_of_other_kinds(tmp_path, stored, parts):
    np.savez(tmp_path / "mine.npz", **stored)
    told(tmp_path / "mine.npz", *parts)


@pytest.mark.parametrize("values", [np.array(list("abab")), np.array([0.5, 1, 0, 1]), np.array(1)])
def test_features_with_labels_of_another_kind(tmp_path, values):
    save_features(tmp_path / "mine.npz", Features(torch.eye(4), list("abcd")))
    with np.load(tmp_path / "mine.npz") as stored:
        arrays = dict(stored)
    names = np.array(["x", "y"])
    np.savez(tmp_path / "mine.npz", **arrays, labels_kind=values, names_kind=names)
    told(tmp_path / "mine.npz", "labels_kind")


def test_a_zip_of_other_things(tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as file:
        file.writestr("vectors.npy", "not an array")
    told(tmp_path / "mine.npz")
