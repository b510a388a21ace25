"""Identities and cameras from file names, and views drawn from several pictures of one identity."""

import contextlib
import io
import random
import re
import shlex
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from pictures import encoded, refused
from PIL import Image
from real_data import real_data

from counterpoint.cli import main
from counterpoint.data import Labels, Samples
from counterpoint.data.batches import batch_source, plain_batches
from counterpoint.data.cameras import cameras, side_by_side
from counterpoint.data.memory import in_memory
from counterpoint.data.pairs import Pairs
from counterpoint.data.shapes import shapes
from counterpoint.data.views import ViewSpec
from counterpoint.train.recipe import parse_recipe

PAGE = Path(__file__).parents[2] / "docs" / "data" / "cameras.md"
NUMBERS = r"(?P<identity>\d+)_(?P<camera>\d+)\.png"
PLAIN = ViewSpec(size=8, pair_by="camera")


def write(folder: Path, names) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(size=(8, 8)))
    return folder


def archive(file: Path, names) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in names:
            zipped.writestr(name, encoded(size=(8, 8)))
    return file


def who(samples: Samples, column: str = "identity") -> list[str]:
    labels = samples.column(column)
    return [labels.names[v] if v >= 0 else "" for v in labels.values.tolist()]


def test_cuhk03(tmp_path):
    names = ["1_001_1_01.png", "1_001_2_02.png", "1_010_1_01.png", "2_001_2_10.png"]
    samples = cameras(write(tmp_path / "images_labeled", names), layout="cuhk03")
    assert samples.keys == names
    assert who(samples) == ["1_001", "1_001", "1_010", "2_001"]  # person 1 of pair 2 is another person
    assert who(samples, "camera") == ["1", "2", "1", "2"]
    assert list(samples.labels) == ["identity", "camera"]
    assert samples.picture(2).size == (8, 8)


def test_market1501(tmp_path):
    train = ["0002_c1s1_000451_03.jpg", "0002_c3s2_000103_01.jpg", "0007_c6s4_000001_00.jpg"]
    test = ["-1_c1s1_000401_03.jpg", "0000_c2s1_000151_01.jpg", "0001_c1s1_001051_00.jpg"]
    write(tmp_path / "bounding_box_train", train)
    write(tmp_path / "bounding_box_test", test)
    samples = cameras(tmp_path, layout="market1501", split="train")
    assert who(samples) == ["0002", "0002", "0007"]
    assert who(samples, "camera") == ["1", "3", "6"]
    samples = cameras(tmp_path, layout="market1501", split="test")
    assert sorted(who(samples)) == ["", "", "0001"]
    assert samples.column().names == ["0001"]
    with refused("has no folder 'bounding_box_train'", "'train'"):
        cameras(tmp_path / "bounding_box_test", layout="market1501", split="train")


def test_omniglot_layout_in_a_folder_and_in_a_zip_file(tmp_path):
    names = [
        f"set/{a}/character0{c}/0{c}01_0{d}.png" for a in ("Greek", "Latin") for c in (1, 2) for d in (1, 2)
    ]
    write(tmp_path / "there", names)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name in names:
            archive.write(tmp_path / "there" / name, name)
        archive.writestr("set/README.md", "not a picture")
    for place in ("there", "set.zip"):
        samples = cameras(tmp_path / place, layout="omniglot")
        assert samples.keys == names
        assert who(samples)[:3] == ["Greek/character01", "Greek/character01", "Greek/character02"]
        assert who(samples, "alphabet") == ["Greek"] * 4 + ["Latin"] * 4
        assert who(samples, "camera") == ["01", "02"] * 4
        assert samples.picture(7).size == (8, 8)


