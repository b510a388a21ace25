"""CLIP text towers as text encoders: a tiny one with random weights, from a file and from a folder."""

import json

import pytest
import torch

from counterpoint.similarity import encode_texts
from counterpoint.similarity.store_encode import SentenceEncoder
from counterpoint.similarity.text_clip import clip_name

TEXTS = ["a dog", "a dog runs on the beach", "two men play chess", "a dog"]
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The open_clip model `counterpoint-tiny`, its weights in a file, and all of it in a folder."""
    library = pytest.importorskip("open_clip")
    folder = tmp_path_factory.mktemp("clip")
    config = folder / "counterpoint-tiny.json"
    config.write_text(json.dumps(TINY))
    library.add_model_config(config)
    torch.manual_seed(0)
    model = library.create_model("counterpoint-tiny").eval()
    torch.save(model.state_dict(), folder / "weights.pt")
    whole = folder / "whole"
    whole.mkdir()
    (whole / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    torch.save(model.state_dict(), whole / "open_clip_pytorch_model.bin")
    return model, library.get_tokenizer("counterpoint-tiny"), folder


def by_file(folder):
    return f"open_clip:counterpoint-tiny/{folder / 'weights.pt'}"


def test_it_is_the_text_tower(tiny):
    model, tokenizer, folder = tiny
    found = encode_texts(TEXTS, by_file(folder), batch_size=2, device="cpu")
    with torch.no_grad():
        want = torch.nn.functional.normalize(model.encode_text(tokenizer(TEXTS)), dim=1)
    assert found.shape == (4, 16)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    assert torch.equal(found[0], found[3])


def test_a_folder_has_its_own_weights(tiny):
    _, _, folder = tiny
    whole = encode_texts(TEXTS, f"open_clip:local-dir:{folder / 'whole'}", device="cpu")
    torch.testing.assert_close(whole, encode_texts(TEXTS, by_file(folder), device="cpu"))


def test_a_store_tells_two_towers_apart(tiny):
    model, _, folder = tiny
    first = SentenceEncoder(by_file(folder), device="cpu")
    assert first(TEXTS).shape == (4, 16)
    assert len(first.revision) == 64
    assert SentenceEncoder(by_file(folder), device="cpu").revision == first.revision
    other = {name: value.clone() for name, value in model.state_dict().items()}
    other["text_projection"][0, 0] += 1
    torch.save(other, folder / "other.pt")
    changed = SentenceEncoder(f"open_clip:counterpoint-tiny/{folder / 'other.pt'}", device="cpu")
    assert changed.revision != first.revision


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("open_clip:ViT-B-32", "must name its weights, as open_clip:ViT-B-32/laion2b_s34b_b79k"),
        ("open_clip:ViT-B-23/openai", "open_clip has no 'ViT-B-23'; did you mean .*ViT-B-32"),
        ("open_clip:ViT-B-32/laion2b_s34b", "neither a file nor published weights; .*laion2b_s34b_b79k"),
        ("open_clip:local-dir:/no/such/folder", "cannot be loaded; tried open_clip"),
    ],
)
def test_what_cannot_be_loaded_is_named(encoder, message):
    pytest.importorskip("open_clip")
    with pytest.raises(ValueError, match=message):
        encode_texts(["a"], encoder, device="cpu")


def test_a_file_of_something_else_is_named(tmp_path, tiny):
    (tmp_path / "weights.pt").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="cannot be loaded"):
        encode_texts(["a"], f"open_clip:counterpoint-tiny/{tmp_path / 'weights.pt'}", device="cpu")


def test_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match=r"counterpoint\[clip\]"):
        encode_texts(["a"], "open_clip:ViT-B-32/openai", device="cpu")


def test_names():
    assert clip_name("open_clip:hf-hub:laion/CLIP") == ("hf-hub:laion/CLIP", None)
    assert clip_name("open_clip:ViT-B-32/./mine.pt") == ("ViT-B-32", "./mine.pt")
