"""Zero-shot accuracy and retrieval, against counts made by hand and slow loops."""

import zlib

import pytest
import torch
from pictures import refused

from counterpoint.data.samples import Labels, Samples
from counterpoint.evaluate import Features, retrieval, zero_shot
from counterpoint.evaluate.zero_shot import (
    IMAGENET_ENDS,
    SEVEN,
    class_vectors,
    imagenet_names,
    templates,
)

NAMES = ["red_fox", "dog", "cat", "owl", "ant", "bee"]


def embedding(d=16, seed=0):
    """A random vector per text, always the same one."""
    told = {}

    def embed(texts):
        for text in texts:
            generator = torch.Generator().manual_seed(zlib.crc32(text.encode()) + seed)
            told.setdefault(text, torch.randn(d, generator=generator))
        return torch.stack([told[text] for text in texts])

    return embed, told


def pictures(n=50, d=16, layer="z", h=None):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(-1, len(NAMES), (n,), generator=generator)
    h = torch.randn(n, d, generator=generator) if h is None else h
    return Features(h, [str(i) for i in range(n)], {"animal": Labels(y, NAMES)}, "zoo", layer)


@pytest.mark.parametrize("sentences", ["photo", "clip7", ["a {} here", "no {}"]])
def test_against_a_slow_loop(sentences):
    embed, told = embedding()
    test = pictures()
    results = zero_shot(test, embed, sentences=sentences, k=(1, 3, 6))
    right = dict.fromkeys((1, 3, 6), 0)
    rows = [i for i in range(50) if test.labels["animal"].values[i] >= 0]
    for i in rows:
        scores = []
        for name in NAMES:
            unit = [told[t.replace("{}", name.replace("_", " "))] for t in templates(sentences)]
            mean = sum(v.double() / v.double().norm() for v in unit)
            scores.append(float(torch.cosine_similarity(mean, test.h[i].double(), dim=0)))
        order = sorted(range(6), key=lambda c: -scores[c])
        for k in right:
            right[k] += int(test.labels["animal"].values[i]) in order[:k]
    assert [result.value for result in results] == pytest.approx([right[k] / len(rows) for k in (1, 3, 6)])
    assert results[2].value == 1
    assert {result.n for result in results} == {len(rows)}
    assert results[0].settings["test_unlabelled"] == 50 - len(rows)
    assert 0 < results[0].value < results[1].value < 1


def test_other_names_for_the_classes():
    """They take the place of the column's own: with these turned round every picture has another class."""
    embed, _ = embedding()
    h = class_vectors(embed, NAMES, templates("photo"))[pictures().labels["animal"].values].float()
    turned = zero_shot(pictures(h=h), embed, k=1, names=[*NAMES[1:], NAMES[0]])[0]
    own = zero_shot(pictures(h=h), embed, k=1)[0]
    assert (own.value, turned.value) == (1, 0)
    assert own.settings["names_sha256"] != turned.settings["names_sha256"]
    with refused("5 names for the 6 classes of 'animal'"):
        zero_shot(pictures(), embed, names=NAMES[1:])


def test_names_of_imagenet_are_for_its_classes_alone():
    pytest.importorskip("open_clip")
    first, last = IMAGENET_ENDS
    ids = [first, *(f"n{number:08}" for number in range(2_000_000, 2_000_998)), last]
    names = imagenet_names(ids)
    assert (names[0], names[134], names[517], names[-1]) == (
        "tench",
        "crane bird",
        "construction crane",
        "toilet paper",
    )
    assert len(set(names)) == 998  # "missile" and "sunglasses" twice, as published
    for wrong in ([], ids[:-1], [last, *ids[1:-1], first], [*ids[:-1], "n15075142"]):
        with refused("ImageNet's 1,000 classes"):
            imagenet_names(wrong)


def test_a_collapsed_encoder_scores_nothing():
    embed, _ = embedding()
    flat = pictures(h=torch.ones(50, 16))
    assert zero_shot(flat, lambda texts: torch.ones(len(texts), 16), k=(1, 5))[1].value == 0
    assert zero_shot(flat, embed, k=1)[0].value < 0.5


def test_other_sentences_are_another_question():
    embed, _ = embedding()
    asked = {
        zero_shot(pictures(), embed, sentences=s, k=1)[0].identity for s in ("photo", ["a {}"], ["the {}"])
    }
    assert len(asked) == 3


def test_templates():
    assert templates("clip7") == list(SEVEN)
    assert class_vectors(embedding()[0], NAMES, templates("clip7")).shape == (6, 16)
    pytest.importorskip("open_clip")
    eighty = templates("imagenet80")
    assert (len(eighty), len(set(eighty))) == (80, 80)
    assert set(SEVEN) <= set(eighty)
    assert all(sentence.count("{}") == 1 for sentence in eighty)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sentences": "phto"}, "did you mean 'photo'"),
        ({"sentences": ["a photo"]}, "must have one {}"),
        ({"sentences": []}, "no entry"),
        ({"k": 7}, "between 1 and the 6 classes"),
        ({"column": "colour"}, "no label column 'colour'"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        zero_shot(pictures(), embedding()[0], **words)


def test_layers_and_widths():
    with pytest.raises(ValueError, match="layer 'z'"):
        zero_shot(pictures(layer="h"), embedding()[0])
    with pytest.raises(ValueError, match="in 16 dimensions, texts in 8"):
        zero_shot(pictures(), embedding(d=8)[0])
    with pytest.raises(ValueError, match="layer 'z'"):
        retrieval(pictures(layer="h"), None, None)


def test_retrieval_with_several_captions_against_a_slow_loop():
    n = 12
    texts = [[f"{i}-{k}" for k in range(1 + i % 3)] for i in range(n)]
    samples = Samples("s", [f"p{i}" for i in range(n)], lambda i: None, all_captions=texts)
    embed, told = embedding(d=4)
    # In another order than that of the samples, and without one of them.
    order = [5, 0, 1, 11, 2, 3, 4, 6, 7, 9, 10]
    h = torch.randn(len(order), 4, generator=torch.Generator().manual_seed(3))
    found = Features(h, [f"p{i}" for i in order], name="s", layer="z")
    results = {
        (r.metric, r.settings.get("k"), r.settings["direction"]): r for r in retrieval(found, samples, embed)
    }
    captions = [(row, told[text]) for row, i in enumerate(order) for text in texts[i]]

    def cosine(a, b):
        return float(torch.cosine_similarity(a.double(), b.double(), dim=0))

    for k in (1, 5, 10):
        any_of = sum(
            any(row == own for own, _ in sorted(captions, key=lambda c: -cosine(h[row], c[1]))[:k])
            for row in range(len(order))
        )
        its_one = sum(
            row in sorted(range(len(order)), key=lambda r: -cosine(h[r], vector))[:k]
            for row, vector in captions
        )
        assert results["recall", k, "picture to caption"].value == pytest.approx(any_of / len(order))
        assert results["recall", k, "caption to picture"].value == pytest.approx(its_one / len(captions))
    assert results["recall", 1, "caption to picture"].n == len(captions)
    assert ("assignment", None, "one to one") in results
    assert results["recall", 1, "picture to caption"].settings["column"] == "caption"