def test_identities_are_dealt_out_whole(tmp_path):
    write(tmp_path, [f"1_{i:03}_{c}_01.png" for i in range(40) for c in (1, 2)])
    parts = {word: cameras(tmp_path, layout="cuhk03", split=word) for word in ("train", "val", "test")}
    found = {word: set(who(part)) for word, part in parts.items()}
    assert sum(map(len, found.values())) == 40
    assert 20 <= len(found["train"]) <= 36
    assert set.union(*found.values()) == set(who(cameras(tmp_path, layout="cuhk03")))
    assert sum(len(part) for part in parts.values()) == 80
    again = cameras(tmp_path, layout="cuhk03", split="train")
    assert again.keys == parts["train"].keys
    assert list(again.column().names) == list(parts["test"].column().names)
    assert set(who(cameras(tmp_path, layout="cuhk03", split="val", shares=(0.5, 0.5)))) - found["val"]
    # Others that come move none of them.
    write(tmp_path, [f"2_{i:03}_{c}_01.png" for i in range(300) for c in (1, 2)])
    more = {word: set(who(cameras(tmp_path, layout="cuhk03", split=word))) for word in parts}
    assert all(found[word] == {name for name in more[word] if name.startswith("1_")} for word in parts)
    assert len(more["train"]) / 340 == pytest.approx(0.7, abs=0.07)
    assert len(more["val"]) / 340 == pytest.approx(0.15, abs=0.06)
    with refused("shares=(1.0, 0.0) leave no identity of 340 for split 'test'"):
        cameras(tmp_path, layout="cuhk03", split="test", shares=(1.0, 0.0))
    for wrong in ((0.9, 0.2), "ab", None, 0.7, ("0.5", "0.1"), (0.5,), (float("nan"), 0.1), (True, False)):
        with refused("shares must be two numbers", f"got {wrong!r}"):
            cameras(tmp_path, layout="cuhk03", shares=wrong)


def test_where_a_split_is_a_folder_none_is_dealt_out(tmp_path):
    write(tmp_path / "one", [f"train/{i}_{c}.png" for i in range(9) for c in (1, 2)])
    assert len(cameras(tmp_path / "one", pattern=NUMBERS, split="train")) == 18
    with refused("has no folder 'test' for split 'test'; it has train, and where splits are folders none is"):
        cameras(tmp_path / "one", pattern=NUMBERS, split="test")
    write(tmp_path / "two", ["train/1_1.png", "train/1_2.png", "test/2_1.png", "test/2_2.png"])
    with refused("has no folder 'val' for split 'val'; it has train, test"):
        cameras(tmp_path / "two", pattern=NUMBERS, split="val")
    write(tmp_path / "market", ["bounding_box_train/0002_c1s1_000451_03.jpg"])
    for split in ("val", "test"):
        with refused(f"for split '{split}'; it has bounding_box_train"):
            cameras(tmp_path / "market", layout="market1501", split=split)
    write(tmp_path / "apart", ["1_1.png"])
    for split in ("..", str(tmp_path / "apart"), "../apart"):
        with refused("has no folder"):
            cameras(tmp_path / "one", pattern=NUMBERS, split=split)
    for split in (5, "", ["train"]):
        with refused("split must be the name of a folder or one of train, val, test", f"got {split!r}"):
            cameras(tmp_path / "one", pattern=NUMBERS, split=split)


@pytest.mark.parametrize("top", ["", "Market/", "a/b/"])
def test_splits_are_folders_in_a_zip_file_too(tmp_path, top):
    names = [
        f"{top}bounding_box_{s}/{i + k:04}_c{c}s1_000001_01.jpg"
        for k, s in ((1, "train"), (500, "test"))
        for i in range(5)
        for c in (1, 2)
    ]
    file = archive(tmp_path / "set.zip", names)
    train, test = (cameras(file, layout="market1501", split=split) for split in ("train", "test"))
    assert train.keys == sorted(names[:10])
    assert test.keys == sorted(names[10:])
    assert (train.name, train.picture(9).size) == (f"set/{top}bounding_box_train", (8, 8))
    with refused("has no folder 'val' for split 'val'"):
        cameras(file, layout="market1501", split="val")


def test_damaged_zip_files(tmp_path):
    """Whatever is wrong with it, the file is named; no other kind of error comes out."""
    whole = archive(tmp_path / "whole.zip", [f"{i}_{c}.png" for i in range(4) for c in (1, 2)]).read_bytes()
    drawn, found = random.Random(0), 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(drawn.randint(1, 3)):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        (tmp_path / "damaged.zip").write_bytes(data)
        try:
            cameras(tmp_path / "damaged.zip", pattern=NUMBERS)
        except ValueError as error:
            found += "damaged.zip is not a whole zip file that can be read: " in str(error)
    assert found > 75
    encrypted = bytearray(whole)
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(signature) + flags] |= 1
    (tmp_path / "encrypted.zip").write_bytes(encrypted)
    with refused("encrypted.zip is not a whole zip file that can be read", "is encrypted"):
        cameras(tmp_path / "encrypted.zip", pattern=NUMBERS)


