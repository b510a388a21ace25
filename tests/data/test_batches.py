import random

import numpy as np
import pytest
import torch
from PIL import Image

from counterpoint.data import batches
from counterpoint.data.batches import batch_source, plain_batches
from counterpoint.data.pil_views import picture_transform
from counterpoint.data.samples import Samples
from counterpoint.data.shapes import shapes
from counterpoint.data.views import ViewSpec, view_spec

SMALL = view_spec("simclr", size=16)


def noise(i, width, height):
    values = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def on_disk(n=23, bad=()):
    """Pictures of many sizes, decoded one by one; those in `bad` fail as a damaged file does."""

    def picture(i):
        if i in bad:
            raise OSError(f"image file is truncated\n({i} bytes not processed)")
        return noise(i, 30 + i, 40)

    return Samples("disk", [f"pic-{i}.jpg" for i in range(n)], picture)


def in_memory(n=23, side=20):
    pictures = torch.stack(
        [torch.from_numpy(np.asarray(noise(i, side, side)).copy()).permute(2, 0, 1) for i in range(n)]
    )
    return Samples("memory", [str(i) for i in range(n)], lambda i: noise(i, side, side), tensor=pictures)


def all_of(iterator):
    return [(batch.ids, batch.views) for batch in iterator]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a_ids, b_ids) and all(torch.equal(a, b) for a, b in zip(a_views, b_views, strict=True))
        for (a_ids, a_views), (b_ids, b_views) in zip(one, other, strict=True)
    )


def global_states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


BOTH = pytest.mark.parametrize("samples", [on_disk(), in_memory()], ids=["files", "memory"])


@BOTH
def test_an_epoch_shows_samples_once_in_whole_batches(samples):
    source = batch_source(samples, view_spec("simclr", size=16, count=3), 5, workers=0)
    assert source.steps_per_epoch == 4
    found = all_of(source.epoch(0))
    ids = torch.cat([ids for ids, _ in found])
    assert len(ids) == len(ids.unique()) == 20
    assert ids.device.type == "cpu"
    for _, views in found:
        assert [(view.shape, view.dtype) for view in views] == [((5, 3, 16, 16), torch.float32)] * 3
        assert not torch.equal(views[0], views[1])


@BOTH
def test_the_last_short_batch_is_given_when_asked_for(samples):
    source = batch_source(samples, SMALL, 5, workers=0, drop_last=False)
    found = all_of(source.epoch(0))
    assert source.steps_per_epoch == len(found) == 5
    assert found[-1][1][0].shape == (3, 3, 16, 16)
    assert sorted(torch.cat([ids for ids, _ in found]).tolist()) == list(range(23))


@BOTH
def test_a_resumed_epoch_gives_the_tail_bit_for_bit(samples):
    whole = all_of(batch_source(samples, SMALL, 5, seed=3, workers=0).epoch(2))
    for start in range(5):
        again = batch_source(samples, SMALL, 5, seed=3, workers=0)
        assert equal(all_of(again.epoch(2, start=start)), whole[start:])


@BOTH
def test_order_and_views_change_with_seed_and_epoch(samples):
    first = all_of(batch_source(samples, SMALL, 5, seed=0, workers=0).epoch(0))
    for seed, epoch in ((0, 1), (1, 0)):
        other = all_of(batch_source(samples, SMALL, 5, seed=seed, workers=0).epoch(epoch))
        assert not torch.equal(torch.cat([ids for ids, _ in first]), torch.cat([ids for ids, _ in other]))
    by_id = {epoch: {} for epoch in (0, 1)}
    for epoch in by_id:
        for ids, views in all_of(batch_source(samples, SMALL, 23, workers=0).epoch(epoch)):
            by_id[epoch].update(zip(ids.tolist(), views[0], strict=True))
    assert not any(torch.equal(by_id[0][i], by_id[1][i]) for i in range(23))


def test_any_number_of_workers_gives_the_same_batches():
    found = {}
    for workers in (0, 1, 2):
        source = batch_source(on_disk(), SMALL, 5, seed=1, workers=workers)
        found[workers] = all_of(source.epoch(1))
        assert equal(all_of(source.epoch(1, start=3)), found[workers][3:])
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


@BOTH
@pytest.mark.parametrize("processes", [2, 3])
def test_the_shares_of_processes_are_the_batch_of_one(samples, processes):
    spec = view_spec("simclr", size=16)
    whole = all_of(batch_source(samples, spec, 7, seed=1, workers=0).epoch(1))
    shares = [
        all_of(batch_source(samples, spec, 7, seed=1, workers=0, share=(k, processes)).epoch(1))
        for k in range(processes)
    ]
    for (ids, views), *parts in zip(whole, *shares, strict=True):
        assert torch.equal(torch.cat([own for own, _ in parts]), ids)
        assert max(len(own) for own, _ in parts) - min(len(own) for own, _ in parts) <= 1
        for k, view in enumerate(views):
            torch.testing.assert_close(torch.cat([own[k] for _, own in parts]), view, rtol=0, atol=1e-5)


