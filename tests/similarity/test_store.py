"""A store opened: its graph is the slow one's, and what is damaged or does not match is said."""

import contextlib
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import refused
from PIL import Image
from store_encoders import Hashed

from counterpoint import cli_similarity
from counterpoint.data.samples import Labels, Samples
from counterpoint.similarity import (
    EmbeddingGraph,
    EmbeddingStore,
    Similarity,
    build_store,
    write_store,
)
from counterpoint.similarity import store_files as files

N = 200
KEYS = [f"folder/{i:03}.png" for i in range(N)]
TEXTS = [f"caption {i % 150} of many" for i in range(N)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "store"
    return build_store(folder, KEYS, TEXTS, encoder=Hashed(), data="many", chunk_rows=32)


@pytest.fixture
def copy(made, tmp_path):
    """A store of one's own to damage."""
    shutil.copytree(made.path, tmp_path / "copy")
    return tmp_path / "copy"


def slow_vectors(texts):
    """As they are stored: unit, then fp16, each by itself."""
    rows = []
    for text in texts:
        z = Hashed()([text])[0].double()
        rows.append((z / z.norm()).half())
    return torch.stack(rows)


def test_a_batch_is_the_slow_twins(made):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(N, (64,), generator=g)
    z = slow_vectors(TEXTS).double()
    z = z / z.norm(dim=1, keepdim=True)
    want = (z @ z.T)[ids][:, ids]
    got = made.graph().batch(ids)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), want, atol=1e-6)
    equal = torch.tensor([[TEXTS[a] == TEXTS[b] for b in ids.tolist()] for a in ids.tolist()])
    assert (got[equal] == 1).all()
    assert (got[~equal] < 0.9999).all()
    assert torch.equal(got, got.T)
    rows, columns = ids[:5], ids[5:12]
    assert torch.allclose(made.graph().between(rows, columns), got[:5, 5:12], atol=1e-6)


def test_tiles_are_parts_of_the_batch(made):
    ids = torch.randint(N, (40,), generator=torch.Generator().manual_seed(1))
    tiles, whole = made.graph().tiles(ids), made.graph().batch(ids)
    for rows, columns in ((slice(0, 15), slice(10, 40)), (slice(7, 9), slice(7, 9))):
        assert torch.allclose(tiles.tile(rows, columns), whole[rows, columns], atol=1e-6)


def test_it_agrees_with_the_graph_in_memory(made):
    class Here(EmbeddingGraph):
        pass

    ids = torch.arange(N)
    distinct = sorted(set(TEXTS))
    index = torch.tensor([distinct.index(text) for text in TEXTS])
    memory = Here(slow_vectors(distinct), index=index)
    assert torch.allclose(made.graph().batch(ids), memory.batch(ids), atol=1e-6)


def test_equal_texts_are_stored_once_and_the_longest_come_first(made):
    assert made.manifest.distinct == 150
    vectors = np.load(made.path / files.VECTORS)
    assert vectors.shape == (150, 16)
    assert vectors.dtype == np.float16
    ordered = sorted(set(TEXTS), key=lambda text: (-len(text), text))
    assert np.array_equal(vectors, slow_vectors(ordered).numpy())


def test_only_some_keys_in_another_order(made):
    picked = [KEYS[i] for i in (7, 199, 0, 157)]
    graph = made.graph(picked)
    assert len(graph) == 4
    whole = made.graph().batch(torch.tensor([7, 199, 0, 157]))
    assert torch.allclose(graph.batch(torch.arange(4)), whole, atol=1e-6)
    assert made.rows(picked).tolist() == [7, 199, 0, 157]
    assert made.rows(picked).dtype == np.int64
    assert whole[0, 3] == 1  # 7 and 157 have one caption


def test_missing_keys_are_counted_and_named(made):
    with refused("lacks 2 of these 3", "'x.png'", "'y.png'", "200 samples", KEYS[0]):
        made.rows(["x.png", KEYS[3], "y.png"])
    with refused("lacks 1 of these 200"):
        made.graph([*KEYS[:-1], "z.png"])
    with refused("no entry"):
        made.graph([])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=40, unique=True), st.data())
def test_keys_of_any_kind_are_found(tmp_path_factory, keys, data):
    folder = tmp_path_factory.mktemp("keys")
    files.write_keys(folder, keys)
    table = files.KeyTable(folder)
    asked = data.draw(st.lists(st.sampled_from(keys) | st.text(min_size=1), max_size=20))
    want = [keys.index(key) if key in keys else -1 for key in asked]
    assert table.find(asked).tolist() == want
    assert [table[row] for row in range(len(table))] == keys