def test_any_regular_expression_fits_the_end_of_a_path(tmp_path):
    write(tmp_path, ["x/1_A.png", "x/2_b.png", "y/3_B.png"])
    samples = cameras(tmp_path, pattern=r"(?i)(?P<identity>\d)_(?P<camera>a|b)\.png")
    assert who(samples, "camera") == ["A", "b", "B"]
    samples = cameras(tmp_path, pattern=r"(?P<identity>1)_(?P<camera>A)\.png|\d_[bB]\.png")
    assert who(samples) == ["1", "", ""]


def test_names_that_do_not_fit(tmp_path):
    write(tmp_path, ["1_001_1_01.png", "1_001_2_01.png", "cover.png"])
    with refused("1 of 3 samples cannot be used", "the name 'cover.png' does not fit cuhk03", "skip"):
        cameras(tmp_path, layout="cuhk03")
    with pytest.warns(UserWarning, match="1 of 3 samples cannot be used"):
        samples = cameras(tmp_path, layout="cuhk03", on_error="skip")
    assert samples.keys == ["1_001_1_01.png", "1_001_2_01.png"]


def test_bad_arguments(tmp_path):
    write(tmp_path, ["1_001_1_01.png"])
    (tmp_path / "not.zip").write_bytes(b"hello")
    for options, parts in [
        ({}, ("give a layout, one of cuhk03, market1501, omniglot, or a pattern, not neither",)),
        ({"layout": "cuhk03", "pattern": "x"}, ("not both",)),
        ({"layout": "cuhk3"}, ("unknown layout 'cuhk3'", "cuhk03")),
        ({"pattern": "(?P<identity>x"}, ("is not a regular expression",)),
        ({"pattern": "(?P<identity>x)"}, ("has no group (?P<camera>...)",)),
        ({"layout": ["cuhk03"]}, ("layout must be one of cuhk03", "got ['cuhk03']")),
        ({"pattern": 5}, ("pattern 5 has no group",)),
        ({"layout": "cuhk03", "split": "gallery"}, ("has no folder 'gallery'", "train, val, test")),
        ({"layout": "cuhk03", "on_error": "ignore"}, ("on_error='ignore'",)),
    ]:
        with refused(*parts):
            cameras(tmp_path, **options)
    with refused("is not a whole zip file"):
        cameras(tmp_path / "not.zip", layout="cuhk03")
    with refused("path must be the path of a file or a folder, got None"):
        cameras(None, layout="cuhk03")
    with refused("is not there"):
        cameras(tmp_path / "absent.zip", layout="cuhk03")


def test_both_cameras_of_shapes():
    both = shapes("test", count=5, size=16, camera="both")
    apart = [shapes("test", count=5, size=16, camera=c) for c in (0, 1)]
    assert both.keys == [*apart[0].keys, *apart[1].keys]
    assert torch.equal(both.tensor, torch.cat([one.tensor for one in apart]))
    assert both.captions == apart[0].captions * 2
    assert [*both.labels] == [*apart[0].labels, "camera"]
    assert who(both, "camera") == ["0"] * 5 + ["1"] * 5
    assert who(both) == who(apart[0]) * 2
    assert both.picture(7).tobytes() == apart[1].picture(2).tobytes()


def test_side_by_side_keeps_what_all_have():
    one = Samples(
        "one", ["a"], lambda i: Image.new("RGB", (1, 1)), {"x": Labels(torch.tensor([0]), ["u"])}, ["t"]
    )
    other = Samples(
        "other", ["b"], lambda i: Image.new("RGB", (2, 1)), {"x": Labels(torch.tensor([0]), ["v"])}
    )
    both = side_by_side({"left": one, "right": other})
    assert (both.keys, list(both.labels), both.captions, both.tensor) == (["a", "b"], ["camera"], None, None)
    assert both.picture(1).size == (2, 1)
    with refused("two cameras of left, right have a sample with the same key"):
        side_by_side({"left": one, "right": one})
    with refused("at least one camera"):
        side_by_side({})
    for wrong, got in (([one], "list"), ({0: one}, "the name 0")):
        with refused("side_by_side needs samples by the name of their camera", f"got {got}"):
            side_by_side(wrong)


