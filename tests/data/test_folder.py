"""Pictures in folders: class folders, flat ones, splits, Tiny ImageNet, and layouts that are refused."""

import json
import os
import pickle
import tarfile

from pictures import colour_at, encoded, refused
from real_data import real_data

from counterpoint.data.folder import folder


def lay(root, *paths, colour="red"):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(encoded(colour))
    return root


def test_class_folders(tmp_path):
    lay(tmp_path, "dog/2.png", "cat/b/1.JPG", "cat/a.webp", "ant/1.png")
    lay(tmp_path, "cat/a.webp", colour="blue")
    samples = folder(tmp_path)
    assert samples.keys == ["ant/1.png", "cat/a.webp", "cat/b/1.JPG", "dog/2.png"]
    assert samples.column().names == ["ant", "cat", "dog"]
    assert samples.column().values.tolist() == [0, 1, 1, 2]
    assert samples.name == tmp_path.name
    assert colour_at(samples.picture(1)) == (0, 0, 255)
    assert colour_at(pickle.loads(pickle.dumps(samples)).picture(1)) == (0, 0, 255)


def test_flat_and_nested_without_labels(tmp_path):
    lay(tmp_path / "flat", "b.png", "a.jpg", "10.png")
    samples = folder(tmp_path / "flat")
    assert samples.keys == ["10.png", "a.jpg", "b.png"]
    assert samples.labels == {}
    lay(tmp_path / "nested", "2021/may/a.png", "2022/b.png", "c.png")
    assert folder(tmp_path / "nested", labelled=False).keys == ["2021/may/a.png", "2022/b.png", "c.png"]
    lay(tmp_path / "one", "images/a.png", "images/x/b.png")
    assert folder(tmp_path / "one").labels == {}
    assert folder(tmp_path / "one", labelled=True).column().names == ["images"]


def test_mixed_layout_is_refused(tmp_path):
    lay(tmp_path, "loose.png", "cat/1.png")
    with refused("'loose.png'", "'cat'", "labelled=False"):
        folder(tmp_path)
    with refused("'loose.png'", "no folders"):
        folder(lay(tmp_path / "flat", "loose.png"), labelled=True)


def test_other_files_are_passed_over(tmp_path):
    lay(
        tmp_path,
        "cat/1.png",
        "cat/.hidden.png",
        ".cache/1.png",
        "cat/notes.txt",
        "dog/1.png",
        "cat/Thumbs.db",
        "x/._1.png",
    )
    (tmp_path / "empty").mkdir()
    samples = folder(tmp_path)
    assert samples.keys == ["cat/1.png", "dog/1.png"]
    assert samples.column().names == ["cat", "dog"]


def test_split(tmp_path):
    lay(tmp_path, "train/cat/1.png", "train/dog/1.png", "train/owl/1.png", "val/dog/7.png", "val/owl/8.png")
    samples = folder(tmp_path, split="val")
    assert samples.name == f"{tmp_path.name}/val"
    assert samples.keys == ["val/dog/7.png", "val/owl/8.png"]
    # the class that val lacks keeps its number
    assert samples.column().names == folder(tmp_path, split="train").column().names == ["cat", "dog", "owl"]
    assert samples.column().values.tolist() == [1, 2]
    with refused("no folder 'vla'", "train, val", "did you mean 'val'?"):
        folder(tmp_path, split="vla")
    with refused("has the splits train, val", "split="):
        folder(tmp_path)
    assert len(folder(tmp_path, labelled=False)) == 5


def test_a_folder_beside_the_splits_adds_no_class(tmp_path):
    lay(
        tmp_path,
        "train/cat/1.png",
        "train/dog/1.png",
        "documents/figures/1.png",
        "val/dog/1.png",
        "val/empty/x.txt",
    )
    assert folder(tmp_path, split="train").column().names == ["cat", "dog"]


