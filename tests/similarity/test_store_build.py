"""A store built: each text encoded once, killed and resumed to the same bytes, shared by processes."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import refused
from store_encoders import Counted, Hashed
from text_models import save_tiny_encoder

from counterpoint.similarity import EmbeddingStore, build_store, encode_texts
from counterpoint.similarity import store_write as writing
from counterpoint.similarity.store_encode import SentenceEncoder, encode_rows

N = 300
KEYS = [f"{i}.png" for i in range(N)]
TEXTS = [f"caption {i} " + "x" * (i % 7) for i in range(N)]
HERE = Path(__file__).parents[1]


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def build(folder, encoder=None, keys=KEYS, texts=TEXTS, **words):
    words = {"chunk_rows": 16, "data": "mine", **words}
    return build_store(folder, keys, texts, encoder=encoder or Hashed(), **words)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return build(tmp_path_factory.mktemp("whole") / "store").path


SCRIPT = """
import sys
from store_encoders import Hashed
from counterpoint.similarity import build_store
keys = [f"{i}.png" for i in range(300)]
texts = [f"caption {i} " + "x" * (i % 7) for i in range(300)]
build_store(sys.argv[1], keys, texts, encoder=Hashed(seconds=float(sys.argv[2])), chunk_rows=16, data="mine")
"""


def start(folder, seconds):
    paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(seconds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        stderr=subprocess.PIPE,
        text=True,
    )


def until_done(folder, chunks, process):
    log, end = folder / "done-0.txt", time.time() + 120
    while not (log.exists() and log.read_text().count("\n") >= chunks):
        assert process.poll() is None, process.stderr.read()
        assert time.time() < end
        time.sleep(0.02)


def test_killed_half_way_and_resumed_it_is_the_same_bytes(tmp_path, whole):
    folder = tmp_path / "store"
    process = start(folder, 0.25)
    until_done(folder, 7, process)
    with refused("another process is building"):
        build(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "manifest.json").exists()
    with refused("has not ended", "again"):
        EmbeddingStore.open(folder)
    kept = (folder / "done-0.txt").read_text().count("\n")
    assert 7 <= kept < 19
    encoder = Hashed()
    seen = []
    build(folder, encoder, progress=lambda done, total: seen.append((done, total)))
    assert hashes(folder) == hashes(whole)
    # What was there is not encoded again: the last chunk has 12 texts, all others 16.
    assert len(encoder.texts) == N - 16 * kept
    assert seen[0] == (16 * kept, N)
    assert seen[-1] == (N, N)


def stopped(folder, after):
    """A build whose encoder fails after so many calls."""

    class Failing(Hashed):
        def __call__(self, texts):
            if self.calls == after:
                raise RuntimeError("out of memory")
            return super().__call__(texts)

    with pytest.raises(RuntimeError, match="out of memory"):
        build(folder, Failing())


def test_a_chunk_that_was_torn_is_encoded_again(tmp_path, whole):
    folder = tmp_path / "store"
    stopped(folder, 5)
    with (folder / "vectors.npy").open("r+b") as file:
        file.seek(128 + 2 * 16 * 20)
        file.write(b"\xff")
    with (folder / "done-0.txt").open("a") as log:
        log.write("5 16 0123")  # cut off while it was written
    encoder = Hashed()
    build(folder, encoder)
    assert len(encoder.texts) == N - 4 * 16
    assert hashes(folder) == hashes(whole)


def test_an_unfinished_build_of_something_else_is_refused(tmp_path):
    folder = tmp_path / "store"
    stopped(folder, 3)
    with refused("differs in", "samples: 299 against 300", "texts"):
        build(folder, keys=KEYS[:-1], texts=TEXTS[:-1])
    build(folder, keys=KEYS[:-1], texts=TEXTS[:-1], overwrite=True)
    assert len(EmbeddingStore.open(folder)) == N - 1


def test_a_complete_store_stays_and_what_differs_is_said(tmp_path, whole):
    before = hashes(whole)
    encoder = Hashed()
    build(whole, encoder)
    assert encoder.calls == 0
    keys = [*KEYS[:40], "other.png", *KEYS[41:]]
    for words, parts in (
        ({"keys": keys}, ("keys, the first at sample 40: 'other.png' against '40.png'",)),
        ({"keys": KEYS[:-1], "texts": TEXTS[:-1]}, ("samples: 299 against 300", "distinct: 299 against 300")),
        (
            {"texts": [*TEXTS[:7], "a dog", *TEXTS[8:-1], "a cat"]},
            (f"differs in texts: those of 2 samples, the first is '{KEYS[7]}'",),
        ),
        ({"encoder": Hashed("2")}, ("revision: 2 against 1",)),
        ({"templates": ["a photo of {}"]}, ("templates: ('a photo of {}',) against ('{}',)",)),
        ({"data": "yours", "text": "alt"}, ("data: yours against mine", "text: alt against caption")),
    ):
        with refused("holds another store", "--overwrite", *parts):
            build(whole, **words)
    assert hashes(whole) == before


def test_what_is_not_a_store_is_never_written_to(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with refused("holds something else", "thesis.tex"):
            build(tmp_path, overwrite=overwrite)
    with refused("is a file"):
        build(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_overwriting_leaves_no_store_until_it_is_whole(tmp_path):
    folder = tmp_path / "store"
    build(folder)

    class Failing(Hashed):
        def __call__(self, texts):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        build(folder, Failing("2"), overwrite=True)
    with refused("has not ended"):
        EmbeddingStore.open(folder)


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["", "a"], ("1 of 2 texts", "'0.png'", "''")),
        (["a", " \n\t"], ("'1.png'", "sample 1")),
        (["a", None], ("'1.png'", "None")),
        (["a"], ("1 texts for 2 samples",)),
        (["a", "\ud800"], ("'1.png'", "not Unicode")),
        ("ab", ("one each",)),
    ],
)
def test_texts_that_cannot_be_encoded_are_named(tmp_path, texts, parts):
    with refused(*parts):
        build(tmp_path / "s", keys=KEYS[:2], texts=texts)
    assert not (tmp_path / "s").exists()


def test_keys_that_repeat_are_named(tmp_path):
    keys = [*KEYS[:5], "2.png", "4.png"]
    with refused("2 of 7 repeat", "'2.png'", "samples 2 and 5"):
        build(tmp_path / "s", keys=keys, texts=TEXTS[:7])
    with refused("keys[1] is ''"):
        build(tmp_path / "t", keys=["a", ""], texts=["a", "b"])


class Broken(Hashed):
    """NaN for one text, nothing for another."""

    def __call__(self, texts):
        out = super().__call__(texts)
        for row, text in enumerate(texts):
            if "caption 77 " in text:
                out[row, 3] = torch.nan
            if "caption 5 " in text:
                out[row] = 0
        return out


def test_nan_from_an_encoder_names_the_text(tmp_path):
    with refused("hashed", "nan", "'caption 77 '"):
        build(tmp_path / "s", Broken(), texts=[f"caption {i} " for i in range(70, 70 + N)])
    with refused("length 0", "'caption 5 '"):
        build(tmp_path / "t", Broken(), keys=KEYS[:20], texts=[f"caption {i} " for i in range(20)])
    with refused("shape (20,)", "20 texts"):
        bad = Hashed()
        encode_rows(lambda_encoder(lambda texts: bad(texts)[:, 0]), [f"{i}" for i in range(20)], ["{}"])


def lambda_encoder(function):
    class Of(Hashed):
        def __call__(self, texts):
            return function(texts)

    return Of()


def test_several_templates_are_averaged(tmp_path):
    templates = ["a photo of a {}", "a drawing of a {}", "{}"]
    encoder = Hashed()
    names = ["violin", "cello", "bus"]
    store = build(tmp_path / "s", encoder, keys=KEYS[:3], texts=names, templates=templates)
    assert len(encoder.texts) == 9
    ordered = sorted(names, key=lambda name: (-len(name), name))
    for row, name in enumerate(ordered):
        z = Hashed()([template.replace("{}", name) for template in templates]).double()
        z = (z / z.norm(dim=1, keepdim=True)).mean(dim=0)
        assert np.array_equal(np.load(store.path / "vectors.npy")[row], (z / z.norm()).half().numpy())
    with refused("template", "'a photo'"):
        build(tmp_path / "t", templates=["a photo"])
    with refused("different sentences"):
        build(tmp_path / "t", templates=["{}", "{}"])
    with refused("different sentences"):
        build(tmp_path / "t", templates=[])
    with refused("template", "got 3"):
        build(tmp_path / "t", templates=[3])
    with refused("chunk_rows must be an integer of at least 1, got 0"):
        build(tmp_path / "t", chunk_rows=0)
    one = build(tmp_path / "u", keys=KEYS[:3], texts=names, templates="a photo of a {}")
    assert one.manifest.templates == ("a photo of a {}",)


def test_a_thousand_class_names_cost_a_thousand_encodings(tmp_path):
    encoder = Counted(SentenceEncoder(str(save_tiny_encoder(tmp_path / "model"))))
    names = [f"class number {i}" for i in range(1000)]
    texts = [names[i % 1000] for i in range(20_000)]
    keys = [str(i) for i in range(20_000)]
    store = build_store(tmp_path / "s", keys, texts, encoder=encoder, templates=["a photo of a {}"])
    assert sorted(encoder.texts) == sorted(f"a photo of a {name}" for name in names)
    assert store.manifest.distinct == 1000
    assert float(store.graph().batch(torch.tensor([3, 1003]))[0, 1]) == 1


def test_minilm_on_texts_of_all_kinds(tmp_path):
    texts = [
        "a dog", "a dog", "x" * 10_000, "ein Hund läuft", "一只狗在跑", "كلب يركض", "a\x00dog\x07\x1b[31m",
        "\u200b🐕\u200d", "a\nphoto\r\nof\ta dog", "<|endoftext|>",
    ]  # fmt: skip
    keys = [f"schlüssel/{i} \x01" for i in range(len(texts))]
    store = build_store(tmp_path / "s", keys, texts)
    assert (store.manifest.samples, store.manifest.distinct, store.manifest.width) == (10, 9, 384)
    z = encode_texts(texts).double()
    assert torch.allclose(store.graph(keys).batch(torch.arange(10)).double(), z @ z.T, atol=2e-3)
    assert len(store.manifest.revision) == 64


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def two_processes(folder, model, starter=(), devices="2"):
    words = [sys.executable, *starter, "-m", "counterpoint.cli", "similarity", "build", "--table", "t.tsv"]
    words += ["--text", "caption", "--key", "name", "--encoder", str(model), "--accelerator", "cpu"]
    return subprocess.run(
        [*words, "--devices", devices, "--out", "two"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=500,
    )


def test_two_gloo_processes_share_the_work(tmp_path):
    """Each encodes a part, and the result is that of one process, byte by byte."""
    model = save_tiny_encoder(tmp_path / "model")
    keys, texts = [f"{i}.png" for i in range(9000)], [f"a caption of number {i}" for i in range(9000)]
    rows = "".join(f"{key}\t{text}\n" for key, text in zip(keys, texts, strict=True))
    (tmp_path / "t.tsv").write_text(f"name\tcaption\n{rows}")
    done = two_processes(tmp_path, model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("store: ") == 1
    build_store(tmp_path / "one", keys, texts, encoder=str(model), data="t.tsv", device="cpu")
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


@pytest.mark.slow
def test_torchrun_starts_the_processes_as_it_does_for_a_training(tmp_path):
    model = save_tiny_encoder(tmp_path / "model")
    (tmp_path / "t.tsv").write_text("name\tcaption\na\ta dog\nb\ta cat\n")
    done = two_processes(tmp_path, model, TORCHRUN, devices="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("store: ") == 1
    assert len(EmbeddingStore.open(tmp_path / "two")) == 2
    done = two_processes(tmp_path, model, TORCHRUN, devices="3")
    assert "--devices=3, but torchrun started 2" in done.stderr


@pytest.mark.slow
def test_what_one_process_refuses_stops_both(tmp_path):
    model = save_tiny_encoder(tmp_path / "model")
    (tmp_path / "t.tsv").write_text("name\tcaption\na\ta dog\nb\ta cat\n")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "thesis.tex").write_text("mine")
    done = two_processes(tmp_path, model)
    assert done.returncode == 2
    assert "holds something else, such as thesis.tex" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_chunks_are_dealt_out_evenly(tmp_path, whole, monkeypatch):
    """The shares of three processes, run one after another, make up the whole."""

    class Rank:
        world_size = 3

        def __init__(self, rank):
            self.global_rank = rank

    folder = tmp_path / "store"
    stopped(folder, 0)
    plan = writing.Plan.model_validate_json((folder / "building.json").read_bytes())
    ordered = sorted(TEXTS, key=lambda text: (-len(text), text))
    encoders = [Hashed() for _ in range(3)]
    missing = writing._missing(folder, plan)
    for rank, encoder in enumerate(encoders):
        contents = writing.Contents(
            plan, KEYS, np.arange(N), np.zeros((N, 2), np.uint64),
            lambda start, stop, encoder=encoder: encode_rows(encoder, ordered[start:stop], ["{}"]),
        )  # fmt: skip
        writing._encode(folder, contents, missing, Rank(rank), None)
    assert [encoder.calls for encoder in encoders] == [7, 6, 6]
    build(folder)
    assert hashes(folder) == hashes(whole)


def test_a_full_disk_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with refused("no room"):
        build(tmp_path / "s")


def test_the_manifest_says_how_it_was_made(whole):
    plain = json.loads((whole / "manifest.json").read_text())
    assert plain["encoder"] == "hashed"
    assert plain["templates"] == ["{}"]
    assert plain["samples"] == N
    assert plain["normalised"] is True
    content = (whole / "vectors.sha256").read_bytes()
    assert plain["vectors_sha256"] == hashlib.sha256(content).hexdigest()
    vectors = (whole / "vectors.npy").read_bytes()[128:]
    size = 16 * 16 * 2
    want = [hashlib.sha256(vectors[i : i + size]).hexdigest() for i in range(0, len(vectors), size)]
    assert content.decode().split() == want


def test_what_a_write_leaves_that_was_killed_is_no_hindrance(tmp_path, whole):
    for name in (".index.npy.part", ".manifest.json.part", ".done-0.txt.part"):
        folder = tmp_path / name.strip(".")
        stopped(folder, 3)
        (folder / name).write_bytes(b"half")
        build(folder)
        assert hashes(folder) == hashes(whole)


def test_files_that_only_have_the_names_of_a_store_are_not_replaced(tmp_path, whole):
    for names in (["vectors.npy"], ["index.npy"], ["keys.bin", "vectors.npy"]):
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(b"mine")
        with refused("without a manifest.json", names[0], "--overwrite"):
            build(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict.fromkeys(names, b"mine")
        build(folder, overwrite=True)
        assert hashes(folder) == hashes(whole)
    # What a build leaves that was killed before it had written its plan.
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in ("keys.bin", "key_ends.npy"):
        (begun / name).write_bytes(b"half")
    build(begun)
    assert hashes(begun) == hashes(whole)


def test_a_log_or_a_plan_that_is_spoilt(tmp_path, whole):
    folder = tmp_path / "store"
    stopped(folder, 4)
    with (folder / "done-0.txt").open("ab") as log:
        log.write(b"\x00\x00\n7 x y\n\xff\n")
    encoder = Hashed()
    build(folder, encoder)
    assert len(encoder.texts) == N - 4 * 16
    assert hashes(folder) == hashes(whole)
    stopped(tmp_path / "other", 4)
    (tmp_path / "other" / "building.json").write_text('{"data": 1')
    with refused("building.json cannot be read", "--overwrite"):
        build(tmp_path / "other")


def test_every_kind_of_encoder_has_a_revision(tmp_path):
    model = save_tiny_encoder(tmp_path / "model")
    pooled = [f"hf:{model}?pooling={how}" for how in ("mean", "cls")]
    known = {name: SentenceEncoder(name) for name in ("minilm", "static", str(model), *pooled)}
    assert all(len(encoder.revision) == 64 for encoder in known.values())
    assert known["static"].revision == known["minilm"].revision
    assert known[pooled[0]].revision == known[str(model)].revision
    store = build_store(tmp_path / "s", ["a", "b"], ["a dog", "a bus"], encoder="static")
    assert store.manifest.encoder == "static"
