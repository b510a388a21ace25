"""One caption of each sample per epoch: which one is a function of seed, epoch and sample."""

from collections import Counter

import pytest
import torch
from PIL import Image
from real_data import real_data

from counterpoint.data.batches import batch_source
from counterpoint.data.captions import Captioned
from counterpoint.data.samples import Samples
from counterpoint.data.views import ViewSpec
from counterpoint.data.webdataset_shards import shards

SPEC = ViewSpec(size=8, count=1)


def samples(n=40, texts=5):
    several = [[f"{i}-{k}" for k in range(texts)] for i in range(n)]
    return Samples(
        "several",
        [str(i) for i in range(n)],
        lambda i: Image.new("RGB", (8, 8), (i, 0, 0)),
        captions=[one[0] for one in several],
        all_captions=several,
    )


def lengths(texts):
    return torch.tensor([[len(text)] for text in texts])


def captioned(seed=0, batch_size=8, data=None):
    data = data or samples()
    return Captioned(batch_source(data, SPEC, batch_size, seed=seed, workers=0), data, lengths, seed)


def drawn(source, epoch):
    return {i: text for b in source.epoch(epoch) for i, text in zip(b.ids.tolist(), b.captions, strict=True)}


def test_captions_are_those_of_the_samples_and_vary():
    source = captioned()
    counts = Counter()
    for epoch in range(40):
        for i, text in drawn(source, epoch).items():
            assert text.split("-")[0] == str(i)
            counts[text.split("-")[1]] += 1
    # 1,600 draws of five: all near 320.
    assert set(counts) == set("01234")
    assert all(240 < count < 400 for count in counts.values())


def test_the_draw_depends_on_seed_epoch_and_sample_alone():
    assert drawn(captioned(), 3) == drawn(captioned(batch_size=5), 3)
    assert drawn(captioned(), 3) != drawn(captioned(), 4)
    assert drawn(captioned(), 3) != drawn(captioned(seed=1), 3)
    whole, late = list(captioned().epoch(2)), list(captioned().epoch(2, start=3))
    assert [b.captions for b in whole[3:]] == [b.captions for b in late]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(whole[3:], late, strict=True))


def test_samples_keep_all_their_captions():
    kept = samples().subset([7, 3])
    assert list(kept.texts(1)) == [f"3-{k}" for k in range(5)]
    assert list(drawn(captioned(data=kept, batch_size=2), 0)) in ([0, 1], [1, 0])
    with pytest.raises(ValueError, match="2 lists of captions for 1 samples"):
        Samples("odd", ["a"], lambda i: None, all_captions=[["a"], ["b"]])
    bare = Samples("bare", ["a"], lambda i: Image.new("RGB", (8, 8)))
    with pytest.raises(ValueError, match="'bare' has no captions"):
        bare.texts(0)
    with pytest.raises(ValueError, match="'bare' has no captions"):
        captioned(data=bare, batch_size=1)


def test_real_shards_have_five_captions_a_picture():
    data = shards(real_data("captions"))
    assert {len(data.texts(i)) for i in range(len(data))} == {5}
    assert all(data.texts(i)[0] == data.captions[i] for i in range(len(data)))