def labelled(identity, camera, side=8) -> Samples:
    """Picture i has the grey value i."""
    n = len(identity)
    tensor = torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 3, side, side).contiguous()
    columns = {"identity": identity, "camera": camera}
    return Samples(
        "made",
        [str(i) for i in range(n)],
        lambda i: Image.new("RGB", (side, side), (i, i, i)),
        {name: Labels(torch.tensor(v), [str(k) for k in range(max(v) + 1)]) for name, v in columns.items()},
        tensor=tensor,
    )


MANY = labelled(
    identity=[3, 0, 0, 1, 1, 1, 3, 2, 2, -1, 3, 0, 1],
    camera=[0, 0, 1, 2, 0, 2, 1, 1, 1, 0, 2, 1, -1],
)  # 2 is seen by camera 1 only; one picture is of no one, one by no camera


@pytest.mark.filterwarnings("ignore:data 'made'")
def test_views_are_of_one_identity_by_different_cameras():
    pairs = Pairs(MANY, "camera")
    assert (len(pairs), pairs.left_out, pairs.unknown) == (3, 1, 2)
    who, camera = MANY.column("identity").values, MANY.column("camera").values
    seen = [set() for _ in range(3)]
    for epoch in range(60):
        drawn = pairs.draw(3, torch.Generator().manual_seed(epoch))
        assert who[drawn[0]].tolist() == [0, 1, 3]
        assert all(torch.equal(who[row], who[drawn[0]]) for row in drawn)
        assert (camera[drawn[0]] != camera[drawn[1]]).all()
        assert set(camera[drawn[:, 2]].tolist()) == {0, 1, 2}  # three cameras: none comes twice
        for row, found in zip(drawn.T.tolist(), seen, strict=True):
            found.update((k, place) for k, place in enumerate(row[:2]))
    # Every picture comes up in either view.
    expected = [{1, 2, 11}, {3, 4, 5}, {0, 6, 10}]
    assert seen == [{(k, place) for k in (0, 1) for place in places} for places in expected]


