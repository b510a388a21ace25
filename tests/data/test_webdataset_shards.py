"""Tar shards of pictures and captions: the real ones, written ones, and every kind of damage."""

import io
import json
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from pictures import colour_at, encoded, refused
from real_data import real_data

from counterpoint.data.webdataset_shards import shards

RED, BLUE = encoded("red"), encoded("blue")


def shard(path, members):
    """A tar of these members; a name may come twice, so they are pairs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            data = data.encode() if isinstance(data, str) else data
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def pair(key, data=RED, caption="a picture", ending="jpg"):
    return [(f"{key}.{ending}", data), (f"{key}.txt", caption)]


def test_layout(tmp_path):
    shard(tmp_path / "00001.tar", [*pair("b", BLUE, "ü blue\n"), *pair("x.y/a")])
    shard(
        tmp_path / "00000.tar",
        [*pair("a", ending="JPEG"), ("._a.jpg", "x"), ("a.json", "{}"), ("a.mask.png", BLUE)],
    )
    samples = shards(tmp_path)
    # WebDataset's rule: the key ends at the first dot of the file name, so a.mask.png is not a picture of a
    assert samples.keys == ["00000/a", "00001/b", "00001/x.y/a"]
    assert samples.captions == ["a picture", "ü blue", "a picture"]
    assert [colour_at(samples.picture(i)) for i in (0, 1)] == [(255, 0, 0), (0, 0, 255)]
    assert samples.name == tmp_path.name
    assert colour_at(pickle.loads(pickle.dumps(samples)).picture(1)) == (0, 0, 255)


def test_caption_from_json(tmp_path):
    one = [("a.png", RED), ("a.json", json.dumps({"caption": "from json", "captions": ["x"]}))]
    half = r'{"caption": "from json", "captions": ["from json", "half an emoji \ud83d"]}'
    both = [*pair("b", caption="from txt"), ("b.json", half)]
    samples = shards(shard(tmp_path / "0.tar", one + both))
    assert samples.captions == ["from json", "from txt"]
    assert list(samples.all_captions) == [["from json", "x"], ["from txt", "from json"]]


def test_patterns(tmp_path):
    for name in ("cc-train-0", "cc-train-1", "cc-test-0", "other"):
        shard(tmp_path / f"{name}.tar", pair(name))
    assert len(shards(tmp_path)) == 4
    assert len(shards(tmp_path / "other.tar")) == 1
    assert shards(f"{tmp_path}/cc-*.tar").keys == [
        f"{n}/{n}" for n in ("cc-test-0", "cc-train-0", "cc-train-1")
    ]
    assert len(shards(f"{tmp_path}/cc-train-{{0..1}}.tar")) == 2
    train = shards(tmp_path, split="train")
    assert (len(train), train.name) == (2, f"{tmp_path.name}/train")
    with refused("cc-train-2.tar is not there", "1 of 3"):
        shards(f"{tmp_path}/cc-train-{{0..2}}.tar")
    with refused("no shard", "split 'trian'", "did you mean 'train'?"):
        shards(tmp_path, split="trian")
    with refused("no file matches"):
        shards(tmp_path / "absent-*.tar")
    (tmp_path / "empty").mkdir()
    with refused("has no .tar files"):
        shards(tmp_path / "empty")


def test_relative_pattern_and_split_folder(tmp_path, monkeypatch):
    shard(tmp_path / "data/val/0.tar", pair("a"))
    shard(tmp_path / "data/train/0.tar", pair("b"))
    monkeypatch.chdir(tmp_path)
    assert shards("data", split="val").keys == ["0/a"]
    # two shards of one name are told apart
    assert shards("data/*/0.tar").keys == ["data/train/0/b", "data/val/0/a"]


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ([("bad.txt", "words")], "has no picture"),
        ([("bad.jpg", RED)], "has no caption"),
        ([("bad.jpg", RED), ("bad.json", '{"url": "x"}')], "has an empty caption (.json)"),
        ([("bad.jpg", RED), ("bad.json", '{"caption": null}')], "has an empty caption (.json)"),
        ([("bad.jpg", RED), ("bad.json", "{")], "has a .json that cannot be read"),
        ([("bad.jpg", RED), ("bad.json", "[]")], "has a .json that cannot be read"),
        ([("bad.jpg", RED), ("bad.txt", " \n")], "has an empty caption (.txt)"),
        ([("bad.jpg", RED), ("bad.txt", b"\xff\xfe\xfa")], "has a .txt that cannot be read"),
        ([("bad.jpg", RED), ("bad.json", r'{"caption": "dog \ud83d"}')], "is not Unicode (.json)"),
    ],
)
def test_samples_that_lack_something(tmp_path, members, fault):
    file = shard(tmp_path / "00007.tar", [*pair("good"), *members, *pair("late")])
    with refused("1 of 3 samples", "sample 'bad' of shard", "00007.tar", fault):
        shards(tmp_path)
    with pytest.warns(UserWarning, match="1 of 3 samples cannot be used"):
        samples = shards(file, on_error="skip")
    assert samples.keys == ["00007/good", "00007/late"]


def test_a_bad_picture_is_named(tmp_path):
    samples = shards(shard(tmp_path / "0.tar", [*pair("a"), *pair("b", b"<html>"), *pair("c", b"")]))
    assert samples.picture(0).size == (4, 4)
    with refused("picture '0/b'", "it is no picture"):
        samples.picture(1)
    with refused("picture '0/c'", "empty"):
        samples.picture(2)


def three(tmp_path):
    return shard(
        tmp_path / "cut.tar",
        [m for key in "abc" for m in pair(key, encoded("red", (64, 64)), f"caption {key}")],
    )


def test_a_shard_cut_anywhere_is_named(tmp_path):
    """Whatever the length that is left, the shard never passes for a whole one."""
    whole = three(tmp_path).read_bytes()
    with tarfile.open(tmp_path / "cut.tar") as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + 512  # all data blocks; the end mark follows
    assert len(shards(tmp_path / "cut.tar")) == 3
    for length in [*range(512, end, 256), end]:
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with refused("cut.tar", "ends early"):
            shards(tmp_path / "cut.tar")


def test_skip_uses_the_samples_before_the_cut(tmp_path):
    file = three(tmp_path)
    whole = file.read_bytes()
    with tarfile.open(file) as tar:
        picture = tar.getmember("c.jpg")
    file.write_bytes(whole[: picture.offset_data + 10])
    with pytest.warns(UserWarning, match="ends early"):
        samples = shards(file, on_error="skip")
    assert samples.keys == ["cut/a", "cut/b"]
    assert [samples.picture(i).size for i in (0, 1)] == [(64, 64)] * 2


def test_damage_in_the_middle_is_named(tmp_path):
    file = three(tmp_path)
    with tarfile.open(file) as tar:
        offset = tar.getmember("b.jpg").offset
    data = bytearray(file.read_bytes())
    data[offset : offset + 512] = b"\xaa" * 512
    file.write_bytes(data)
    with refused("cut.tar", "damaged"):
        shards(file)


@pytest.mark.parametrize("content", [b"", b"not a tar file at all" * 100, bytes(range(256)) * 8])
def test_files_that_are_no_tar(tmp_path, content):
    (tmp_path / "x.tar").write_bytes(content)
    with refused("x.tar"):
        shards(tmp_path)


def test_compressed_empty_and_doubled(tmp_path):
    with tarfile.open(tmp_path / "z.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with refused("z.tar", "uncompressed"):
        shards(tmp_path / "z.tar")
    with refused("has no samples"):
        shards(shard(tmp_path / "e.tar", []))
    with refused("two members 'a.jpg'"):
        shards(shard(tmp_path / "d.tar", [*pair("a"), *pair("a")]))
    with refused("on_error='no'"):
        shards(tmp_path / "d.tar", on_error="no")


def test_real_captions():
    samples = shards(real_data("captions"))
    assert len(samples) == 1004
    assert len(set(samples.keys)) == 1004
    assert samples.keys[0] == "coco-mini-00000/000000000"
    assert all(caption == caption.strip() != "" for caption in samples.captions)
    with ThreadPoolExecutor(4) as pool:
        pictures = list(pool.map(samples.picture, range(0, 1004, 50)))
    assert all(picture.mode == "RGB" and min(picture.size) <= 160 for picture in pictures)
    # the sizes written in each sample's own .json
    with tarfile.open(real_data("captions") / "flickr8k-00001.tar") as tar:
        told = json.loads(tar.extractfile("000000425.json").read())
    i = samples.keys.index("flickr8k-00001/000000425")
    assert samples.picture(i).size == (told["width"], told["height"])
    assert samples.captions[i] == told["caption"].strip()
    assert len(shards(real_data("captions"), split="flickr8k")) == 850