def test_shares_of_paired_views_and_of_pictures_that_stay_off_the_device():
    samples = shapes("train", count=40, size=16, camera="both")
    spec = ViewSpec(size=16, pair_by="camera", flip=0.5)
    whole = all_of(batch_source(samples, spec, 6, workers=0).epoch(0))
    for other_device in (False, True):
        shares = [batch_source(samples, spec, 6, workers=0, share=(k, 2)) for k in range(2)]
        for source in shares if other_device else []:
            source.device = torch.device(
                "cpu", 0
            )  # not equal to that of the pictures: they are brought there
        parts = [all_of(source.epoch(0)) for source in shares]
        for (ids, views), *own in zip(whole, *parts, strict=True):
            assert torch.equal(torch.cat([i for i, _ in own]), ids)
            for k, view in enumerate(views):
                torch.testing.assert_close(torch.cat([v[k] for _, v in own]), view, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"share": (2, 2)}, r"share must be \(k, m\) with k in 0..m-1, got \(2, 2\)"),
        ({"share": (0, 9)}, "batch_size=7 is too small to share among 9 processes"),
        ({"share": (0, 2), "drop_last": False}, "needs drop_last=True"),
    ],
)
def test_shares_out_of_range_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        batch_source(in_memory(), SMALL, 7, workers=0, **arguments)


@BOTH
def test_two_epochs_read_side_by_side_do_not_disturb_each_other(samples):
    source = batch_source(samples, SMALL, 5, workers=0)
    alone = all_of(source.epoch(0)), all_of(source.epoch(1))
    side_by_side = list(zip(source.epoch(0), source.epoch(1), strict=True))
    for which in range(2):
        assert equal([(pair[which].ids, pair[which].views) for pair in side_by_side], alone[which])


@BOTH
@pytest.mark.parametrize("workers", [0, 1])
def test_global_generators_are_left_alone_and_have_no_say(samples, workers):
    torch.manual_seed(0)
    first = all_of(batch_source(samples, SMALL, 5, workers=workers).epoch(0))
    torch.manual_seed(1)
    random.seed(1)
    before = global_states()
    second = all_of(batch_source(samples, SMALL, 5, workers=workers).epoch(0))
    list(plain_batches(samples, SMALL.plain(), 5, workers))
    assert global_states() == before
    assert equal(first, second)


def test_views_from_files_are_those_of_the_picture_transform():
    samples = on_disk()
    source = batch_source(samples, SMALL, 23, seed=5, workers=0)
    ((ids, views),) = all_of(source.epoch(0))
    transform = picture_transform(SMALL)
    for row, i in enumerate(ids.tolist()[:6]):
        torch.manual_seed(batches._seed(batches.SAMPLE, 5, 0, i))
        for view in views:
            torch.testing.assert_close(view[row], transform(samples.picture(i)), atol=1e-5, rtol=0)


def test_large_pictures_in_memory_go_through_the_picture_transform():
    large = in_memory(4, side=66)
    plain = Samples(large.name, large.keys, large.picture)
    assert equal(
        all_of(batch_source(large, SMALL, 4, workers=0).epoch(0)),
        all_of(batch_source(plain, SMALL, 4, workers=0).epoch(0)),
    )