def test_keys_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "key_hashes", lambda keys: np.full(len(keys), 7, "<u8"))
    files.write_keys(tmp_path, ["a", "b", "c"])
    assert files.KeyTable(tmp_path).find(["c", "a", "x", "b"]).tolist() == [2, 0, -1, 1]
    with refused("'b'"):
        files.write_keys(tmp_path, ["a", "b", "c", "b"])


def test_keys_over_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 7)
    files.write_keys(tmp_path, KEYS)
    assert files.KeyTable(tmp_path).find(KEYS[::-1]).tolist() == list(range(N))[::-1]


def test_a_flipped_byte_anywhere_is_detected(copy):
    for name in sorted(path.name for path in copy.iterdir()):
        file = copy / name
        content = file.read_bytes()
        place = len(content) // 2 if name == files.VECTORS else len(content) - 1
        if name == "manifest.json":
            place = content.index(b'"data": "') + 9  # a text that nothing else is held against
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with refused("damaged", name):
            EmbeddingStore.open(copy).check()
        file.write_bytes(content)
    EmbeddingStore.open(copy).check()


def test_what_opening_checks_and_what_it_leaves_to_the_full_check(copy):
    file = copy / files.VECTORS
    content = file.read_bytes()

    def flip(place):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])

    flip(len(content) - 1)  # in the last chunk
    with refused("damaged", "rows 128 to 149"):
        EmbeddingStore.open(copy)
    flip(128)  # in the first
    with refused("damaged", "rows 0 to 31"):
        EmbeddingStore.open(copy)
    flip(60)  # in the header
    with refused("damaged", "header"):
        EmbeddingStore.open(copy)
    flip(128 + 2 * 16 * 70)
    opened = EmbeddingStore.open(copy)
    with refused("damaged", "rows 64 to 95"):
        opened.check()


def test_a_vector_that_is_damaged_is_not_trained_on(copy):
    """A batch does not read the hashes; that its vectors have the length they were stored with it sees."""
    file = copy / files.VECTORS
    content = file.read_bytes()
    row, ids = 70, torch.arange(N)
    for bit in (64, 124):  # of the exponent: a large number, and infinity or what is no number
        place = 128 + 2 * 16 * row + 7
        file.write_bytes(content[:place] + bytes([content[place] | bit]) + content[place + 1 :])
        graph = EmbeddingStore.open(copy).graph()
        for use in (graph.batch, graph.tiles):
            with refused("damaged", f"row {row} of vectors.npy", "instead of 1", "info --check"):
                use(ids)
        assert len(graph.batch((graph.index != row).nonzero()[:, 0])) > 100


def test_an_index_that_points_outside_is_refused_before_it_is_used(copy):
    file = copy / files.INDEX
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\x01")  # the highest byte of the last row
    opened = EmbeddingStore.open(copy)
    for make in (opened.graph, lambda: opened.graph(KEYS), lambda: opened.graph_of(samples())):
        with refused("damaged", "index.npy names rows"):
            make()
    assert len(opened.graph(KEYS[:5])) == 5


@pytest.mark.parametrize("place", [10, 21, 60, -1])
@pytest.mark.parametrize("name", [files.INDEX, files.TEXTS, files.KEY_ENDS, files.KEY_HASHES, files.KEY_ROWS])
def test_a_spoilt_array_is_said_however_it_is_used(copy, name, place):
    content = bytearray((copy / name).read_bytes())
    content[place] ^= 64
    (copy / name).write_bytes(content)
    for use in (lambda store: store.graph(KEYS[::-1]), lambda store: store.graph_of(samples())):
        with contextlib.suppress(ValueError):  # nothing else, and nothing where it makes no difference
            use(EmbeddingStore.open(copy))
    with refused("damaged", name):
        EmbeddingStore.open(copy).check()


def test_a_store_cut_short_is_refused_at_once(copy):
    for name in (files.VECTORS, files.INDEX, files.KEYS):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[:-3])
        with refused("damaged", name, f"{len(content) - 3} bytes instead of {len(content)}"):
            EmbeddingStore.open(copy)
        (copy / name).unlink()
        with refused("damaged", name, "not there"):
            EmbeddingStore.open(copy)
        (copy / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"version": 2}, "version"),
        ({"samples": 0}, "samples"),
        ({"samples": 201}, "SHA-256"),
        ({"sha256": ""}, "SHA-256"),
        ({"extra": 1}, "extra"),
        ({"files": {}}, "SHA-256"),
    ],
)
def test_a_manifest_that_is_not_one(copy, change, part):
    plain = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**plain, **change}))
    with refused("manifest.json", part):
        EmbeddingStore.open(copy)


