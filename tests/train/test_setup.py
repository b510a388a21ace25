import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded
from PIL import Image

from counterpoint.train.recipe import parse_recipe
from counterpoint.train.setup import check_columns, load_graph, load_splits


def recipe(**data):
    return parse_recipe({"name": "small", "data": data, "objective": {"name": "ntxent"}})


def pictures(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (20, 20), (i, 0, 0)).save(folder / f"{i:03d}.png")


def test_a_holdout_parts_the_train_split():
    whole = load_splits(recipe(source="shapes", count=100, size=16).data).train
    parted = load_splits(recipe(source="shapes", count=100, size=16, holdout=0.2).data)
    assert len(parted.train) == 80
    assert len(parted.test) == 20
    assert not set(parted.train.keys) & set(parted.test.keys)
    assert set(parted.train.keys) | set(parted.test.keys) == set(whole.keys)


def test_the_same_samples_are_held_out_every_time():
    first = load_splits(recipe(source="shapes", count=101, size=16, holdout=0.2).data).test
    again = load_splits(recipe(source="shapes", count=101, size=16, holdout=0.2, label="colour").data).test
    assert list(first.keys) == list(again.keys)


def test_the_rows_of_one_picture_are_held_out_together(tmp_path):
    pictures(tmp_path, 12)
    rows = [(f"{i:03d}.png", f"caption {k} of {i}") for k in range(3) for i in range(12)]
    with (tmp_path / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "caption"), *rows])
    splits = load_splits(
        recipe(source="table", path=str(tmp_path / "captions.csv"), train=None, holdout=0.5).data
    )
    shown = [{key.split("#")[0] for key in part.keys} for part in (splits.train, splits.test)]
    assert (len(splits.train), len(splits.test)) == (18, 18)
    assert (len(shown[0]), len(shown[1]), shown[0] & shown[1]) == (6, 6, set())


def test_a_limit_keeps_the_test_split_whole():
    splits = load_splits(recipe(source="shapes", count=100, size=16, limit=30).data)
    assert len(splits.train) == 30
    assert len(splits.test) == 100


def test_a_holdout_that_leaves_nothing(tmp_path):
    pictures(tmp_path, 3)
    data = {"source": "folder", "path": str(tmp_path), "train": None, "holdout": 0.01}
    with pytest.raises(ValueError, match=r"holdout=0\.01 leaves one side empty: there are 3"):
        load_splits(recipe(**data).data)


def test_broken_pictures_stop_or_are_skipped_and_counted(tmp_path):
    pictures(tmp_path, 10)
    (tmp_path / "004.png").write_bytes(b"")
    data = {"source": "folder", "path": str(tmp_path), "train": None, "holdout": 0.4}
    with pytest.raises(ValueError, match=r"004\.png"):
        load_splits(recipe(**data).data)
    said = []
    splits = load_splits(recipe(**data, on_error="skip").data, said.append)
    assert len(splits.train) + len(splits.test) == 9
    assert len(said) == 1
    assert "skipped 1 broken pictures" in said[0]
    assert "004.png" in said[0]


def test_no_graph_where_none_is_asked_for():
    assert load_graph(recipe(source="shapes", count=20, size=16)) is None


def test_a_graph_covers_the_train_split():
    plain = recipe(source="shapes", count=50, size=16, limit=20).resolved()
    graph = load_graph(parse_recipe(plain | {"similarity": {"graph": "label"}}))
    assert graph is not None
    assert len(graph) == 20


def test_what_is_trained_on_is_not_in_the_test_split(tmp_path):
    pictures(tmp_path, 6)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        rows.writerows([f"{i:03d}.png", "x", "train" if i < 4 else "test"] for i in range(6))
        rows.writerow(["003.png", "x", "test"])
    table = {"source": "table", "path": str(tmp_path / "t.csv")}
    with pytest.raises(ValueError, match=r"1 of the 3 samples of data.test='test' .* such as '003.png'"):
        load_splits(recipe(**table).data)
    for half, other in (("train", "test"), ("test", "train")):
        with pytest.raises(
            ValueError, match=f"data.{half} is null, all the data, and data.{other}='{other}'"
        ):
            recipe(**table, **{half: None})
        with pytest.raises(ValueError, match=f"data.{half}: string should have at least 1 character"):
            recipe(**table, **{half: ""})
    # Row numbers are in both splits, and their pictures differ.
    for split, shift in (("train", 0), ("test", 100)):
        pq.write_table(
            pa.table({"image": [{"bytes": encoded((i + shift, 0, 0)), "path": None} for i in range(3)]}),
            tmp_path / f"{split}.parquet",
        )
    rows = load_splits(recipe(source="parquet", path=str(tmp_path)).data)
    assert list(rows.train.keys) == list(rows.test.keys)


def test_a_holdout_does_not_part_identities():
    data = {"source": "shapes", "camera": "both", "count": 40, "size": 16, "holdout": 0.2}
    for asked in ({"views": {"pair_by": "camera"}}, {"evaluate": {"matching": "camera"}}):
        made = parse_recipe({"name": "x", "data": data, "objective": "ntxent", **asked})
        with pytest.raises(ValueError, match=r"data.holdout=0.2 parts the pictures of \d+ identities"):
            check_columns(made, load_splits(made.data))
    made = parse_recipe({"name": "x", "data": data, "objective": "ntxent"})
    check_columns(made, load_splits(made.data))  # no identity is asked for


def test_a_random_limit_draws_from_all_and_a_smaller_one_is_a_part_of_a_larger():
    given = {"source": "shapes", "count": 100, "size": 16, "limit_by": "random"}
    whole = list(load_splits(recipe(source="shapes", count=100, size=16).data).train.keys)
    large = list(load_splits(recipe(**given, limit=30).data).train.keys)
    small = list(load_splits(recipe(**given, limit=10).data).train.keys)
    assert (len(large), len(small)) == (30, 10)
    assert set(small) < set(large) < set(whole)
    assert max(whole.index(key) for key in small) > 50
    assert [key for key in whole if key in set(large)] == large
