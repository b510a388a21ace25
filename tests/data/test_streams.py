"""Shards read front to back: from files, commands and a web server, whole and broken."""

import tarfile

import pytest
from real_data import real_data
from tar_shards import add, server, write_shards

from counterpoint.data import streams
from counterpoint.data.streams import Fault, Raw, read_shard, stream_texts, streamed_shards
from counterpoint.data.webdataset_shards import shards


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    waits = []
    monkeypatch.setattr(streams.time, "sleep", waits.append)
    return waits


@pytest.fixture
def made(tmp_path):
    return write_shards(tmp_path / "shards", shards=2, each=6, texts=3)


def read(url, **words):
    found = list(read_shard(str(url), "s", **words))
    return [item for item in found if isinstance(item, Raw)], [i for i in found if isinstance(i, Fault)]


def test_a_stream_gives_what_the_index_gives(made):
    indexed = shards(made[0])
    raws, faults = read(made[0])
    assert faults == []
    assert [raw.key.split("/")[1] for raw in raws] == [key.split("/")[1] for key in indexed.keys]
    assert [raw.captions for raw in raws] == [indexed.texts(i) for i in range(6)]
    assert all(len(raw.captions) == 3 for raw in raws)


def test_real_shards():
    folder = real_data("captions")
    indexed = shards(folder)
    stream = streamed_shards(str(folder), samples=1004)
    found = [
        raw for url, name in zip(stream.urls, stream.names, strict=True) for raw in read_shard(url, name)
    ]
    assert [raw.key for raw in found] == indexed.keys
    assert [raw.captions for raw in found] == list(indexed.all_captions)


def test_commands_and_servers_give_the_same(made):
    whole, _ = read(made[0])
    assert read(f"pipe:cat {made[0]}")[0] == whole
    with server(made[0].parent) as (address, asked):
        assert read(f"{address}/{made[0].name}") == (whole, [])
    assert asked == [made[0].name]


def test_a_connection_that_dies_is_taken_up_again(made, no_waiting):
    whole, _ = read(made[0])
    name = made[0].name
    with server(made[0].parent, {name: ["dies", "busy", "well"]}) as (address, asked):
        assert read(f"{address}/{name}") == (whole, [])
    assert asked == [name] * 3
    assert no_waiting == [1.0, 2.0]


def test_one_that_always_dies_gives_what_came_before(made):
    name = made[0].name
    with server(made[0].parent, {name: ["dies"]}) as (address, asked):
        raws, (fault,) = read(f"{address}/{name}", tries=3)
    assert 0 < len(raws) < 6
    assert raws == read(made[0])[0][: len(raws)]
    assert asked == [name] * 3
    assert fault.key is None
    assert (
        f"{name} ends early after 3 tries, the {len(raws)} samples before that place are used" in fault.reason
    )


def test_a_server_that_stops_sending(made):
    name = made[0].name
    with server(made[0].parent, {name: ["hangs"]}) as (address, asked):
        raws, (fault,) = read(f"{address}/{name}", tries=2, timeout=0.2)
    assert len(asked) == 2
    assert "after 2 tries" in fault.reason
    assert "timed out" in fault.reason
    assert len(raws) > 0


def test_what_is_not_there_is_asked_for_once(made, tmp_path):
    with server(made[0].parent, {"x.tar": ["gone"]}) as (address, asked):
        raws, (fault,) = read(f"{address}/x.tar")
    assert (raws, asked) == ([], ["x.tar"])
    assert fault.reason.startswith(f"shard {address}/x.tar cannot be read: HTTP Error 404")
    (fault,) = read(tmp_path / "absent.tar")[1]
    assert "absent.tar cannot be read" in fault.reason
    (fault,) = read("http://127.0.0.1:9/x.tar", tries=2)[1]
    assert "cannot be read after 2 tries" in fault.reason


def test_commands_that_fail(made):
    (fault,) = read("pipe:false", tries=2)[1]
    assert "pipe:false cannot be read after 2 tries" in fault.reason
    raws, (fault,) = read(f"pipe:head -c 9000 {made[0]}", tries=2)
    assert "ends early after 2 tries" in fault.reason
    assert raws == read(made[0])[0][: len(raws)] != []


