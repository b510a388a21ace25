"""Parquet in Hugging Face's layout: written here in every variant, and the real CIFAR files."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pictures import colour_at, encoded, refused
from real_data import real_data

from counterpoint.data.parquet import parquet

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 9, 9)]


def table(n=4, image="image", classes=None, **columns):
    """A table of one-colour pictures; `classes` names the labels of columns as ClassLabel features."""
    pictures = [{"bytes": encoded(COLOURS[i % 4]), "path": f"{i}.png"} for i in range(n)]
    made = pa.table({image: pictures, **columns})
    features = {image: {"_type": "Image"}}
    features |= {name: {"names": names, "_type": "ClassLabel"} for name, names in (classes or {}).items()}
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write(made, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, path, **options)
    return path


def test_labels_in_schema_order_with_names(tmp_path):
    made = table(fine=[2, 0, 1, -1], note=["a", "b", "c", "d"], coarse=[1, None, 0, 0],
                 classes={"coarse": ["p", "q"], "fine": ["x", "y", "z"]})  # fmt: skip
    write(made, tmp_path / "train-00000-of-00001.parquet")
    samples = parquet(tmp_path)
    assert samples.name == f"{tmp_path.name}/train"
    assert list(samples.labels) == ["fine", "coarse"]
    assert samples.column().values.tolist() == [2, 0, 1, -1]
    assert samples.column().names == ["x", "y", "z"]
    assert samples.column("coarse").values.tolist() == [1, -1, 0, 0]
    assert samples.captions is None
    assert samples.keys == ["0.png", "1.png", "2.png", "3.png"]
    assert [colour_at(samples.picture(i)) for i in range(4)] == COLOURS


@pytest.mark.parametrize(
    "name",
    [
        "train-00000-of-00001.parquet",
        "train.parquet",
        "train/0000.parquet",
        "data/train-0.parquet",
        "data/train/a.parquet",
    ],
)
def test_places_of_a_split(tmp_path, name):
    write(table(1), tmp_path / name)
    write(table(3), tmp_path / name.replace("train", "test"))
    assert len(parquet(tmp_path)) == 1
    assert len(parquet(tmp_path, split="test")) == 3
    with refused("no Parquet file for split 'tset'", "test, train", "did you mean 'test'?"):
        parquet(tmp_path, split="tset")


def test_one_file_and_several(tmp_path):
    first = write(table(3), tmp_path / "train-00000-of-00002.parquet")
    write(table(2), tmp_path / "train-00001-of-00002.parquet")
    assert len(parquet(first)) == 3
    both = parquet(tmp_path)
    assert both.keys == ["0", "1", "2", "3", "4"]  # names come twice, so row numbers
    assert colour_at(both.picture(4)) == COLOURS[1]
    assert len(parquet(tmp_path, split=None)) == 5


def test_a_missing_part_is_named(tmp_path):
    write(table(), tmp_path / "train-00001-of-00003.parquet")
    with refused("lacks train-00000-of-00003.parquet", "2 of 3 files missing"):
        parquet(tmp_path)


def test_captions(tmp_path):
    many = [["first", "second"], ["one"], ["a b"], ['ü, "q"\nnew']]
    write(table(text=["w", "x", "y", "z"], all=many, size=[1, 2, 3, 4]), tmp_path / "train.parquet")
    assert parquet(tmp_path, caption_column="text").captions == ["w", "x", "y", "z"]
    assert parquet(tmp_path, caption_column="all").captions == ["first", "one", "a b", 'ü, "q"\nnew']
    with refused("column 'size'", "not text", "text, all"):
        parquet(tmp_path, caption_column="size")
    with refused("no column 'txt'", "did you mean 'text'?"):
        parquet(tmp_path, caption_column="txt")


@pytest.mark.parametrize("empty", [None, " "])
def test_an_empty_caption_is_named_by_row(tmp_path, empty):
    write(table(text=["w", "x", empty, "z"]), tmp_path / "train.parquet")
    with refused("column 'text'", "no caption in row 2"):
        parquet(tmp_path, caption_column="text")


def test_label_columns_without_class_names(tmp_path):
    write(
        table(kind=["b", "a", None, "b"], number=[3, 0, -1, None], share=[0.1, 0.2, 0.3, 0.4]),
        tmp_path / "train.parquet",
    )
    assert parquet(tmp_path).labels == {}
    samples = parquet(tmp_path, label_columns=["number", "kind"])
    assert list(samples.labels) == ["number", "kind"]
    assert samples.column().values.tolist() == [3, 0, -1, -1]
    assert samples.column().names == ["0", "1", "2", "3"]
    assert samples.column("kind").values.tolist() == [1, 0, -1, 1]
    assert samples.column("kind").names == ["a", "b"]
    made = table(kind=pa.array(["b", "a", None, "b"]).dictionary_encode(), many=[["a"]] * 4)
    write(made, tmp_path / "test.parquet")
    assert parquet(tmp_path, "test", label_columns=["kind"]).column().values.tolist() == [1, 0, -1, 1]
    with refused("label column 'many'", "list"):
        parquet(tmp_path, "test", label_columns=["many"])
    with refused("label column 'share'", "double"):
        parquet(tmp_path, label_columns=["share"])
    with refused("no column 'knd'", "did you mean 'kind'?"):
        parquet(tmp_path, label_columns=["knd"])


def test_a_label_beyond_the_class_names_is_named(tmp_path):
    write(table(label=[0, 1, 2, 0], classes={"label": ["a", "b"]}), tmp_path / "train.parquet")
    with refused("column 'label'", "label 2 has no class name"):
        parquet(tmp_path)


def test_all_unlabelled_stays_unlabelled(tmp_path):
    write(table(label=[-1] * 4, classes={"label": ["a", "b"]}), tmp_path / "train.parquet")
    labels = parquet(tmp_path).column()
    assert labels.values.tolist() == [-1] * 4
    assert not labels.known.any()


@pytest.mark.parametrize(
    "metadata", [None, {"huggingface": "not json"}, {"huggingface": "[1]"}, {"huggingface": "{}"}]
)
def test_other_metadata_is_passed_over(tmp_path, metadata):
    write(table(label=[0, 1, 0, 1]).replace_schema_metadata(metadata), tmp_path / "train.parquet")
    assert parquet(tmp_path).labels == {}


def test_plain_bytes_large_bytes_and_paths(tmp_path):
    plain = pa.table({"image": pa.array([encoded(c) for c in COLOURS], pa.binary())})
    write(plain, tmp_path / "a.parquet")
    write(plain.cast(pa.schema({"image": pa.large_binary()})), tmp_path / "b.parquet")
    for name in ("a", "b"):
        samples = parquet(tmp_path / f"{name}.parquet")
        assert samples.keys == ["0", "1", "2", "3"]
        assert colour_at(samples.picture(2)) == COLOURS[2]
    (tmp_path / "beside.png").write_bytes(encoded(COLOURS[1]))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    rows = [{"bytes": None, "path": "beside.png"}, {"bytes": None, "path": "absent.png"}, None]
    samples = parquet(write(pa.table({"image": pa.array(rows, kind)}), tmp_path / "c.parquet"))
    assert colour_at(samples.picture(0)) == COLOURS[1]
    with refused("picture '1'", "no such file"):
        samples.picture(1)
    with refused("picture '2'", "neither bytes nor a path"):
        samples.picture(2)


def test_a_bad_picture_is_named(tmp_path):
    made = pa.table(
        {"image": [{"bytes": encoded(), "path": "good.png"}, {"bytes": b"<html>", "path": "bad.png"}]}
    )
    samples = parquet(write(made, tmp_path / "train.parquet"))
    assert samples.picture(0).size == (4, 4)
    with refused("picture 'bad.png'", "it is no picture"):
        samples.picture(1)


def test_the_picture_column_is_found_or_asked_for(tmp_path):
    two = table(1).append_column("mask", pa.array([encoded("blue")]))
    write(two, tmp_path / "train.parquet")
    with refused("2 picture columns (image, mask)", "image_column"):
        parquet(tmp_path)
    assert colour_at(parquet(tmp_path, image_column="mask").picture(0)) == (0, 0, 255)
    write(pa.table({"text": ["a"]}), tmp_path / "test.parquet")
    with refused("0 picture columns (none)", "text"):
        parquet(tmp_path, split="test")
    with refused("column 'text'", "string, not encoded pictures"):
        parquet(tmp_path, split="test", image_column="text")


def test_bad_folders_and_files(tmp_path):
    with refused("is not there"):
        parquet(tmp_path / "absent")
    with refused("has no .parquet files"):
        parquet(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 no more")
    with refused("cannot be read"):
        parquet(tmp_path)
    whole = write(table(), tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[: len(whole) // 2])
    with refused("cannot be read"):
        parquet(tmp_path)
    write(table(0, image="image").cast(table(1).schema), tmp_path / "train.parquet")
    with refused("has no rows in split 'train'"):
        parquet(tmp_path)


def test_files_with_other_columns_are_named(tmp_path):
    write(table(label=[0] * 4, classes={"label": ["a"]}), tmp_path / "train-00000-of-00002.parquet")
    write(table(), tmp_path / "train-00001-of-00002.parquet")
    with refused("train-00001-of-00002.parquet has columns image,", "but"):
        parquet(tmp_path)


def test_memory_limit_and_memory_mapped_copy(tmp_path):
    made = table(
        600,
        label=[i % 3 for i in range(600)],
        text=[f"n {i}" for i in range(600)],
        classes={"label": list("abc")},
    )
    file = write(made, tmp_path / "train.parquet", row_group_size=250)
    with refused("memory_limit", "cache="):
        parquet(tmp_path, memory_limit=1000)
    inside = parquet(tmp_path, caption_column="text")
    mapped = parquet(tmp_path, caption_column="text", cache=tmp_path / "cache", memory_limit=0)
    assert mapped.captions == inside.captions
    assert mapped.keys == inside.keys
    assert torch.equal(mapped.column().values, inside.column().values)
    for i in (0, 255, 256, 599):
        assert mapped.picture(i).tobytes() == inside.picture(i).tobytes()
    [copy] = (tmp_path / "cache").glob("*.arrow")
    before = copy.stat().st_mtime_ns
    parquet(tmp_path, caption_column="text", cache=tmp_path / "cache")
    assert [p.stat().st_mtime_ns for p in (tmp_path / "cache").glob("*.arrow")] == [before]
    # another file under the same name is not taken for the old one
    write(table(5), file)
    assert len(parquet(tmp_path, cache=tmp_path / "cache")) == 5


def test_memory_mapped_pictures_are_not_read_into_memory(tmp_path):
    write(table(50), tmp_path / "train.parquet")
    before = pa.total_allocated_bytes()
    samples = parquet(tmp_path, cache=tmp_path / "cache")
    assert pa.total_allocated_bytes() - before < 1000
    assert samples.picture(3).size == (4, 4)


def test_samples_can_be_pickled(tmp_path):
    write(table(), tmp_path / "train.parquet")
    again = pickle.loads(pickle.dumps(parquet(tmp_path)))
    assert colour_at(again.picture(2)) == COLOURS[2]


def test_cifar100_as_it_is():
    samples = parquet(real_data("cifar100"), split="test")
    assert len(samples) == 5000
    assert list(samples.labels) == ["fine_label", "coarse_label"]
    assert torch.bincount(samples.column().values).tolist() == [50] * 100
    assert torch.bincount(samples.column("coarse_label").values).tolist() == [250] * 20
    fine, coarse = samples.column(), samples.column("coarse_label")
    beaver = (fine.values == fine.names.index("beaver")).nonzero().flatten()
    assert {coarse.names[i] for i in coarse.values[beaver].tolist()} == {"aquatic_mammals"}
    pixels = np.stack([np.asarray(samples.picture(i)) for i in range(0, 5000, 10)]) / 255
    # the published channel means, within the error of 500 pictures
    assert np.allclose(pixels.mean((0, 1, 2)), [0.5071, 0.4867, 0.4408], atol=0.02)


def test_cifar10_as_it_is():
    samples = parquet(real_data("cifar10"))
    assert (len(samples), len(parquet(real_data("cifar10"), split="test"))) == (10_000, 2000)
    assert samples.column().names[:3] == ["airplane", "automobile", "bird"]
    assert torch.bincount(samples.column().values).tolist() == [1000] * 10
    assert len(set(samples.keys)) == 10_000
