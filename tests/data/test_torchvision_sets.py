"""torchvision's own readers on tiny files in the original formats, downloads, absent and damaged files.

The sets themselves are too large for tests. Checksums that torchvision compares are set to those of the tiny
files, so that its comparison runs.
"""

import gzip
import hashlib
import http.server
import io
import pickle
import tarfile
import threading
from functools import partial

import numpy as np
import pytest
import torch
from pictures import colour_at, encoded, refused
from torchvision import datasets

from counterpoint.data.torchvision_sets import SETS, torchvision_set

RANDOM = np.random.default_rng(0)


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def written(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Both CIFAR sets with three pictures per batch, in the pickle format of the authors."""
    pixels = {}
    for kind, label in ((datasets.CIFAR10, "labels"), (datasets.CIFAR100, "fine_labels")):
        base = tmp_path / kind.base_folder
        for part in ("train", "test"):
            listed, rows = [], []
            for k, (name, _) in enumerate(getattr(kind, f"{part}_list")):
                rows.append(RANDOM.integers(0, 256, (3, 3072), dtype=np.uint8))
                batch = {"data": rows[-1], label: [k, 9, 0], "coarse_labels": [0, 0, 0]}
                listed.append([name, md5(written(base / name, pickle.dumps(batch)))])
            monkeypatch.setattr(kind, f"{part}_list", listed)
            pixels[kind, part] = np.concatenate(rows).reshape(-1, 3, 32, 32)
        meta = {kind.meta["key"]: [f"class {k}" for k in range(100 if kind is datasets.CIFAR100 else 10)]}
        file = written(base / kind.meta["filename"], pickle.dumps(meta))
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(file)})
    return tmp_path, pixels


@pytest.mark.parametrize(
    ("name", "kind", "split", "labels"),
    [
        ("cifar10", datasets.CIFAR10, "train", [0, 9, 0, 1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0]),
        ("cifar10", datasets.CIFAR10, "test", [0, 9, 0]),
        ("cifar100", datasets.CIFAR100, "train", [0, 9, 0]),
        ("cifar100", datasets.CIFAR100, "test", [0, 9, 0]),
    ],
)
def test_cifar(cifar, name, kind, split, labels):
    root, pixels = cifar
    samples = torchvision_set(name, root, split)
    assert samples.name == f"{name}/{split}"
    assert samples.keys[:2] == [f"{split}/0", f"{split}/1"]
    assert samples.column().values.tolist() == labels
    assert len(samples.column().names) == (100 if name == "cifar100" else 10)
    assert samples.tensor.is_contiguous()
    assert np.array_equal(samples.tensor.numpy(), pixels[kind, split])
    assert np.array_equal(np.asarray(samples.picture(1)), pixels[kind, split][1].transpose(1, 2, 0))
    # the same picture that torchvision itself shows
    own = kind(root, train=split == "train")[1][0]
    assert np.asarray(own).tobytes() == samples.picture(1).tobytes()


def test_damaged_cifar_is_refused(cifar):
    root, _ = cifar
    with (root / "cifar-10-batches-py/data_batch_3").open("ab") as file:
        file.write(b"x")
    with refused("cifar10 cannot be read", "corrupted", str(root), "cifar-10-python.tar.gz", "download=True"):
        torchvision_set("cifar10", root)


@pytest.fixture
def stl10(tmp_path, monkeypatch):
    """STL-10 in its binary format: column-major pictures, labels from 1, and 0 for none."""
    kind = datasets.STL10
    pictures = {part: RANDOM.integers(0, 256, (n, 3, 96, 96), dtype=np.uint8)
                for part, n in (("train", 3), ("test", 2), ("unlabeled", 4))}  # fmt: skip
    labels = {"train": [1, 10, 0], "test": [2, 3]}
    for which in ("train_list", "test_list"):
        listed = []
        for name, _ in getattr(kind, which):
            part, what = name.removesuffix(".bin").rsplit("_", 1)
            data = pictures[part].transpose(0, 1, 3, 2).tobytes() if what == "X" else bytes(labels[part])
            listed.append([name, md5(written(tmp_path / kind.base_folder / name, data))])
        monkeypatch.setattr(kind, which, listed)
    written(
        tmp_path / kind.base_folder / "class_names.txt", "\n".join(f"class {k}" for k in range(10)).encode()
    )
    return tmp_path, pictures


def test_stl10(stl10):
    root, pictures = stl10
    train = torchvision_set("stl10", root)
    assert np.array_equal(train.tensor.numpy(), pictures["train"])
    assert train.column().values.tolist() == [0, 9, -1]
    test = torchvision_set("stl10", root, "test")
    assert test.column().values.tolist() == [1, 2]
    assert np.array_equal(np.asarray(test.picture(1)), pictures["test"][1].transpose(1, 2, 0))
    unlabelled = torchvision_set("stl10", root, "unlabeled")
    assert unlabelled.column().values.tolist() == [-1] * 4
    assert len(unlabelled.column().names) == 10
    both = torchvision_set("stl10", root, "train+unlabeled")
    assert both.column().values.tolist() == [0, 9, -1, -1, -1, -1, -1]
    assert np.array_equal(both.tensor[3:].numpy(), pictures["unlabeled"])
    (root / "stl10_binary/class_names.txt").unlink()
    with refused("stl10 cannot be read", "class names", str(root), "stl10_binary"):
        torchvision_set("stl10", root)


@pytest.fixture
def fashion(tmp_path):
    """Fashion-MNIST's four idx files: a magic number, sizes, and bytes."""
    raw = tmp_path / "FashionMNIST/raw"
    pictures = {}
    for part, n in (("train", 5), ("t10k", 2)):
        pictures[part] = RANDOM.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        sizes = np.array([2051, n, 28, 28], dtype=">i4").tobytes()
        written(raw / f"{part}-images-idx3-ubyte", sizes + pictures[part].tobytes())
        written(
            raw / f"{part}-labels-idx1-ubyte", np.array([2049, n], dtype=">i4").tobytes() + bytes(range(n))
        )
    return tmp_path, pictures


def test_fashion_mnist(fashion):
    root, pictures = fashion
    train = torchvision_set("fashion_mnist", root)
    assert train.tensor.shape == (5, 3, 28, 28)
    assert all(np.array_equal(train.tensor[:, channel].numpy(), pictures["train"]) for channel in range(3))
    assert train.column().values.tolist() == [0, 1, 2, 3, 4]
    assert train.column().names[0] == "T-shirt/top"
    test = torchvision_set("fashion_mnist", root, "test")
    assert np.array_equal(np.asarray(test.picture(1))[:, :, 2], pictures["t10k"][1])
    assert test.subset([1]).tensor.shape == (1, 3, 28, 28)


def test_fashion_mnist_cut_short_is_refused(fashion):
    root, _ = fashion
    file = root / "FashionMNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:1000])
    with refused("fashion_mnist cannot be read", "FashionMNIST/raw"):
        torchvision_set("fashion_mnist", root)


@pytest.fixture
def imagenet(tmp_path):
    """Two classes of ImageNet, unpacked, with the meta file that torchvision writes from the devkit."""
    classes = {"n01": ("tench", "Tinca tinca"), "n02": ("crane",), "n03": ("crane", "machine")}
    torch.save((classes, ["n01", "n02"]), tmp_path / "meta.bin")
    for split in ("train", "val"):
        for wnid, colour in (("n01", "red"), ("n02", "blue"), ("n03", "white")):
            written(tmp_path / split / wnid / f"{wnid}_1.JPEG", encoded(colour))
    return tmp_path


def test_imagenet(imagenet):
    samples = torchvision_set("imagenet", imagenet, "val")
    assert samples.keys == [f"val/n0{k}/n0{k}_1.JPEG" for k in (1, 2, 3)]
    assert samples.column().values.tolist() == [0, 1, 2]
    assert samples.column().names == ["tench", "crane", "crane, machine"]
    assert colour_at(samples.picture(1)) == (0, 0, 255)
    assert samples.tensor is None
    (imagenet / "val/n02/n02_1.JPEG").write_bytes(b"")
    with refused("picture 'val/n02/n02_1.JPEG'", "empty"):
        samples.picture(1)


def test_imagenet_without_its_files(imagenet):
    (imagenet / "meta.bin").unlink()
    with refused("imagenet cannot be read", "ILSVRC2012_devkit_t12.tar.gz", str(imagenet), "meta.bin"):
        torchvision_set("imagenet", imagenet)
    written(imagenet / "meta.bin", b"rubbish")
    with refused("imagenet cannot be read"):
        torchvision_set("imagenet", imagenet)
    with refused("imagenet cannot be downloaded", "image-net.org"):
        torchvision_set("imagenet", imagenet, download=True)


@pytest.mark.parametrize("name", SETS)
def test_absent_files_are_told_in_one_line(tmp_path, name):
    files = SETS[name].files
    with refused(f"{name} cannot be read", f"no folder {tmp_path / 'absent'}", files):
        torchvision_set(name, tmp_path / "absent")
    with refused(f"{name} cannot be read", str(tmp_path), files):
        torchvision_set(name, tmp_path)


def test_names_and_splits():
    with refused("'cifar1000'", "cifar10, cifar100, stl10", "did you mean 'cifar100'?"):
        torchvision_set("cifar1000", "data")
    with refused("cifar10 has no split 'val'", "train, test"):
        torchvision_set("cifar10", "data", "val")
    with refused("stl10 has no split 'unlabelled'", "did you mean 'unlabeled'?"):
        torchvision_set("stl10", "data", "unlabelled")
    with refused("imagenet has no split 'test'", "train, val"):
        torchvision_set("imagenet", "data", "test")


@pytest.fixture
def server(tmp_path):
    """A web server of this machine, and the folder that it serves."""
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", served
        httpd.shutdown()
        thread.join()


def test_download(cifar, server, tmp_path, monkeypatch, capfd):
    root, pixels = cifar
    address, served = server
    with tarfile.open(served / "cifar.tar.gz", "w:gz") as tar:
        tar.add(root / datasets.CIFAR10.base_folder, datasets.CIFAR10.base_folder)
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/cifar.tar.gz")
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", md5(served / "cifar.tar.gz"))
    samples = torchvision_set("cifar10", tmp_path / "new", "test", download=True)
    assert np.array_equal(samples.tensor.numpy(), pixels[datasets.CIFAR10, "test"])
    # a second time nothing is fetched
    (served / "cifar.tar.gz").unlink()
    assert len(torchvision_set("cifar10", tmp_path / "new", "train", download=True)) == 15


def test_download_that_fails_or_is_damaged(server, tmp_path, monkeypatch):
    address, served = server
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/absent.tar.gz")
    with refused("cifar10 cannot be downloaded", "404", str(tmp_path), "cifar-10-python.tar.gz"):
        torchvision_set("cifar10", tmp_path, download=True)
    monkeypatch.setattr(datasets.STL10, "url", "http://127.0.0.1:9/stl10.tar.gz")
    with refused("stl10 cannot be downloaded", "refused", "stl10_binary"):
        torchvision_set("stl10", tmp_path, download=True)
    (served / "cifar.tar.gz").write_bytes(b"half of it")
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/cifar.tar.gz")
    with refused("cifar10 cannot be downloaded"):
        torchvision_set("cifar10", tmp_path, download=True)


def test_download_of_fashion_mnist(fashion, server, tmp_path, monkeypatch, capfd):
    root, pictures = fashion
    address, served = server
    listed = []
    for name, _ in datasets.FashionMNIST.resources:
        raw = (root / "FashionMNIST/raw" / name.removesuffix(".gz")).read_bytes()
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb") as packed:
            packed.write(raw)
        listed.append((name, md5(written(served / name, buffer.getvalue()))))
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [f"{address}/"])
    monkeypatch.setattr(datasets.FashionMNIST, "resources", listed)
    samples = torchvision_set("fashion_mnist", tmp_path / "new", "test", download=True)
    assert np.array_equal(samples.tensor[:, 0].numpy(), pictures["t10k"])
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [f"{address}/no/", f"{address}/nor/here/"])
    with refused("fashion_mnist cannot be downloaded", "404"):
        torchvision_set("fashion_mnist", tmp_path / "other", download=True)