def test_fewer_samples_than_a_batch_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="has 23 samples, less than one batch of 24"):
        batch_source(on_disk(), SMALL, 24)
    assert batch_source(on_disk(), SMALL, 24, drop_last=False).steps_per_epoch == 1
    with pytest.raises(ValueError, match="has no samples"):
        batch_source(on_disk(0), SMALL, 1, drop_last=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_picture_stops_by_name_in_one_line(workers):
    source = batch_source(on_disk(bad=[7]), SMALL, 5, workers=workers, drop_last=False)
    with pytest.raises(
        ValueError, match=r"'pic-7\.jpg' cannot be read: image file is truncated \(7 bytes"
    ) as error:
        all_of(source.epoch(0))
    assert "\n" not in str(error.value)
    assert "on_error='skip'" in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_pictures_are_left_out_and_counted_by_key(workers):
    bad = [2, 7, 11]
    source = batch_source(on_disk(bad=bad), SMALL, 5, workers=workers, drop_last=False, on_error="skip")
    for epoch in (0, 1):
        ids = torch.cat([ids for ids, _ in all_of(source.epoch(epoch))])
        assert sorted(ids.tolist()) == [i for i in range(23) if i not in bad]
    assert sorted(source.skipped) == ["pic-11.jpg", "pic-2.jpg", "pic-7.jpg"]
    for batch in source.epoch(0):
        assert all(len(view) == len(batch.ids) for view in batch.views)


def test_the_other_samples_do_not_notice_a_skipped_one():
    whole = batch_source(on_disk(), SMALL, 23, workers=0)
    holed = batch_source(on_disk(bad=[4]), SMALL, 23, workers=0, on_error="skip")
    ((ids, views),), ((ids2, views2),) = all_of(whole.epoch(0)), all_of(holed.epoch(0))
    kept = ids != 4
    assert torch.equal(ids[kept], ids2)
    assert torch.equal(views[0][kept], views2[0])


def test_a_batch_of_only_bad_pictures_is_refused():
    source = batch_source(on_disk(4, bad=range(4)), SMALL, 2, workers=0, on_error="skip")
    with pytest.raises(ValueError, match="no picture of a batch of 2 can be read; the first: picture 'pic-"):
        all_of(source.epoch(0))


def test_a_reason_that_names_the_picture_is_left_as_it_is():
    def picture(i):
        raise ValueError(f"picture '{i}' cannot be read: it is empty (0 bytes)" if i else "bad row 0 of 2")

    for i, words in enumerate(
        ("picture '0' cannot be read: bad row 0 of 2", "picture '1' cannot be read: it is")
    ):
        samples = Samples("two", ["0", "1"], picture).subset([i])
        with pytest.raises(ValueError, match="cannot be read") as error:
            all_of(batch_source(samples, SMALL, 1, workers=0).epoch(0))
        assert str(error.value).startswith(words)
        assert str(error.value).count("cannot be read") == 1


def test_a_picture_that_is_not_rgb_is_named():
    samples = Samples("grey", ["a.png"], lambda i: Image.new("L", (20, 20)))
    with pytest.raises(ValueError, match=r"'a\.png' cannot be read: it has mode L, not RGB"):
        all_of(batch_source(samples, SMALL, 1, workers=0).epoch(0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"on_error": "ignore"}, "on_error='ignore' is not allowed"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words) as error:
        batch_source(on_disk(), SMALL, **{"batch_size": 5, **arguments})
    assert "\n" not in str(error.value)


@BOTH
def test_epoch_and_start_out_of_range_are_refused_at_the_call(samples):
    source = batch_source(samples, SMALL, 5)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        source.epoch(-1)
    for start in (-1, 5):
        with pytest.raises(ValueError, match=rf"start must be in 0\.\.4, the steps of an epoch, got {start}"):
            source.epoch(0, start=start)


def test_a_tensor_of_another_kind_is_refused():
    samples = Samples("odd", ["a"], lambda i: noise(i, 8, 8), tensor=torch.zeros(1, 8, 8, 3))
    with pytest.raises(ValueError, match=r"must be \(n, 3, h, w\) uint8, got \(1, 8, 8, 3\) torch.float32"):
        batch_source(samples, SMALL, 1)


@BOTH
@pytest.mark.parametrize("workers", [0, 2])
def test_plain_batches_show_every_sample_once_in_order(samples, workers):
    spec = ViewSpec(size=16, count=1, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    found = list(plain_batches(samples, spec, 5, workers))
    assert torch.equal(torch.cat([ids for ids, _ in found]), torch.arange(23))
    assert [len(x) for _, x in found] == [5, 5, 5, 5, 3]
    x = torch.cat([x for _, x in found])
    for i in (0, 9, 22):
        # Pillow rounds to bytes after each of its two passes, pictures in memory are not rounded at all.
        one = picture_transform(spec)(samples.picture(i))
        torch.testing.assert_close(x[i], one, atol=1.01 / 255 / 0.2, rtol=0)


def test_plain_batches_refuse_a_random_spec():
    for spec in (SMALL, ViewSpec(size=16), ViewSpec(size=16, count=1, flip=0.5)):
        with pytest.raises(ValueError, match=r"use spec\.plain\(\)"):
            plain_batches(in_memory(), spec, 5)
    assert len(list(plain_batches(in_memory(), SMALL.plain(), 5))) == 5


def test_plain_batches_stop_at_or_skip_bad_pictures():
    samples = on_disk(6, bad=[3])
    with pytest.raises(ValueError, match=r"pic-3\.jpg"):
        list(plain_batches(samples, SMALL.plain(), 4, workers=0))
    ids = torch.cat([ids for ids, _ in plain_batches(samples, SMALL.plain(), 4, workers=0, on_error="skip")])
    assert ids.tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("samples", [on_disk(4), in_memory(4)], ids=["files", "memory"])
def test_leaving_an_epoch_early_is_clean(samples):
    source = batch_source(samples, SMALL, 2, workers=1)
    next(source.epoch(0))
    assert equal(all_of(source.epoch(0)), all_of(source.epoch(0)))
