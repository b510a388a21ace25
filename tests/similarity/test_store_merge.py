"""Stores of parts, as one: the same graph as that of all at once."""

import numpy as np
import pytest
import torch
from pictures import refused
from store_encoders import Hashed

from counterpoint.similarity import build_store, merge_stores

TEXTS = [f"caption {i % 37}" for i in range(90)]
KEYS = [f"{i}.png" for i in range(90)]


def part(folder, start, stop, texts=TEXTS, encoder=None, **words):
    words = {"chunk_rows": 8, "data": f"{start} to {stop}", **words}
    return build_store(folder, KEYS[start:stop], texts[start:stop], encoder=encoder or Hashed(), **words)


def test_parts_are_the_whole(tmp_path):
    whole = part(tmp_path / "whole", 0, 90)
    parts = [part(tmp_path / f"{i}", *bounds) for i, bounds in enumerate([(0, 40), (30, 60), (60, 90)])]
    merged = merge_stores(tmp_path / "all", parts)
    merged.check()
    assert (merged.manifest.samples, merged.manifest.distinct) == (90, 37)
    assert merged.manifest.keys_sha256 == whole.manifest.keys_sha256
    assert merged.manifest.data == "0 to 40 + 30 to 60 + 60 to 90"
    ids = torch.arange(90)
    assert torch.allclose(merged.graph(KEYS).batch(ids), whole.graph().batch(ids), atol=1e-6)
    assert (merged.graph().batch(ids)[0, [37, 74]] == 1).all()
    again = merge_stores(tmp_path / "all", parts)
    assert again.manifest == merged.manifest
    assert np.load(merged.path / "vectors.npy").shape == (37, 16)


def test_parts_that_do_not_fit(tmp_path):
    a = part(tmp_path / "a", 0, 40)
    for name, other, told in (
        ("b", {"encoder": Hashed("2")}, ("revision", "'1'", "'2'")),
        ("c", {"templates": ["a {}"]}, ("templates", "('a {}',)")),
        ("d", {"encoder": Hashed(width=8)}, ("width", "16", "8")),
        ("e", {"text": "alt"}, ("text", "'alt'")),
    ):
        with refused("cannot be merged", *told):
            merge_stores(tmp_path / "all", [a, part(tmp_path / name, 40, 90, **other)])
    changed = part(tmp_path / "f", 30, 60, texts=[f"{text}!" for text in TEXTS])
    with refused("'30.png'", "one text", "another"):
        merge_stores(tmp_path / "all", [a, changed])
    with refused("at least two"):
        merge_stores(tmp_path / "all", [a])
    with refused("one of the stores"):
        merge_stores(a.path, [a, changed], overwrite=True)
    assert not (tmp_path / "all").exists()


def test_one_folder_of_a_model_in_two_places(tmp_path):
    def named(name, revision="1"):
        encoder = Hashed(revision)
        encoder.name = name
        return encoder

    for k, (ours, theirs, revision, fits) in enumerate(
        (
            ("/mnt/a/bert", "~/bert", "1", True),
            ("hf:/mnt/a/bert?pooling=mean", "hf:../bert?pooling=mean", "1", True),
            ("hf:/mnt/a/bert?pooling=mean", "hf:/mnt/a/bert?pooling=cls", "1", False),
            ("/mnt/a/bert", "/mnt/a/bart", "1", False),
            ("a/bert", "b/bert", "1", False),
            ("/mnt/a/bert", "/mnt/b/bert", "2", False),
        )
    ):
        a = part(tmp_path / f"a{k}", 0, 40, encoder=named(ours))
        b = part(tmp_path / f"b{k}", 40, 90, encoder=named(theirs, revision))
        if fits:
            assert merge_stores(tmp_path / f"all{k}", [a, b]).manifest.encoder == ours
        else:
            with refused("cannot be merged", "encoder"):
                merge_stores(tmp_path / f"all{k}", [a, b])


def test_one_text_with_two_vectors_is_refused(tmp_path):
    class Other(Hashed):
        def __call__(self, texts):
            return super().__call__([f"other {text}" for text in texts])

    a, b = part(tmp_path / "a", 0, 40), part(tmp_path / "b", 40, 90, encoder=Other())
    with refused("one text has two vectors"):
        merge_stores(tmp_path / "all", [a, b])


@pytest.mark.parametrize("overwrite", [False, True])
def test_another_store_in_the_way(tmp_path, overwrite):
    parts = [part(tmp_path / "a", 0, 40), part(tmp_path / "b", 40, 90)]
    part(tmp_path / "all", 0, 10)
    if overwrite:
        assert len(merge_stores(tmp_path / "all", parts, overwrite=True)) == 90
    else:
        with refused("holds another store", "samples: 90 against 10"):
            merge_stores(tmp_path / "all", parts)


def test_a_damaged_part_is_not_merged(tmp_path):
    parts = [part(tmp_path / "a", 0, 40), part(tmp_path / "b", 40, 90)]
    file = parts[0].path / "vectors.npy"
    content = bytearray(file.read_bytes())
    content[128 + 2 * 16 * 12] ^= 1  # neither in the first chunk nor in the last
    file.write_bytes(content)
    with refused("damaged", "rows 8 to 15"):
        merge_stores(tmp_path / "all", parts)
    assert not (tmp_path / "all").exists()
