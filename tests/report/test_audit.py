import csv

import pyarrow.parquet as pq
import torch
from feature_sets import clusters, split
from pictures import refused
from PIL import Image

from counterpoint.report.audit import SHOWN, write_audit


def planted(n=200):
    h, y = clusters(n, 12, 5, 0.6, seed=2)
    h = torch.cat([h, h[:8]])
    y = torch.cat([y, y[:8]])
    y[3] = (y[3] + 1) % 5
    return split(h, y)


def shade(key):
    number = int(key.split("/")[1]) % 200
    return Image.new("RGB", (24, 24), (number, 255 - number, 40))


def test_tables_and_page_are_written_and_the_page_holds_the_pictures(tmp_path):
    audit = write_audit(planted(), tmp_path / "new", shade, count=100)
    assert [file.name for file in audit.files] == ["pairs.parquet", "labels.parquet", "audit.html"]
    pairs = pq.read_table(audit.files[0])
    assert pairs.column_names == [
        "a", "b", "score", "cosine", "alpha_ab", "alpha_ba", "label_a", "label_b", "kind",
    ]  # fmt: skip
    assert pairs["kind"].to_pylist()[:8] == ["identical"] * 8
    assert {tuple(row.values()) for row in pairs.select(["a", "b"]).to_pylist()[:8]} == {
        (f"made/{i}", f"made/{200 + i}") for i in range(8)
    }
    assert "made/3" in pq.read_table(audit.files[1])["key"].to_pylist()[:3]
    page = audit.files[2].read_text(encoding="utf-8")
    assert page.count('<figure class="card">') == 2 * SHOWN
    assert page.count('src="data:image/') == 5 * SHOWN
    assert 'alt="made/207"' in page
    assert "http" not in page.split("<body>")[1]
    assert "8 identical" in page


def test_csv_without_labels_or_pictures(tmp_path):
    features = planted()
    bare = type(features)(features.h, features.keys, {}, "<b>bare</b>")
    audit = write_audit(bare, tmp_path, table="csv", count=10)
    with (tmp_path / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert list(rows[0]) == ["a", "b", "score", "cosine", "alpha_ab", "alpha_ba", "kind"]
    assert [row["kind"] for row in rows] == ["identical"] * 8 + ["unlabelled"] * 2
    assert [file.name for file in audit.files] == ["pairs.csv", "audit.html"]
    page = audit.files[1].read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;b&gt;bare" in page
    assert "made/207" in page


def test_two_runs_write_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_audit(planted(), tmp_path / name, shade, table="csv")
    for file in ("pairs.csv", "labels.csv", "audit.html"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_picture_that_cannot_be_read_is_told(tmp_path):
    def broken(key):
        if key == "made/207":
            raise ValueError("picture 'made/207' cannot be read: gone")
        return shade(key)

    page = write_audit(planted(), tmp_path, broken).files[-1].read_text(encoding="utf-8")
    assert "1 pictures cannot be shown" in page
    assert "gone" in page
    assert 'alt="made/206"' in page


def test_files_that_are_there_are_kept(tmp_path):
    (tmp_path / "labels.csv").write_text("mine")
    with refused("labels.csv", "--overwrite"):
        write_audit(planted(), tmp_path, table="csv")
    assert [file.name for file in tmp_path.iterdir()] == ["labels.csv"]
    write_audit(planted(), tmp_path, table="csv", overwrite=True)
    assert (tmp_path / "labels.csv").read_text() != "mine"
    with refused("table", "xlsx"):
        write_audit(planted(), tmp_path, table="xlsx")


def test_small_sets_take_fewer_candidates(tmp_path):
    h, y = clusters(6, 4, 2, 0.5, seed=1)
    audit = write_audit(split(h, y), tmp_path)
    assert len(audit.pairs) > 0
    with refused("candidates", "5", "6"):
        write_audit(split(h, y), tmp_path / "more", candidates=6)
    with refused("at least two", "got 1"):
        write_audit(split(h[:1], [0], 2), tmp_path / "one")


def test_a_folder_in_the_place_of_the_page_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "audit.html").mkdir()
    with refused("audit.html", "is a folder", "--out"):
        write_audit(planted(), tmp_path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["audit.html"]


def test_a_stale_table_of_labels_goes_only_with_overwrite_and_no_labels(tmp_path):
    features = planted()
    bare = type(features)(features.h, features.keys)
    (tmp_path / "labels.csv").write_text("mine")
    write_audit(bare, tmp_path, table="csv")
    assert (tmp_path / "labels.csv").read_text() == "mine"
    audit = write_audit(bare, tmp_path, table="csv", overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit.html", "pairs.csv"]
    assert audit.lines[1] == "no labels are listed: there are no labels"


def test_both_lists_are_parted_at_half_and_what_is_above_is_counted(tmp_path):
    audit = write_audit(planted(), tmp_path, count=50)
    assert audit.doubts is not None
    assert 0 < audit.doubts.nearer < 20
    said = f"column 'kind': {audit.doubts.nearer} of 208 labels score above 0.5, 50 listed"
    assert audit.lines == ("208 samples, 50 pairs listed", said)
    page = audit.files[-1].read_text(encoding="utf-8")
    labels = page.split('<section id="labels">')[1]
    assert said in page.replace("&#39;", "'")
    assert f"other classes lie nearer ({audit.doubts.nearer} shown)" in labels
    above, below = labels.split("Score 0.5 or less")
    assert above.count('<figure class="card">') == audit.doubts.nearer
    assert below.count('<figure class="card">') == 50 - audit.doubts.nearer
    pairs = page.split('<section id="labels">')[0]
    high = int(((audit.pairs.score > 0.5) & (audit.pairs.kind > 0)).sum())
    assert "Identical to the encoder (8 shown)" in pairs
    assert pairs.split("Score above 0.5")[1].split("Score 0.5 or less")[0].count("<figure") == high
    weight = write_audit(planted(), tmp_path / "weight", count=50, by="weight").files[-1].read_text()
    assert "0.5" not in weight.split('<section id="pairs">')[1].split("<figure")[0]


def test_features_that_do_not_read_the_labels_are_told(tmp_path):
    h, _ = clusters(200, 12, 5, 0.6, seed=2)
    # Every neighbour in a cluster has another label than the sample itself.
    audit = write_audit(split(h.repeat_interleave(2, 0), [0, 1] * 200), tmp_path)
    assert "do not read column 'kind'" in audit.lines[2]
    assert "list of labels is worthless" in audit.files[-1].read_text(encoding="utf-8")
