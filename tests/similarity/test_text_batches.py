"""Batches of texts: the library's own vectors, in the order of the texts, with little padding."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import save_tiny_encoder

from counterpoint.similarity import text_batches
from counterpoint.similarity.text import _load
from counterpoint.similarity.text_batches import encode_in_batches

# Few characters may be many tokens, and many characters few.
WORDS = ["a", "dog", "internationalization", "xq", "zzkw", "犬", "!?", "photography", "on", "mat"]


def sentences(count):
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return _load(str(save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny-bert")), "cpu")


@pytest.mark.parametrize("batch_size", [None, 1, 7, 500])
def test_the_vectors_are_those_of_the_library_in_the_order_of_the_texts(tiny, batch_size):
    texts = sentences(150)
    found = encode_in_batches(tiny, texts, batch_size)
    want = tiny.encode(texts, convert_to_tensor=True)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, want, rtol=0, atol=2e-6)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=9), st.integers(1, 4))
def test_any_texts_keep_their_places(tiny, texts, batch_size):
    found = encode_in_batches(tiny, texts, batch_size)
    one_by_one = torch.stack([tiny.encode([text], convert_to_tensor=True)[0] for text in texts])
    torch.testing.assert_close(found, one_by_one, rtol=0, atol=2e-6)


def test_hardly_anything_is_padding(tiny):
    seen = []
    words = tiny[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]["attention_mask"]))
    try:
        encode_in_batches(tiny, sentences(1000), 32)
        ours, sizes = list(seen), [len(mask) for mask in seen]
        seen.clear()
        tiny.encode(sentences(1000), batch_size=32)
    finally:
        words.remove()

    def padded(masks):
        return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks) - 1

    assert sizes == [32] * 31 + [8]
    assert padded(ours) < 0.05
    assert padded(seen) > 0.1  # by characters, so that the texts do tell the two apart
    widths = [mask.shape[1] for mask in ours]
    assert widths == sorted(widths, reverse=True)  # the largest batch first


def test_texts_beyond_the_limit_are_cut_as_the_library_cuts_them(tiny):
    texts = ["dog " * 10_000, "a dog", "cat " * 10_000]
    torch.testing.assert_close(
        encode_in_batches(tiny, texts), tiny.encode(texts, convert_to_tensor=True), rtol=0, atol=2e-6
    )


def test_a_tokenizer_without_a_limit(tiny):
    """Such as those of T5 v1.1 and mT5: theirs is 1e30."""
    texts, limit = sentences(40), tiny.max_seq_length
    want = encode_in_batches(tiny, texts)
    try:
        for none in (10**30, 1e30, math.inf):
            tiny.max_seq_length = none
            assert torch.equal(encode_in_batches(tiny, texts), want)
    finally:
        tiny.max_seq_length = limit


def test_tokens_are_counted_in_blocks(tiny, monkeypatch):
    """What the tokenizer keeps of a million texts at once is gigabytes."""
    texts, asked = sentences(50), []
    want, kind = text_batches._token_counts(tiny, texts), type(tiny.tokenizer)
    call = kind.__call__
    monkeypatch.setattr(
        kind, "__call__", lambda self, texts, **more: asked.append(len(texts)) or call(self, texts, **more)
    )
    monkeypatch.setattr(text_batches, "COUNTED", 20)
    assert text_batches._token_counts(tiny, texts) == want
    assert asked == [20, 20, 10]


def test_word_vectors_have_no_padding_and_keep_their_order():
    model = _load("static", "cpu")
    texts = sentences(70)
    found = encode_in_batches(model, texts, 64)
    torch.testing.assert_close(found, model.encode(texts, convert_to_tensor=True), rtol=0, atol=2e-6)
