import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pictures import refused

from counterpoint.data.samples import Labels
from counterpoint.evaluate import Features, save_features
from counterpoint.evaluate.embeddings import load_embeddings

VECTORS = np.arange(12.0).reshape(4, 3)
KEYS = ["a/1.png", "a/2.png", "b/1.png", "b/2.png"]
NAMES = ["cat", None, "ant", "cat"]


def written(path, keys=True, labels=True):
    """The same rows in the form that the ending asks for."""
    stored = {"vectors": VECTORS}
    if keys:
        stored["keys"] = KEYS
    if labels:
        stored["labels"] = NAMES
    if path.suffix == ".npy":
        np.save(path, VECTORS)
    elif path.suffix == ".npz":
        named = {} if not labels else {"labels": np.array([1, -1, 0, 1])}
        np.savez(path, **{k: np.array(v) for k, v in stored.items() if k != "labels"}, **named)
    elif path.suffix == ".pt":
        torch.save({**stored, "vectors": torch.from_numpy(VECTORS)}, path)
    else:
        singular = {"vectors": "vector", "keys": "key", "labels": "label"}
        columns = {singular[k]: list(v) for k, v in stored.items()}
        pq.write_table(pa.table({**columns, "other": [1, 2, 3, 4]}), path)
    return path


@pytest.mark.parametrize("ending", ["npz", "pt", "parquet"])
def test_keys_vectors_and_labels(tmp_path, ending):
    features = load_embeddings(written(tmp_path / f"mine.{ending}"))
    assert features.h.tolist() == VECTORS.tolist()
    assert features.keys == KEYS
    assert features.labels["label"].values.tolist() == [1, -1, 0, 1]
    assert list(features.labels["label"].names) == (["0", "1"] if ending == "npz" else ["ant", "cat"])


@pytest.mark.parametrize("ending", ["npz", "npy", "pt", "parquet"])
def test_vectors_alone_are_numbered(tmp_path, ending):
    features = load_embeddings(written(tmp_path / f"mine.{ending}", keys=False, labels=False))
    assert features.keys == ["0", "1", "2", "3"]
    assert not features.labels
    assert features.name == "mine"


def test_a_bare_tensor_and_a_features_file(tmp_path):
    torch.save(torch.eye(3), tmp_path / "bare.pt")
    assert load_embeddings(tmp_path / "bare.pt").width == 3
    kinds = Labels(torch.tensor([0, 1]), ["x", "y"])
    save_features(tmp_path / "features.npz", Features(torch.eye(2), ["a", "b"], {"kind": kinds}, "mine/test"))
    features = load_embeddings(tmp_path / "features.npz")
    assert features.name == "mine/test"
    assert features.labels["kind"].names == ["x", "y"]


class Harmful:
    def __reduce__(self):
        return print, ("run",)


def test_what_is_refused_names_the_file(tmp_path, capsys):
    def file(name):
        return tmp_path / name

    with refused("mine.csv", ".npz, .npy, .pt, .parquet"):
        load_embeddings(file("mine.csv"))
    with refused("absent.npy", "not there"):
        load_embeddings(file("absent.npy"))
    np.save(file("nan.npy"), np.array([[1.0, 2.0], [np.nan, 0.0]]))
    with refused("nan.npy", "not finite", "'1'"):
        load_embeddings(file("nan.npy"))
    np.save(file("flat.npy"), np.arange(3))
    with refused("flat.npy", "(n, d)", "(3,)"):
        load_embeddings(file("flat.npy"))
    np.savez(file("other.npz"), stuff=VECTORS)
    with refused("other.npz", "'vectors'", "stuff"):
        load_embeddings(file("other.npz"))
    torch.save({"stuff": VECTORS.tolist()}, file("other.pt"))
    with refused("other.pt", "'vectors'", "stuff"):
        load_embeddings(file("other.pt"))
    torch.save({"vectors": Harmful()}, file("harmful.pt"))
    with refused("harmful.pt", "more than tensors"):
        load_embeddings(file("harmful.pt"))
    assert capsys.readouterr().out == ""
    pq.write_table(pa.table({"x": [1]}), file("other.parquet"))
    with refused("other.parquet", "'vector'", "x"):
        load_embeddings(file("other.parquet"))
    pq.write_table(pa.table({"vector": [[1.0], [1.0, 2.0]]}), file("ragged.parquet"))
    with refused("ragged.parquet", "one length"):
        load_embeddings(file("ragged.parquet"))
    for name in ("damaged.npz", "damaged.pt", "damaged.parquet", "damaged.npy"):
        file(name).write_bytes(b"no such thing")
        with refused(name):
            load_embeddings(file(name))
    torch.save({"vectors": torch.eye(2), "keys": ["a"]}, file("short.pt"))
    with refused("short.pt", "1 keys for 2"):
        load_embeddings(file("short.pt"))
    torch.save({"vectors": torch.eye(2), "labels": [0, 10**9]}, file("ids.pt"))
    with refused("ids.pt", "1000000000"):
        load_embeddings(file("ids.pt"))