def test_a_later_try_that_ends_sooner_gives_nothing_twice(made, tmp_path):
    whole, _ = read(made[0])
    for soon in range(2048, 8192, 512):
        flag = tmp_path / f"tried-{soon}"
        cut = f"head -c 9000 {made[0]}"
        raws, faults = read(
            f"pipe:if [ -e {flag} ]; then head -c {soon} {made[0]}; else touch {flag}; {cut}; fi", tries=2
        )
        assert raws == whole[: len(raws)] != []
        assert len(faults) == 1


def test_a_file_cut_anywhere_never_passes_for_a_whole_one(made):
    whole, _ = read(made[0])
    with tarfile.open(made[0]) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + -(-last.size // 512) * 512
    content = made[0].read_bytes()
    counts = []
    for length in [*range(0, end, 768), end]:
        made[1].write_bytes(content[:length])
        raws, faults = read(made[1])
        assert len(faults) == 1
        assert raws == whole[: len(raws)] or raws[:-1] == whole[: len(raws) - 1]
        counts.append(len(raws))
    assert counts[0] == 0
    assert counts[-1] == 6
    assert counts == sorted(counts)


def test_samples_that_lack_something(tmp_path, made):
    file = tmp_path / "bad.tar"
    with tarfile.open(file, "w") as tar:
        add(tar, "a.txt", b"no picture")
        add(tar, "b.jpg", b"x")
        add(tar, "c.jpg", b"x")
        add(tar, "c.txt", b" ")
        add(tar, "d.jpg", b"x")
        add(tar, "d.json", b'{"caption": "a line"}')
        add(tar, "notes/readme", b"")
    raws, faults = read(file)
    assert [(raw.key, raw.captions) for raw in raws] == [("s/d", ["a line"])]
    assert [fault.key for fault in faults] == ["s/a", "s/b", "s/c"]
    assert "has no picture" in faults[0].reason
    assert "has no caption" in faults[1].reason
    assert "empty caption" in faults[2].reason


def test_the_texts_of_a_stream_are_those_of_its_index(made):
    indexed = shards(made[0].parent)
    stream = streamed_shards(str(made[0].parent), samples=4)
    told = []
    assert stream_texts(stream, lambda *counts: told.append(counts)) == (indexed.keys, indexed.captions)
    assert told == [(1, 2), (2, 2)]
    with tarfile.open(made[1], "a") as tar:
        add(tar, "x.txt", b"no picture")
    made[0].write_bytes(made[0].read_bytes()[:9000])
    left = len(read(made[0])[0])
    with pytest.raises(ValueError, match=r"made-00000.tar ends early.*on_error='skip' leaves out"):
        stream_texts(stream)
    skipping = streamed_shards(str(made[0].parent), samples=4, on_error="skip")
    with (
        pytest.warns(UserWarning, match=r"made-00000.tar ends early"),
        pytest.warns(UserWarning, match=f"1 of {left + 7} samples cannot be used"),
    ):
        keys, texts = stream_texts(skipping)
    assert keys == indexed.keys[:left] + indexed.keys[6:]
    assert len(texts) == len(keys)
    for path in made:
        path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(ValueError, match="'shards' has no samples"),
    ):
        stream_texts(skipping)


def test_names_and_splits(made):
    folder = str(made[0].parent)
    assert streamed_shards(folder, samples=4).names == ("made-00000", "made-00001")
    assert len(streamed_shards(f"{folder}/made-{{00000..00001}}.tar", samples=4).urls) == 2
    pipes = streamed_shards("pipe:cat {train,test}-0.tar", samples=4, split="train")
    assert pipes.urls == ("pipe:cat train-0.tar",)
    doubled = streamed_shards("https://host/{a,b}/0.tar?sig=1.2", samples=4)
    assert len(set(doubled.names)) == 2
    with pytest.raises(ValueError, match="did you mean 'train'"):
        streamed_shards("https://host/{train,test}-0.tar", samples=4, split="trian")
    for path in ("s3://bucket/0.tar", "ftp://host/{0..9}.tar"):
        with pytest.raises(ValueError, match=r"(s3|ftp):// cannot be opened, only .*pipe:aws s3 cp"):
            streamed_shards(path, samples=4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"samples": 0}, "data.samples must be at least 1, got 0"),
        ({"shuffle": -1}, "data.shuffle must be at least 0"),
        ({"tries": 0}, "data.tries must be at least 1"),
        ({"timeout": 0.0}, "data.timeout must be above 0"),
        ({"timeout": float("inf")}, "data.timeout must be above 0 seconds, .* at most, got inf"),
        ({"on_error": "no"}, "on_error='no'"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        streamed_shards("https://host/0.tar", **{"samples": 4, **words})
