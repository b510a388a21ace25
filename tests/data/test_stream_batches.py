"""Batches from a stream: the same every time, taken up anywhere, shared, with what is bad left out."""

import tarfile
import warnings
from collections import Counter

import pytest
import torch
from tar_shards import add, server, write_shards

from counterpoint.data import streams
from counterpoint.data.stream_batches import StreamSource
from counterpoint.data.streams import streamed_shards
from counterpoint.data.views import ViewSpec

SPEC = ViewSpec(size=8, count=2, crop_scale=(0.3, 1.0), flip=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("stream"), shards=4, each=12, texts=3)[0].parent


def source(folder, batch_size=4, seed=0, workers=0, share=(0, 1), spec=SPEC, rows=None, **words):
    stream = streamed_shards(str(folder), **{"samples": 48, "shuffle": 16, **words})
    return StreamSource(stream, spec, batch_size, seed, workers, share=share, rows=rows)


def equal(left, right):
    assert [b.keys for b in left] == [b.keys for b in right]
    assert [b.captions for b in left] == [b.captions for b in right]
    return all(
        torch.equal(a.ids, b.ids) and all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
        for a, b in zip(left, right, strict=True)
    )


def test_what_a_batch_has(folder):
    batches = list(source(folder).epoch(0))
    assert len(batches) == 12
    for batch in batches:
        assert [tuple(view.shape) for view in batch.views] == [(4, 3, 8, 8)] * 2
        assert not torch.equal(*batch.views)
        assert len(batch.keys) == len(batch.captions) == len(batch.ids) == 4
    keys = [key for batch in batches for key in batch.keys]
    assert {key.split("/")[0] for key in keys} == {f"made-{k:05d}" for k in range(4)}
    # Equal keys have equal ids, and others have others.
    ids = {key: i for batch in batches for key, i in zip(batch.keys, batch.ids.tolist(), strict=True)}
    assert len(set(ids.values())) == len(ids)