def test_what_is_no_store(tmp_path, copy):
    with refused("there is no store"):
        EmbeddingStore.open(tmp_path / "absent")
    with refused("is not a store"):
        EmbeddingStore.open(tmp_path)
    (copy / "manifest.json").write_bytes(b"\xff{")
    with refused("cannot be read"):
        EmbeddingStore.open(copy)


def samples(captions=TEXTS, keys=KEYS, labels=None):
    return Samples("mine", keys, lambda i: Image.new("RGB", (4, 4)), labels or {}, captions=captions)


def test_a_recipe_names_it_by_path_and_its_own_data_must_match(made):
    section = Similarity(graph="store", path=str(made.path))
    order = [5, 4, 155, 9]
    graph = section.build(samples().subset(order))
    want = made.graph().batch(torch.tensor(order))
    assert torch.allclose(graph.batch(torch.arange(4)), want, atol=1e-6)
    assert graph.batch(torch.arange(4))[0, 2] == 1
    changed = [text if i not in (3, 9) else f"{text}!" for i, text in enumerate(TEXTS)]
    with refused("other texts", "2 of 200 differ", KEYS[3], "'caption 3 of many!'", "build the store again"):
        section.build(samples(changed))
    with refused("lacks 200 of these 200", "'0'"):
        section.build(samples(keys=[str(i) for i in range(N)]))
    # Captions that the data does not have cannot be compared.
    assert len(section.build(samples(captions=None))) == N
    with pytest.raises(ValueError, match="path is missing"):
        Similarity(graph="store")


def test_class_names_that_changed_are_said(tmp_path):
    labels = Labels(torch.arange(N) % 2, ["violin", "school_bus"])
    build_store(
        tmp_path / "s", KEYS, [["violin", "school bus"][i % 2] for i in range(N)], encoder=Hashed(),
        text="kind", templates=["a photo of a {}"],
    )  # fmt: skip
    section = Similarity(graph="store", path=str(tmp_path / "s"))
    graph = section.build(samples(None, labels={"kind": labels}))
    assert graph.batch(torch.arange(4))[0, 2] == 1
    other = Labels(labels.values, ["violin", "bus"])
    with refused("100 of 200 differ", KEYS[1], "'bus'"):
        section.build(samples(None, labels={"kind": other}))


def test_vectors_of_ones_own(tmp_path):
    z = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    keys = [str(i) for i in range(50)]
    store = write_store(tmp_path / "a", z, keys, name="mine", chunk_rows=16)
    ids = torch.arange(50)
    assert torch.allclose(store.graph().batch(ids), EmbeddingGraph(z).batch(ids), atol=2e-3)
    lazily = write_store(tmp_path / "b", lambda a, b: z[a:b], keys, name="mine", chunk_rows=16)
    assert lazily.manifest == store.manifest
    z[17] = 0
    with refused("'17'", "zero or not finite"):
        write_store(tmp_path / "c", z, keys, name="mine")
    z[17] = torch.nan
    with refused("'17'"):
        write_store(tmp_path / "c", z, keys, name="mine")
    with refused("(50, 8)", "49 keys"):
        write_store(tmp_path / "c", z, keys[1:], name="mine")


def test_vectors_of_any_length_keep_their_direction(tmp_path):
    z = torch.tensor([[1e300, 0], [3e200, 4e200], [1e-300, 0], [3e-200, 4e-200]], dtype=torch.float64)
    graph = write_store(tmp_path / "a", z, list("abcd"), name="mine").graph()
    assert graph.batch(torch.arange(4))[0].tolist() == pytest.approx([1, 0.6, 1, 0.6], abs=1e-3)