def test_one_class_left_in_a_split_keeps_its_label(tmp_path):
    lay(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/dog/1.png")
    assert folder(tmp_path, split="val").column().values.tolist() == [1]


def test_links_are_followed_but_not_in_circles(tmp_path):
    lay(tmp_path / "store", "cat/1.png", "dog/1.png")
    (tmp_path / "subset").mkdir()
    for name in ("cat", "dog"):
        os.symlink(tmp_path / "store" / name, tmp_path / "subset" / name)
    assert folder(tmp_path / "subset").keys == ["cat/1.png", "dog/1.png"]
    os.symlink(tmp_path / "store", tmp_path / "store" / "cat" / "again")
    assert folder(tmp_path / "store").keys == ["cat/1.png", "dog/1.png"]


def test_bad_folders(tmp_path):
    with refused("is not there"):
        folder(tmp_path / "absent")
    with refused("has no pictures", ".jpg"):
        folder(tmp_path)
    with refused("is a file, not a folder"):
        folder(lay(tmp_path, "a.png") / "a.png")


def test_a_bad_picture_is_named_by_its_path(tmp_path):
    lay(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "dog/1.png").write_bytes(b"")
    samples = folder(tmp_path)
    with refused("picture 'dog/1.png'", "empty"):
        samples.picture(1)


def test_readable_names(tmp_path):
    lay(tmp_path / "data", "n01/1.png", "n02/1.png")
    names = tmp_path / "names.json"
    for given in (
        {"0": ["n01", "tench"], "1": ["n02", "great_white_shark"]},
        {"n01": "tench", "n02": "great white shark"},
    ):
        names.write_text(json.dumps(given))
        assert folder(tmp_path / "data", names=names).column().names == ["tench", "great white shark"]
    names.write_text('{"n01": "tench"}')
    with refused("no name for the class 'n02'", "1 of 2 classes"):
        folder(tmp_path / "data", names=names)
    for text, part in [
        ("{", "is not JSON"),
        ("[]", "one JSON object, got list"),
        ('{"0": [1, 2]}', "'0' must have a name"),
    ]:
        names.write_text(text)
        with refused("names.json", part):
            folder(tmp_path / "data", names=names)
    with refused("is not there"):
        folder(tmp_path / "data", names=tmp_path / "absent.json")


def tiny(root):
    lay(root, "train/n02/images/n02_0.JPEG", "train/n01/images/n01_0.JPEG", "train/n03/images/n03_0.JPEG")
    lay(root, "val/images/val_0.JPEG", "val/images/val_1.JPEG", "test/images/test_0.JPEG")
    (root / "wnids.txt").write_text("n02\nn01\nn03\n")
    (root / "words.txt").write_text(
        "n01\tcrane, bird\nn02\tgoldfish, Carassius auratus\nn03\tcrane, machine\nn9\tzebra\n"
    )
    (root / "val/val_annotations.txt").write_text(
        "val_1.JPEG\tn03\t0\t0\t1\t1\nval_0.JPEG\tn02\t0\t0\t1\t1\n"
    )
    return root


def test_tiny_imagenet_layout(tmp_path):
    train, val, test = (folder(tiny(tmp_path), split=split) for split in ("train", "val", "test"))
    assert list(train.column().ids) == ["n01", "n02", "n03"]
    assert list(val.subset([0]).column().ids) == ["n01", "n02", "n03"]
    assert train.column().names == ["crane, bird", "goldfish", "crane, machine"]
    assert train.keys[0] == "train/n01/images/n01_0.JPEG"
    assert train.column().values.tolist() == [0, 1, 2]
    assert val.keys == ["val/images/val_0.JPEG", "val/images/val_1.JPEG"]
    assert val.column().values.tolist() == [1, 2]
    assert test.column().values.tolist() == [-1]
    assert test.column().names == train.column().names
    assert folder(tmp_path, split="val", labelled=False).labels == {}


def test_tiny_imagenet_that_is_damaged(tmp_path):
    with refused("Tiny ImageNet", "split="):
        folder(tiny(tmp_path))
    notes = tmp_path / "val/val_annotations.txt"
    notes.write_text("val_0.JPEG\tn02\nval_7.JPEG\tn02\n")
    with refused("names 'val_7.JPEG', which is not there", "1 of 2"):
        folder(tmp_path, split="val")
    notes.write_text("val_0.JPEG n02\n")
    with refused("line 1", "'val_0.JPEG n02'"):
        folder(tmp_path, split="val")
    # a picture without annotation is unlabelled
    notes.write_text("val_0.JPEG\tn02\t0\n")
    assert folder(tmp_path, split="val").column().values.tolist() == [1, -1]
    lay(tmp_path, "train/n07/images/1.JPEG")
    with refused("'n07' is not in wnids.txt"):
        folder(tmp_path, split="train")
    (tmp_path / "words.txt").write_text("n01\ta\n")
    with refused("words.txt has no words for 'n02'", "2 of 3"):
        folder(tmp_path, split="val")


def unpacked(name, tmp_path, wanted=lambda member: True):
    for file in sorted(real_data(name).glob("*.tar")):
        with tarfile.open(file) as tar:
            tar.extractall(tmp_path, [m for m in tar if wanted(m.name)], filter="data")
    return tmp_path


def test_real_clothing(tmp_path):
    root = unpacked("clothing-small", tmp_path) / "clothing-small"
    train, validation = folder(root, split="train"), folder(root, split="validation")
    assert (len(train), len(validation)) == (1536, 341)
    assert train.column().names == validation.column().names
    assert " ".join(train.column().names) == (
        "dress hat longsleeve outwear pants shirt shoes shorts skirt t-shirt"
    )
    assert min(train.picture(100).size) == 96


def test_real_imagenet_sample_with_class_index(tmp_path):
    root = unpacked("imagenet-sample", tmp_path) / "imagenet-sample"
    samples = folder(root, names=real_data("imagenet-sample") / "imagenet_class_index.json")
    assert samples.column().values.tolist() == list(range(1000))
    # the file names carry the class too
    inside = [
        key.split("/")[1].removesuffix(".JPEG").split("_", 1)[1].replace("_", " ").lower()
        for key in samples.keys
    ]
    agree = sum(a == b.lower() for a, b in zip(inside, samples.column().names, strict=True))
    assert agree > 900, agree


def test_real_tiny_imagenet(tmp_path):
    def wanted(name):  # of the training pictures, those with a number from 0 to 99
        return "/images/n" not in name or len(name.split("_")[1]) <= len("99.JPEG")

    root = unpacked("tiny-imagenet-200", tmp_path, wanted) / "tiny-imagenet-200"
    train, val = folder(root, split="train"), folder(root, split="val")
    assert 1500 < len(train) < 1700
    assert all(train.column().values.bincount(minlength=200) > 0)
    assert val.column().values.bincount().tolist() == [10] * 200
    assert train.column().names == val.column().names
    assert train.column().names[0] == "goldfish"
    assert all(train.picture(i).mode == "RGB" for i in range(0, len(train), 20))
