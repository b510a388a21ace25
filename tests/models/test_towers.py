"""Text towers: what they read, what they give, and that pictures and texts end in one space."""

import pytest
import torch
from text_models import save_tiny_encoder

from counterpoint.models.encoder import build_encoder
from counterpoint.models.text import TextTransformer
from counterpoint.models.tokenizers import build_tokenizer
from counterpoint.models.towers import build_towers

TEXTS = ["a dog", "two dogs play on a wide beach", "ünïcode 狗 🐕"]


def small(**words):
    words = {"width": 16, "layers": 2, "heads": 2, "max_length": 16, "seed": 0, **words}
    return build_towers(build_encoder("conv4", head=(8,), seed=0), **words)


@pytest.mark.parametrize("pooling", ["eot", "mean"])
def test_padding_changes_nothing(pooling):
    tower = TextTransformer(50, 0, width=16, layers=2, heads=4, max_length=24, pooling=pooling)
    short = torch.tensor([[1, 7, 9, 2], [1, 4, 2, 0]])
    long = torch.nn.functional.pad(short, (0, 12))
    torch.testing.assert_close(tower(short), tower(long))
    # Alone, a text gives what it gives beside a longer one.
    torch.testing.assert_close(tower(short)[1:], tower(torch.tensor([[1, 4, 2]])))
    # Words count, and so does their order.
    assert not torch.allclose(tower(torch.tensor([[1, 7, 9, 2]])), tower(torch.tensor([[1, 9, 7, 2]])))


def test_eot_is_causal_and_mean_is_not():
    seen = {}
    for pooling in ("eot", "mean"):
        torch.manual_seed(0)
        tower = TextTransformer(50, 0, width=16, layers=2, heads=4, max_length=8, pooling=pooling)
        out = []
        tower.layers.register_forward_hook(lambda module, args, result, out=out: out.append(result))
        for end in (5, 6):
            tower(torch.tensor([[1, 7, end]]))
        seen[pooling] = torch.equal(out[0][:, :2], out[1][:, :2])
    assert seen == {"eot": True, "mean": False}


def test_train_and_eval_mode_agree():
    # In eval mode torch takes another path through its layers.
    tower = small().text
    tokens = tower.tokenizer(TEXTS)
    trained = tower(tokens)[1]
    with torch.no_grad():
        torch.testing.assert_close(tower.eval()(tokens)[1], trained.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["wordpiece", "clip"])
def test_tokenizers(name):
    if name == "clip":
        pytest.importorskip("open_clip")
    tokenizer = build_tokenizer(name, max_length=16)
    tokens = tokenizer(TEXTS)
    assert tokens.dtype == torch.int64
    assert tokens.shape in {(3, 8), (3, 16)}
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < tokenizer.vocabulary
    end = tokens.max() if name == "clip" else torch.tensor(102)
    long = tokenizer(["word " * 10_000])
    assert long.shape == (1, 16)
    assert long[0, -1] == end
    assert build_tokenizer(name, max_length=8).digest == tokenizer.digest
    with pytest.raises(ValueError, match=r"texts\[1\] is None"):
        tokenizer(["a", None])


@pytest.mark.parametrize("words", [{}, {"pooling": "mean"}, {"tokenizer": "clip"}])
def test_captions_of_every_kind_are_embedded(words):
    if "tokenizer" in words:
        pytest.importorskip("open_clip")
    texts = [
        "", "x" * 10_000, "word " * 10_000, "一只狗在跑", "كلب يركض", "a\x00dog\x07\x1b[31m", "\u200b",
        "<|endoftext|> [SEP] [PAD]", "a\nphoto\r\nof\ta dog", "a dog", "a dog",
    ]  # fmt: skip
    z = small(**words).text.eval().embed(texts)
    assert torch.isfinite(z).all()
    torch.testing.assert_close(z[-1], z[-2])


