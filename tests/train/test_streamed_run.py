"""Runs on a stream of shards: trained, resumed, measured, and what is bad in it said."""

import io
import re
import warnings

import pytest
import torch
from rich.console import Console
from short_runs import quiet
from tar_shards import server, write_shards

from counterpoint.data.webdataset_shards import shards
from counterpoint.similarity import EmbeddingStore, ShuffledGraph, build_store
from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.compare import measure
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.recipe import override, parse_recipe
from counterpoint.train.sources import _store

PLAIN = {
    "name": "stream",
    "data": {"source": "streamed_shards", "samples": 32, "shuffle": 8, "train": None},
    "views": {"preset": "simclr_small", "size": 16, "count": 1, "crop_scale": [0.7, 1.0]},
    "model": {"backbone": "conv4", "head": [8], "text": {"width": 16, "layers": 1, "heads": 2}},
    "objective": {"name": "clip", "tau": 0.1, "learnable": True},
    "train": {"epochs": 2, "batch_size": 8, "log_every": 1, "workers": 0, "save_every": 1, "keep": 9},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("stream"), shards=4, each=8, texts=2)[0].parent


def recipe(folder, *words):
    given = [f"data.path={folder}/made-{{00000..00003}}.tar", f"data.held_out={folder}/made-00003.tar"]
    return parse_recipe(override(PLAIN, [*given, *words]))


def end_state(run):
    return load_checkpoint(checkpoints(run.checkpoints)[-1])["encoder"]


@pytest.mark.parametrize("resample", ["true", "false"])
def test_resume_is_bit_equal(folder, tmp_path, resample):
    wanted = recipe(folder, f"data.resample={resample}")
    run = fit(wanted, tmp_path, console=quiet())
    end = end_state(run)
    for stop in (6, 4, 1):
        for path in checkpoints(run.checkpoints)[stop:]:
            path.unlink()
        # Not even another number of workers changes anything.
        fit(
            recipe(folder, f"data.resample={resample}", "train.workers=2"),
            tmp_path,
            resume=True,
            console=quiet(),
        )
        again = end_state(run)
        assert all(torch.equal(value, again[key]) for key, value in end.items())


def test_any_objective_on_a_stream_of_pictures_and_what_is_measured(folder, tmp_path):
    words = ["objective={name: ntxent}", "views.count=2", "model.text=null", "train.epochs=1"]
    run = fit(recipe(folder, *words), tmp_path / "a", console=quiet())
    assert read_metrics(run.metrics)[0]["chance"] == pytest.approx(torch.tensor(15.0).log().item(), rel=1e-5)
    assert measure(run, quiet()) == []
    assert run.features.exists()
    other = "evaluate_on={source: shapes, count: 40, size: 16}"
    run = fit(recipe(folder, *words, other, "data.held_out=null"), tmp_path / "b", console=quiet())
    protocols = {(result.protocol, result.settings["column"]) for result in measure(run, quiet())}
    assert ("knn", "object") in protocols


def test_what_is_bad_is_counted_in_the_log_and_at_the_end(tmp_path):
    paths = write_shards(tmp_path / "data", shards=2, each=16)
    bad = paths[0].read_bytes()
    place = bad.index(b"\x89PNG", 4096)
    paths[0].write_bytes(bad[:place] + b"<html>" + bad[place + 6 :])
    said = io.StringIO()
    with server(tmp_path / "data", {paths[1].name: ["dies"]}) as (address, _):
        words = [
            f"data.path={address}/made-{{00000..00001}}.tar",
            f"data.held_out={paths[0]}",
            "data.tries=1",
        ]
        wanted = parse_recipe(override(PLAIN, [*words, "data.on_error=skip", "train.epochs=1"]))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            run = fit(wanted, tmp_path / "run", console=Console(file=said, width=400))
    rows = read_metrics(run.metrics)
    assert rows[-1]["left_out"] == 1
    assert "skipped 1 broken pictures, the first is made-00000/" in said.getvalue()
    assert (
        f"1 shards could not be read to their end, the first is {address}/made-00001.tar" in said.getvalue()
    )
    assert any("made-00001.tar ends early" in str(warning.message) for warning in told)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.held_out=null"], "a stream is not measured"),
        (["data.holdout=0.1"], "needs a list of samples"),
        (["objective={name: supcon}"], "requires labels"),
        (["objective={name: xclr}", "similarity={graph: caption}"], "build a store first"),
        (["data.samples=4"], "less than one batch of 8"),
        (["data.shufle=4"], "did you mean 'shuffle'"),
    ],
)
def test_what_is_refused_leaves_no_folder(folder, tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        fit(recipe(folder, *words), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_a_store_of_other_captions_is_refused_or_its_samples_left_out(folder, tmp_path):
    indexed = shards(folder)
    captions = list(indexed.captions)
    captions[5] = "what it was called before"
    build_store(tmp_path / "store", indexed.keys[:31], captions[:31], encoder="static")
    store = f"similarity={{graph: store, path: {tmp_path / 'store'}}}"
    words = ["objective={name: xclr}", "views.count=2", "model.text=null", "train.epochs=1", store]
    with pytest.raises(
        ValueError,
        match=rf"was built from another caption of '{indexed.keys[5]}', which is now "
        rf"'{re.escape(indexed.captions[5])}': build"
        rf"|lacks '{indexed.keys[31]}' \(its first key is '{indexed.keys[0]}'",
    ):
        fit(recipe(folder, *words), tmp_path / "stopped", console=quiet())
    run = fit(recipe(folder, *words, "data.on_error=skip"), tmp_path / "run", console=quiet())
    assert read_metrics(run.metrics)[-1]["left_out"] == 2


def test_noise_is_in_the_graph_of_a_stream_too(folder, tmp_path):
    build_store(tmp_path / "store", [str(i) for i in range(40)], [f"text {i}" for i in range(40)])
    words = ["objective={name: xclr}", "views.count=2", "model.text=null"]
    store = f"similarity={{graph: store, path: {tmp_path / 'store'}, noise: 0.5, noise_seed: 3}}"
    graph, _ = _store(recipe(folder, *words, store))
    assert isinstance(graph, ShuffledGraph)
    ids = torch.arange(40)
    clean = EmbeddingStore.open(tmp_path / "store").graph()
    assert torch.equal(graph.sources, ShuffledGraph(clean, 0.5, 3).sources)
    assert torch.equal(graph.batch(ids), clean.batch(graph.sources))
