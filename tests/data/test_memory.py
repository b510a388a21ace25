"""Decoding into memory: when it happens, what it gives, and what bad pictures do."""

import threading

import numpy as np
import pytest
import torch
from pictures import refused
from PIL import Image
from real_data import real_data

from counterpoint.data.memory import in_memory, tensor_picture
from counterpoint.data.parquet import parquet
from counterpoint.data.samples import Labels, Samples


def made(n, sizes=None, bad=()):
    """Pictures whose first pixel tells their index."""

    def picture(i):
        if i in bad:
            raise ValueError(f"picture 'key {i}' cannot be read: made so")
        return Image.new("RGB", (sizes or {}).get(i, (6, 4)), (i % 256, i // 256, 7))

    return Samples(
        "made",
        [f"key {i}" for i in range(n)],
        picture,
        {"label": Labels(torch.arange(n) % 3, ["a", "b", "c"])},
        [f"caption {i}" for i in range(n)],
    )


def indices(samples):
    return (samples.tensor[:, 0, 0, 0].int() + 256 * samples.tensor[:, 1, 0, 0].int()).tolist()


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 1000])
@pytest.mark.parametrize("threads", [1, 3, None])
def test_every_picture_in_its_row(n, threads):
    kept, left_out = in_memory(made(n), threads=threads)
    assert kept.tensor.shape == (n, 3, 4, 6)
    assert kept.tensor.dtype == torch.uint8
    assert kept.tensor.is_contiguous()
    assert left_out == []
    assert indices(kept) == list(range(n))
    assert kept.picture(n - 1).tobytes() == made(n).picture(n - 1).tobytes()
    assert kept.captions == made(n).captions


def test_large_or_uneven_pictures_stay_as_they_are():
    for samples in (
        made(300, dict.fromkeys(range(300), (65, 4))),
        made(300, {0: (5, 5)}),
        made(300, {299: (5, 5)}),
        made(300, {137: (4, 6)}),
    ):
        assert in_memory(samples) == (samples, [])
    assert in_memory(made(5), largest=6)[0].tensor is not None
    assert in_memory(made(5), largest=5)[0].tensor is None


def test_large_pictures_cost_a_few_looks():
    seen = []
    large = made(5000, dict.fromkeys(range(5000), (100, 100)))
    watched = Samples("watched", large.keys, lambda i: (seen.append(i), large.picture(i))[1])
    assert in_memory(watched)[0] is watched
    assert len(seen) <= 16
    assert max(seen) > 4000


def test_nothing_to_do():
    empty = Samples("empty", [], lambda i: Image.new("RGB", (1, 1)))
    assert in_memory(empty) == (empty, [])
    kept, _ = in_memory(made(3))
    assert in_memory(kept)[0] is kept


def test_stop_names_the_first_bad_picture():
    for _ in range(3):
        with refused("picture 'key 131' cannot be read"):
            in_memory(made(1000, bad={131, 132, 400, 999}), threads=4)


@pytest.mark.parametrize("bad", [{0}, {999}, {131, 132, 400}, set(range(0, 1000, 2)), set(range(500))])
def test_skip_leaves_bad_pictures_out(bad):
    kept, left_out = in_memory(made(1000, bad=bad), on_error="skip", threads=4)
    good = [i for i in range(1000) if i not in bad]
    assert left_out == [f"key {i}" for i in sorted(bad)]
    assert indices(kept) == good
    assert kept.keys == [f"key {i}" for i in good]
    assert kept.captions == [f"caption {i}" for i in good]
    assert kept.column().values.tolist() == [i % 3 for i in good]
    assert kept.picture(1).getpixel((0, 0)) == (good[1] % 256, good[1] // 256, 7)


def test_no_picture_at_all_is_refused():
    with refused("data 'made'", "none of the 40 pictures"):
        in_memory(made(40, bad=set(range(40))), on_error="skip")
    with refused("on_error='no'"):
        in_memory(made(2), on_error="no")


def test_other_errors_are_not_taken_for_bad_pictures():
    def picture(i):
        raise KeyError(i)

    with pytest.raises(KeyError):
        in_memory(Samples("x", ["a"], picture), on_error="skip")


def test_threads_work_at_the_same_time():
    barrier = threading.Barrier(2, timeout=10)

    def picture(i):
        if i in (0, 128) and threading.current_thread() is not threading.main_thread():
            barrier.wait()  # passes only while the other block is being decoded too
        return Image.new("RGB", (2, 2))

    kept, _ = in_memory(Samples("x", [str(i) for i in range(256)], picture), threads=2)
    assert kept.tensor.shape == (256, 3, 2, 2)


def test_real_cifar_is_pixel_for_pixel():
    samples = parquet(real_data("cifar100"), split="test").subset(range(300))
    kept, left_out = in_memory(samples)
    assert left_out == []
    for i in (0, 1, 299):
        pixels = np.asarray(samples.picture(i))
        assert np.array_equal(kept.tensor[i].permute(1, 2, 0).numpy(), pixels)
        assert np.array_equal(np.asarray(tensor_picture(kept.tensor, i)), pixels)
        assert np.array_equal(np.asarray(kept.picture(i)), pixels)