def test_what_is_left_out_is_said():
    with pytest.warns(
        UserWarning, match="1 of 4 identities have one camera only, 2 pictures have no identity"
    ):
        Pairs(MANY, "camera")
    with refused(
        "no identity with two different values of 'camera' to pair: 2 of 2 identities have one camera"
    ):
        Pairs(labelled([0, 0, 1], [0, 0, 1]), "camera")
    with refused("has no label column 'drawer'; it has identity, camera"):
        Pairs(MANY, "drawer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Pairs(labelled([0, 0], [0, 1]), "camera")


def grey(view: torch.Tensor) -> list[int]:
    return (view[:, 0, 0, 0] * 255).round().int().tolist()


@pytest.mark.filterwarnings("ignore:data 'made'")
@pytest.mark.parametrize("kind", ["memory", "files", "workers"])
def test_batches_show_the_pictures_that_were_drawn(kind: str):
    samples = MANY if kind == "memory" else Samples(MANY.name, MANY.keys, MANY.picture, MANY.labels)
    source = batch_source(
        samples, PLAIN, batch_size=2, seed=3, workers=2 if kind == "workers" else 0, drop_last=False
    )
    assert source.steps_per_epoch == 2
    assert source.pairs.left_out == 1
    who, camera = MANY.column("identity").values, MANY.column("camera").values
    whole = [list(source.epoch(epoch)) for epoch in (0, 1)]
    for batches in whole:
        assert sorted(who[torch.cat([b.ids for b in batches])].tolist()) == [0, 1, 3]
        for batch in batches:
            first, second = (torch.tensor(grey(view)) for view in batch.views)
            assert torch.equal(first, batch.ids)
            assert torch.equal(who[first], who[second])
            assert (camera[first] != camera[second]).all()
    shown = [[grey(view) for b in batches for view in b.views] for batches in whole]
    assert shown[0] != shown[1]
    again = list(source.epoch(1, start=1))
    assert [grey(view) for b in again for view in b.views] == shown[1][2:]


def test_memory_and_files_draw_the_same_pictures_and_seeds_differ():
    samples = shapes("train", count=30, size=16, camera="both")
    on_disk = Samples(samples.name, samples.keys, samples.picture, samples.labels)
    spec = ViewSpec(size=16, pair_by="camera")
    one, other, third = (
        torch.cat([b.ids for b in batch_source(s, spec, 10, seed=seed, workers=0).epoch(2)])
        for s, seed in ((samples, 0), (on_disk, 0), (samples, 1))
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
    later = torch.cat([b.ids for b in batch_source(samples, spec, 10).epoch(3)])
    assert set(one.tolist()) != set(later.tolist())  # other pictures, not only another order


def test_random_views_are_bit_equal_on_resuming():
    samples = shapes("train", count=12, size=16, camera="both")
    spec = ViewSpec(size=16, crop_scale=(0.2, 1.0), flip=0.5, pair_by="camera", count=3)
    for given in (samples, Samples(samples.name, samples.keys, samples.picture, samples.labels)):
        whole = list(batch_source(given, spec, 4, workers=0).epoch(5))
        rest = list(batch_source(given, spec, 4, workers=0).epoch(5, start=1))
        assert len(whole) == 3
        for a, b in zip(whole[1:], rest, strict=True):
            assert torch.equal(a.ids, b.ids)
            assert all(map(torch.equal, a.views, b.views))


@pytest.mark.filterwarnings("ignore:data 'made'")
def test_too_few_identities_and_bad_pictures():
    with refused("data 'made' has 3 identities to pair, less than one batch of 4"):
        batch_source(MANY, PLAIN, batch_size=4)
    with refused("plain_batches shows each picture once", "pair_by=camera", "spec.plain()"):
        plain_batches(MANY, ViewSpec(size=8, count=1, pair_by="camera"))
    assert PLAIN.plain().pair_by is None

    def picture(i: int) -> Image.Image:
        if i == 2:
            raise ValueError("cut short")
        return Image.new("RGB", (8, 8))

    samples = labelled([0, 0, 1, 1], [0, 1, 0, 1])
    broken = Samples("made", samples.keys, picture, samples.labels)
    with refused("picture '2' cannot be read: cut short"):
        list(batch_source(broken, PLAIN, 2, workers=0).epoch(0))
    source = batch_source(broken, PLAIN, 2, workers=0, on_error="skip")
    assert [b.ids.tolist() for b in source.epoch(0)] in ([[0]], [[1]])
    assert source.skipped == ["2"]


def test_real_omniglot():
    file = real_data("omniglot") / "images_background_small1.zip"
    train, test = (cameras(file, layout="omniglot", split=word) for word in ("train", "test"))
    assert (len(train), len(test)) == (94 * 20, 21 * 20)
    assert len(cameras(file, layout="omniglot").column().names) == 136
    assert len(train.column("alphabet").names) <= 5
    pairs = Pairs(train, "camera")
    assert (len(pairs), pairs.left_out, pairs.unknown) == (94, 0, 0)
    kept, left_out = in_memory(test, largest=105)
    assert left_out == []
    assert kept.tensor.shape == (420, 3, 105, 105)
    batch = next(batch_source(train, ViewSpec(size=28, pair_by="camera"), 16, workers=0).epoch(0))
    assert batch.views[1].shape == (16, 3, 28, 28)


def test_the_page():
    text = PAGE.read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    assert parse_recipe(yaml.safe_load(recipe)).views.spec.pair_by == "camera"
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {})
    assert printed.getvalue() == "4 torch.Size([16, 3, 32, 32])\n"
    for source in re.findall(r"`(\{source: .*?\})`", text):
        data = yaml.safe_load(source.replace("\\|", "|"))
        parse_recipe({"name": "x", "data": data, "objective": "infonce"})


def test_the_recipe_of_the_page_runs(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, flags=re.S)
    monkeypatch.chdir(tmp_path)
    Path("two-cameras.yaml").write_text(recipe, encoding="utf-8")
    small = ["data.count=32", "views.size=16", "model.head=[8]", "train.batch_size=16", "train.epochs=1"]
    for line in commands.splitlines():
        words = shlex.split(line)
        monkeypatch.setattr(sys, "argv", words + small * (words[1] == "train"))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, capsys.readouterr().err
    printed = capsys.readouterr().out
    for words in ("recall@1, a to b", "mAP, b to a", "assignment, one to one"):
        assert words in printed
    page = Path("runs/two-cameras/report.html").read_text(encoding="utf-8")
    assert "<h2>Matching of identities</h2>" in page
    assert "number of neighbours" not in page