@pytest.mark.parametrize(
    ("vectors", "words", "parts"),
    [
        (torch.ones(2, 0), {}, ("real of shape (2, d)", "shape (2, 0)")),
        (torch.ones(2, 3, dtype=torch.complex64), {}, ("must be real", "complex64")),
        (np.ones((2, 3)), {}, ("a tensor or a function", "ndarray")),
        (lambda a, b: torch.ones(b - a), {}, ("vectors 0 to 1 must be real of shape (2, d)", "shape (2,)")),
        (lambda a, b: torch.ones(1, 3), {}, ("shape (2, d)", "shape (1, 3)")),
        (lambda a, b: None, {}, ("got None",)),
        (torch.ones(2, 3), {"keys": []}, ("keys must be a list", "got []")),
        (torch.ones(2, 3), {"keys": "ab"}, ("keys must be a list", "'ab'")),
        (torch.ones(2, 3), {"name": 3}, ("name must be a text", "3")),
        (torch.ones(2, 3), {"chunk_rows": 0}, ("chunk_rows must be an integer of at least 1, got 0",)),
    ],
)
def test_what_is_no_store_of_ones_own(tmp_path, vectors, words, parts):
    with refused(*parts):
        write_store(tmp_path / "s", vectors, **{"keys": ["a", "b"], "name": "mine", **words})


def test_another_process_opens_the_graph_again(made):
    graph = pickle.loads(pickle.dumps(made.graph(KEYS[:9])))
    assert torch.equal(graph.batch(torch.arange(9)), made.graph(KEYS[:9]).batch(torch.arange(9)))


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.integers(0, 149), min_size=1, max_size=60))
def test_rows_are_read_in_any_order_and_more_than_once(made, rows):
    whole = np.load(made.path / "vectors.npy")
    read = files.VectorReader(made.path / "vectors.npy", *whole.shape).read(np.array(rows))
    assert np.array_equal(read, whole[rows])


def test_a_file_that_was_cut_while_it_is_read(made, tmp_path):
    whole = np.load(made.path / "vectors.npy")
    content = (made.path / "vectors.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(content[:-10])
    reader = files.VectorReader(tmp_path / "cut.npy", *whole.shape)
    assert np.array_equal(reader.read(np.array([3])), whole[[3]])
    with pytest.raises(ValueError, match=r"cut.npy is damaged: it has \d+ of \d+ bytes"):
        reader.read(np.array([3, 149]))


def test_other_vectors_of_ones_own_are_never_taken_for_those_that_are_there(tmp_path):
    g = torch.Generator().manual_seed(1)
    z, other = torch.randn(50, 8, generator=g), torch.randn(50, 8, generator=g)
    keys = [str(i) for i in range(50)]
    store = write_store(tmp_path / "a", z, keys, name="mine", chunk_rows=16)
    assert write_store(tmp_path / "a", z, keys, name="mine", chunk_rows=16).manifest == store.manifest
    changed = z.clone()
    changed[40] = other[40]
    for vectors, rows in (
        (other, "rows 0 to 15"),
        (changed, "rows 32 to 47"),
        (other[:, :4], "rows 0 to 15"),
    ):
        with refused("another store", "the vectors of", rows, "--overwrite"):
            write_store(tmp_path / "a", vectors, keys, name="mine", chunk_rows=16)
    want = write_store(tmp_path / "a", other, keys, name="mine", chunk_rows=16, overwrite=True)

    def fails(start, stop):
        if start:
            raise RuntimeError("stop")
        return z[start:stop]

    with pytest.raises(RuntimeError, match="stop"):
        write_store(tmp_path / "b", fails, keys, name="mine", chunk_rows=16)
    assert write_store(tmp_path / "b", other, keys, name="mine", chunk_rows=16).manifest == want.manifest
    with pytest.raises(RuntimeError, match="stop"):
        write_store(tmp_path / "c", fails, keys, name="mine", chunk_rows=16)
    assert write_store(tmp_path / "c", other[:, :4], keys, name="mine", chunk_rows=16).manifest.width == 4


def test_class_names_as_a_table_has_them_are_those_of_the_data(tmp_path):
    labels = Labels(torch.arange(N) % 2, ["violin", "school_bus"])
    texts = [["violin", "school_bus"][i % 2] for i in range(N)]
    build_store(tmp_path / "s", KEYS, texts, encoder=Hashed(), text="kind")
    section = Similarity(graph="store", path=str(tmp_path / "s"))
    assert section.build(samples(None, labels={"kind": labels})).batch(torch.arange(4))[1, 3] == 1
    other = Labels(labels.values, ["violin", "bus"])
    with refused("100 of 200 differ", "'bus'"):
        section.build(samples(None, labels={"kind": other}))


def test_progress_before_the_first_chunk_has_no_rate_and_no_time_left(monkeypatch, capsys):
    monkeypatch.setattr(cli_similarity, "LINE_EVERY", -1.0)
    with cli_similarity._bar("5 texts", shown=True) as report:
        report(0, 5)
        report(4, 5)
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first == "5 texts: 0 done"
    assert second.startswith("5 texts: 4 done, ")
    assert second.endswith(" s left")