def test_a_tokenizer_of_ones_own(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    marks = ["<pad>", "<start>", "<end>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 2)]
    )
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    towers = small(tokenizer=str(file))
    tokens = towers.text.tokenizer(["a dog"])
    assert tokens[0, 0] == 1
    assert towers.text.embed(TEXTS).shape == (3, 8)
    # Weights of a tower that reads other numbers are refused.
    with pytest.raises(ValueError, match="another tokenizer"):
        small().load_state_dict(towers.state_dict())
    file.write_text('{"model": 3}')
    with pytest.raises(ValueError, match="cannot be read"):
        build_tokenizer(str(file))
    with pytest.raises(ValueError, match="there is no file"):
        build_tokenizer(str(tmp_path / "absent.json"))


def test_one_call_gives_both_views_and_an_encoder_is_an_encoder():
    towers = small()
    x, tokens = torch.rand(3, 3, 16, 16), towers.text.tokenizer(TEXTS)
    h, z = towers.eval()(x, tokens)
    assert (h.shape, z.shape) == ((3, 64), (6, 8))
    torch.testing.assert_close(z[:3], towers(x)[1])
    torch.testing.assert_close(z[3:], towers.text(tokens)[1])
    torch.testing.assert_close(towers.text.embed(TEXTS, batch_size=2), z[3:], atol=1e-5, rtol=1e-4)
    # The pictures' weights are those of a run without a text tower.
    alone = build_encoder("conv4", head=(8,), seed=0).state_dict()
    assert all(torch.equal(value, towers.state_dict()[key]) for key, value in alone.items())
    assert torch.equal(small().text.backbone.token.weight, towers.text.backbone.token.weight)
    assert not torch.equal(small(seed=1).text.backbone.token.weight, towers.text.backbone.token.weight)


@pytest.mark.parametrize("trained", [True, False])
def test_a_tower_trained_elsewhere(tmp_path, trained):
    towers = small(backbone=str(save_tiny_encoder(tmp_path)), trained=trained)
    tower = towers.train().text
    assert tower.backbone.training is trained
    before = {key: value.clone() for key, value in tower.state_dict().items()}
    wanted = [p for p in towers.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(wanted, lr=1.0)
    _, z = towers(torch.rand(3, 3, 16, 16), tower.tokenizer(TEXTS))
    z[3:].square().sum().backward()
    optimizer.step()
    changed = {key for key, value in tower.state_dict().items() if not torch.equal(value, before[key])}
    assert any(key.startswith("head.") for key in changed)
    assert any(key.startswith("backbone.") for key in changed) is trained


def test_minilm_gives_its_sentence_vectors():
    from counterpoint.similarity import encode_texts

    tower = small(backbone="minilm", max_length=64, trained=False).text.eval()
    h, _ = tower(tower.tokenizer(TEXTS))
    torch.testing.assert_close(h, encode_texts(TEXTS), atol=1e-5, rtol=1e-4)


def test_open_clip_tower():
    pytest.importorskip("open_clip")
    tower = small(backbone="open_clip:RN50").text.eval()
    with torch.no_grad():
        h, z = tower(tower.tokenizer(TEXTS))
        assert (h.shape, z.shape) == ((3, 1024), (3, 8))
        # A text alone gives what it gives beside others.
        torch.testing.assert_close(tower(tower.tokenizer(TEXTS[:1]))[0], h[:1], atol=1e-4, rtol=1e-3)


def test_open_clip_names_that_cannot_be_had():
    pytest.importorskip("open_clip")
    for name, message in (("RN5", "no model 'RN5'"), ("roberta-ViT-B-32", "vocabulary that is downloaded")):
        with pytest.raises(ValueError, match=message):
            small(backbone=f"open_clip:{name}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"heads": 3}, "heads=3"),
        ({"pooling": "max"}, "allowed: eot, mean"),
        ({"tokenizer": "wordpeice"}, "did you mean 'wordpiece'"),
        ({"head": (16, 4)}, "ends with 4, that of pictures with 8"),
        ({"weights": "openai"}, "text weights are for open_clip:NAME"),
        ({"trained": False}, "must be trained"),
        ({"max_length": 2}, "at least 3"),
        ({"backbone": "./nowhere"}, "'./nowhere' cannot be loaded"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        small(**words)


def test_longer_texts_than_the_tower_takes():
    with pytest.raises(ValueError, match="9 tokens, this tower takes 8"):
        TextTransformer(50, 0, width=8, layers=1, heads=2, max_length=8)(torch.ones(1, 9, dtype=torch.int64))