def test_a_round_has_every_sample_once_and_in_another_order_each_epoch(folder):
    whole = source(folder)
    epochs = [[key for batch in whole.epoch(e) for key in batch.keys] for e in (0, 1)]
    assert all(len(set(keys)) == 48 for keys in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[0] != [key for batch in source(folder, seed=1).epoch(0) for key in batch.keys]
    # Neighbours in a shard are not neighbours here.
    assert sorted(epochs[0]) != epochs[0]


def test_resampling_draws_with_replacement(folder):
    drawn = source(folder, resample=True, shuffle=0)
    counts = Counter(key for e in range(4) for batch in drawn.epoch(e) for key in batch.keys)
    assert sum(counts.values()) == 192
    assert len(set(counts.values())) > 1


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("start", [1, 5, 11, 12])
def test_taken_up_anywhere_it_is_bit_equal(folder, resample, start):
    whole = list(source(folder, resample=resample).epoch(1))
    assert equal(list(source(folder, resample=resample).epoch(1, start)), whole[start:])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_number_of_workers_changes_nothing(folder, workers):
    whole = list(source(folder).epoch(0))
    assert equal(list(source(folder, workers=workers).epoch(0)), whole)
    assert equal(list(source(folder, workers=workers).epoch(0, start=5)), whole[5:])


def test_processes_read_different_shards(folder):
    keys = [{key for batch in source(folder, share=(k, 2)).epoch(0) for key in batch.keys} for k in (0, 1)]
    assert len(keys[0]) == len(keys[1]) == 24
    assert not keys[0] & keys[1]
    batch = next(source(folder, batch_size=5, share=(1, 2)).epoch(0))
    assert len(batch.ids) == 3
    with pytest.raises(ValueError, match=r"5 processes need a shard each, data .* has 4"):
        source(folder, batch_size=10, share=(0, 5))
    drawn = [[b.keys for b in source(folder, share=(k, 2), resample=True).epoch(0)] for k in (0, 1)]
    assert drawn[0] != drawn[1]


def test_captions_vary_from_epoch_to_epoch(folder):
    whole = source(folder)
    told = [
        {key: text for b in whole.epoch(e) for key, text in zip(b.keys, b.captions, strict=True)}
        for e in (0, 1)
    ]
    assert told[0].keys() == told[1].keys()
    assert told[0] != told[1]
    assert {len(text.split("told")) for text in told[0].values()} == {1, 2}


@pytest.fixture
def damaged(tmp_path):
    """Three shards: a whole one, one with a bad picture, one that ends early."""
    paths = write_shards(tmp_path, shards=3, each=8)
    bad = paths[1].read_bytes()
    place = bad.index(b"\x89PNG", 4096)
    paths[1].write_bytes(bad[:place] + b"<html>" + bad[place + 6 :])
    paths[2].write_bytes(paths[2].read_bytes()[:9000])
    return tmp_path


def test_what_is_bad_is_skipped_counted_and_said(damaged):
    whole = source(damaged, samples=24, on_error="skip")
    with pytest.warns(UserWarning, match=r"made-00002.tar ends early, the \d samples before") as told:
        batches = list(whole.epoch(0))
    assert len(told) == 1
    assert len(batches) == 6
    assert len(whole.skipped) == 1
    assert whole.skipped[0].startswith("made-00001/")
    assert list(whole.broken) == [str(damaged / "made-00002.tar")]
    assert sorted({len(batch.ids) for batch in batches}) == [3, 4]
    # Passing over undecoded samples comes to the same place.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert equal(list(source(damaged, samples=24, on_error="skip").epoch(0, start=4)), batches[4:])


def test_or_stops_the_run(damaged):
    with pytest.raises(ValueError, match=r"on_error='skip' leaves out"):
        list(source(damaged, samples=24).epoch(0))
    with pytest.raises(ValueError, match=r"on_error='skip' leaves out"):
        list(source(damaged, samples=24, workers=2).epoch(0))


def test_a_lane_whose_only_shard_is_bad_goes_on_with_the_others(tmp_path):
    paths = write_shards(tmp_path, shards=3, each=8)
    paths[1].write_bytes(b"")
    whole = source(tmp_path, samples=24, on_error="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(whole.epoch(0))
        assert equal(
            list(source(tmp_path, samples=24, on_error="skip", workers=3).epoch(0, start=3)), batches[3:]
        )
    assert [len(batch.ids) for batch in batches] == [4] * 6
    assert {key.split("/")[0] for batch in batches for key in batch.keys} == {"made-00000", "made-00002"}
    assert list(whole.broken) == [str(paths[1])]
    with pytest.raises(ValueError, match=r"made-00001.tar cannot be read.*on_error='skip' leaves out"):
        list(source(tmp_path, samples=24).epoch(0))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_bad_is_met_on_the_way_to_where_a_run_is_taken_up(tmp_path, workers):
    """Passed over in silence, it would bring other samples to the steps that are left."""
    paths = write_shards(tmp_path, shards=2, each=9)
    with tarfile.open(paths[0]) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    with tarfile.open(paths[0], "w") as tar:
        for name, data in members:
            if name not in ("000000000.txt", "000000000.json"):
                add(tar, name, data)

    def later(on_error):
        made = source(tmp_path, samples=16, shuffle=0, workers=workers, on_error=on_error)
        return made, made.epoch(0, start=2)

    with pytest.raises(
        ValueError, match=r"'made-00000/000000000' has no caption.*on_error='skip' leaves out"
    ):
        list(later("stop")[1])
    counting, batches = later("skip")
    assert len(list(batches)) == 2
    assert counting.skipped == ["made-00000/000000000"]


@pytest.mark.parametrize("resample", [False, True])
def test_shards_without_a_sample_end_the_run(tmp_path, monkeypatch, resample):
    monkeypatch.setattr(streams.time, "sleep", lambda seconds: None)
    for path in write_shards(tmp_path, shards=2, each=2):
        path.write_bytes(b"")
    dry = source(tmp_path, samples=8, on_error="skip", resample=resample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in (0, 1):
            with pytest.raises(ValueError, match="no sample of a batch of 4"):
                list(dry.epoch(0, start))


def test_from_a_server_with_workers(folder):
    with server(folder) as (address, _):
        remote = source(f"{address}/made-{{00000..00003}}.tar", workers=2)
        assert equal(list(remote.epoch(0)), list(source(folder).epoch(0)))


def test_ids_are_rows_of_a_store(folder):
    table = {f"made-{k:05d}/{i:09d}": i for k in range(4) for i in range(12 * k, 12 * k + 12)}

    def rows(keys, texts):
        assert not any("told" in text for text in texts)  # the first captions, not the drawn ones
        wrong = {i: f"the store lacks {key!r}" for i, key in enumerate(keys) if key not in table}
        return torch.tensor([table.get(key, -1) for key in keys]), wrong

    for batch in source(folder, rows=rows).epoch(0):
        assert batch.ids.tolist() == [table[key] for key in batch.keys]
    gone = "made-00002/000000030"
    del table[gone]
    with pytest.raises(ValueError, match="the store lacks"):
        list(source(folder, rows=rows).epoch(0))
    skipping = source(folder, rows=rows, on_error="skip")
    kept = [key for batch in skipping.epoch(0) for key in batch.keys]
    assert (len(kept), skipping.skipped) == (47, [gone])
    table.clear()
    with pytest.raises(ValueError, match=r"no sample of a batch of 4 .*; the last: the store lacks 'made-"):
        list(source(folder, rows=rows, on_error="skip").epoch(0))


def test_tokens_are_those_of_the_captions(folder):
    def tokenize(texts):
        return torch.tensor([[len(text)] for text in texts])

    stream = streamed_shards(str(folder), samples=8)
    for batch in StreamSource(stream, SPEC, 4, workers=0, tokenize=tokenize).epoch(0):
        assert batch.tokens.flatten().tolist() == [len(text) for text in batch.captions]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"batch_size": 64}, "data.samples=48 is less than one batch of 64"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"spec": SPEC.model_copy(update={"pair_by": "camera"})}, "a stream has none"),
        ({"share": (2, 2)}, r"share must be \(k, m\)"),
        ({"batch_size": 1, "share": (0, 2)}, "too small to share"),
    ],
)
def test_what_is_refused(folder, words, message):
    with pytest.raises(ValueError, match=message):
        source(folder, **words)
    with pytest.raises(ValueError, match="start must be in"):
        source(folder).epoch(0, start=13)
