import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoint.data.shapes import shapes
from counterpoint.data.shapes_captions import (
    BACKGROUND_PHRASES,
    COLOUR_WORDS,
    OBJECT_WORDS,
    SIZE_WORDS,
    TEXTURE_PHRASES,
    TEXTURE_WORDS,
    captions,
)
from counterpoint.data.shapes_render import OUTLINES, render, view
from counterpoint.data.shapes_scenes import (
    BACKGROUNDS,
    COLOURS,
    OBJECTS,
    SIZES,
    TEXTURES,
    TIED,
    draw_scenes,
    scene_ids,
    uniform,
)

PAGE = Path(__file__).parents[2] / "docs" / "data" / "shapes.md"
CLASSES = {"object": 12, "colour": 10, "size": 3, "texture": 4, "background": 12}


def same(a, b):
    return (
        torch.equal(a.tensor, b.tensor)
        and list(a.keys) == list(b.keys)
        and a.captions == b.captions
        and all(torch.equal(a.labels[c].values, b.labels[c].values) for c in a.labels)
    )


def test_two_calls_give_the_same_bits():
    assert same(shapes(count=24, seed=3), shapes(count=24, seed=3))


@pytest.mark.parametrize("camera", [0, 1])
def test_a_sample_does_not_depend_on_the_count(camera):
    many = shapes(count=90, camera=camera)
    for count in (1, 7, 33):
        assert same(shapes(count=count, camera=camera), many.subset(range(count)))


@pytest.mark.parametrize("size", [17, 24, 64])
@pytest.mark.parametrize("camera", [0, 1])
def test_a_picture_does_not_depend_on_its_chunk(size, camera):
    scenes = draw_scenes("train", 50, seed=1)
    whole = render(scenes, size, camera, chunk_size=50)
    for chunk_size in (1, 7, 32):
        assert np.array_equal(render(scenes, size, camera, chunk_size), whole)


def test_a_known_picture_keeps_its_bits():
    """A figure in a report names the seed, so a seed must go on giving the same pixels."""
    tensor = shapes("test", count=2, seed=5, size=16).tensor
    assert tensor[0, :, 8, ::5].tolist() == [[100, 232, 228, 221], [148, 244, 229, 234], [169, 212, 221, 236]]


def test_seeds_and_splits_share_no_scene():
    ids = np.concatenate([scene_ids(split, 5000, seed) for split in ("train", "test") for seed in (0, 1, 2)])
    assert len(np.unique(ids)) == len(ids)
    train, test, other = shapes(count=40), shapes("test", count=40), shapes(count=40, seed=1)
    assert not torch.equal(train.tensor, test.tensor)
    assert not torch.equal(train.tensor, other.tensor)
    assert not set(train.keys) & set(test.keys)
    assert not set(train.keys) & set(other.keys)


def test_draws_are_uniform_and_streams_independent():
    ids = scene_ids("train", 20000, 0)
    a, b = uniform(ids, "one", 2), uniform(ids, "two", 2)
    draws = np.concatenate([a, b], axis=1).astype(np.float64)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.abs(draws.mean(0) - 0.5).max() < 4 / np.sqrt(12 * 20000)
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 4 / np.sqrt(20000)
    assert np.abs(np.corrcoef(draws[:-1].T, draws[1:].T)[:4, 4:]).max() < 4 / np.sqrt(20000)


def test_columns_come_in_their_order_and_the_object_is_the_default():
    samples = shapes(count=5)
    assert list(samples.labels) == [*CLASSES, "identity"]
    assert samples.column() is samples.labels["object"]
    assert {c: len(samples.column(c).names) for c in CLASSES} == CLASSES
    assert set(TIED) == set(OBJECTS)
    assert sorted(TIED.values()) == sorted(BACKGROUNDS)


@pytest.mark.parametrize("column", CLASSES)
def test_classes_are_balanced_and_independent_of_the_object(column):
    scenes = draw_scenes("train", 12000, seed=0)
    values = getattr(scenes, column)
    counts = np.bincount(values, minlength=CLASSES[column])
    assert chi_square(counts) < chi_square_bound(CLASSES[column] - 1)
    if column != "object":
        table = np.bincount(scenes.object * CLASSES[column] + values, minlength=12 * CLASSES[column])
        assert chi_square(table) < chi_square_bound(len(table) - 1)


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def chi_square_bound(freedom):
    """Wilson and Hilferty's upper point at 4 standard deviations."""
    return freedom * (1 - 2 / (9 * freedom) + 4 * (2 / (9 * freedom)) ** 0.5) ** 3


def names(text, phrases):
    """The classes of which a phrase stands in the text as whole words."""
    return {name for name, words in phrases.items() for w in words if w and re.search(rf"\b{w}\b", text)}


def test_captions_name_their_scene_and_no_other():
    scenes = draw_scenes("train", 4000, seed=0)
    for i, text in enumerate(captions(scenes)):
        assert names(text, OBJECT_WORDS) == {OBJECTS[scenes.object[i]]}, text
        assert names(text, COLOUR_WORDS) == {list(COLOURS)[scenes.colour[i]]}, text
        assert names(text, BACKGROUND_PHRASES) == {BACKGROUNDS[scenes.background[i]]}, text
        assert names(text, SIZE_WORDS) == {list(SIZES)[scenes.size[i]]}, text
        texture = TEXTURES[scenes.texture[i]]
        said = names(text, TEXTURE_WORDS) | names(text, TEXTURE_PHRASES)
        assert said == {texture} or (texture == "plain" and not said), text


def test_captions_read_as_english():
    texts = captions(draw_scenes("train", 4000, seed=0))
    for text in texts:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|  | ,|[\[\]{}]|^ | $", text), text
    # Of 17,280 kinds of scene, each with hundreds of wordings, few come twice.
    assert len(set(texts)) > 3900


def test_the_two_cameras_show_the_same_scenes():
    first, second = shapes(count=60), shapes(count=60, camera=1)
    for column in first.labels:
        assert torch.equal(first.labels[column].values, second.labels[column].values)
    assert first.captions == second.captions
    scene = [key.rsplit("/", 1)[0] for key in first.keys]
    assert scene == [key.rsplit("/", 1)[0] for key in second.keys]
    assert list(first.column("identity").names) == scene
    assert not set(first.keys) & set(second.keys)
    changed = (first.tensor.float() - second.tensor.float()).abs().mean(dim=(1, 2, 3))
    assert changed.min() > 5


def test_the_second_camera_keeps_the_object_in_the_picture():
    scenes = draw_scenes("train", 1000, seed=0)
    x, y, _ = view(scenes, 32, camera=1)
    gap = np.hypot(x - scenes.centre[:, 0, None, None], y - scenes.centre[:, 1, None, None])
    pixels = (gap < scenes.radius[:, None, None]).sum(axis=(1, 2))
    straight = np.pi * (16 * scenes.radius) ** 2
    assert (pixels / straight).min() > 0.6
    assert (pixels / straight).max() < 1.7


def test_the_first_camera_sees_the_whole_object():
    scenes = draw_scenes("train", 1000, seed=0)
    assert (np.abs(scenes.centre).max(axis=1) + scenes.radius).max() < 1


@pytest.mark.parametrize("asked", [0.0, 0.3, 0.9, 1.0])
def test_the_background_is_tied_as_often_as_asked(asked):
    n = 6000
    scenes = draw_scenes("train", n, seed=2, background_correlation=asked)
    tied = np.array([BACKGROUNDS.index(TIED[name]) for name in OBJECTS])[scenes.object] == scenes.background
    expected = asked + (1 - asked) / len(BACKGROUNDS)
    assert abs(tied.mean() - expected) <= 4 * (expected * (1 - expected) / n) ** 0.5


def test_recombine_takes_another_background_and_leaves_the_rest():
    plain = draw_scenes("test", 3000, seed=0, background_correlation=1.0)
    mixed = draw_scenes("test", 3000, seed=0, background_correlation=1.0, recombine=True)
    tied = np.array([BACKGROUNDS.index(TIED[name]) for name in OBJECTS])[plain.object]
    assert np.array_equal(plain.background, tied)
    assert not (mixed.background == tied).any()
    counts = np.bincount((mixed.background - tied) % 12, minlength=12)[1:]
    assert chi_square(counts) < chi_square_bound(10)
    for field in ("object", "colour", "size", "texture", "centre", "radius", "angle", "mirror"):
        assert np.array_equal(getattr(plain, field), getattr(mixed, field))


def test_recombined_pictures_show_the_same_object_on_another_background():
    plain = shapes("test", count=80, background_correlation=1.0)
    mixed = shapes("test", count=80, background_correlation=1.0, recombine=True)
    scenes = draw_scenes("test", 80, seed=0)
    x, y, _ = view(scenes, 64, camera=0)
    gap = np.hypot(x - scenes.centre[:, 0, None, None], y - scenes.centre[:, 1, None, None])
    solid = np.isin(scenes.object, [OBJECTS.index(name) for name in ("circle", "square", "hexagon")])
    inner = (gap < 0.5 * scenes.radius[:, None, None]) & solid[:, None, None]
    outer = gap > 1.3 * scenes.radius[:, None, None]
    differs = (plain.tensor != mixed.tensor).any(dim=1).numpy()
    assert inner.sum() > 500
    assert not differs[inner].any()
    assert differs[outer].mean() > 0.95


@pytest.mark.parametrize("camera", [0, 1])
def test_a_plain_object_has_its_named_colour(camera):
    scenes = draw_scenes("train", 3000, seed=0)
    hollow = [OBJECTS.index(name) for name in ("ring", "crescent", "bolt")]
    plain = scenes.texture == TEXTURES.index("plain")
    scenes = scenes.rows(np.flatnonzero(plain & ~np.isin(scenes.object, hollow)))
    pixels = render(scenes, 64, camera).astype(np.float32)
    x, y, _ = view(scenes, 64, camera)
    gap = np.hypot(x - scenes.centre[:, 0, None, None], y - scenes.centre[:, 1, None, None])
    core = (gap < 0.16 * scenes.radius[:, None, None])[:, None]
    mean = (pixels * core).sum(axis=(2, 3)) / core.sum(axis=(2, 3))
    palette = np.array(list(COLOURS.values()), dtype=np.float32)
    error = np.abs(mean - palette[scenes.colour]).mean(axis=1)
    nearest = np.linalg.norm(mean[:, None] - palette, axis=2).argmin(axis=1)
    assert len(scenes) > 400
    assert error.mean() < 25
    assert (nearest == scenes.colour).mean() > (0.98, 0.95)[camera]


@pytest.mark.parametrize("name", OBJECTS)
def test_outlines_fill_the_unit_circle_and_stay_within(name):
    axis = np.linspace(-1.5, 1.5, 301, dtype=np.float32)
    p, q = np.meshgrid(axis, axis)
    inside = OUTLINES[name](p, q) < 0
    reach = np.hypot(p, q)[inside]
    assert 0.88 < reach.max() <= 1.01
    assert 0.5 < inside.mean() * 9 < np.pi


def test_textures_show_in_the_pixels():
    """Within the object, a pattern has two tones and a plain one has not."""
    scenes = draw_scenes("train", 3000, seed=0)
    big = (scenes.size == 2) & np.isin(scenes.object, [0, 1, 8])
    scenes = scenes.rows(np.flatnonzero(big))
    pixels = render(scenes, 64, camera=0).astype(np.float32).mean(axis=1)
    x, y, _ = view(scenes, 64, camera=0)
    gap = np.hypot(x - scenes.centre[:, 0, None, None], y - scenes.centre[:, 1, None, None])
    spread = np.array([p[g < 0.6 * r].std() for p, g, r in zip(pixels, gap, scenes.radius, strict=True)])
    plain = scenes.texture == 0
    assert spread[plain].max() < 16
    assert spread[~plain].min() > 16


@pytest.mark.parametrize("size", [16, 33, 64, 100])
def test_any_size_from_16_up(size):
    samples = shapes(count=3, size=size)
    assert samples.tensor.shape == (3, 3, size, size)
    assert samples.tensor.dtype == torch.uint8
    assert samples.tensor.float().std() > 20


def test_the_picture_is_the_tensor():
    samples = shapes(count=4)
    picture = samples.picture(2)
    assert picture.mode == "RGB"
    assert np.array_equal(np.asarray(picture), samples.tensor[2].permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"split": "val"}, "split must be one of train, test, got 'val'"),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"count": 2.5}, "count must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"size": 15}, "size must be a whole number of at least 16, got 15"),
        ({"background_correlation": 1.01}, "background_correlation must lie in [0, 1], got 1.01"),
        ({"background_correlation": -0.1}, "background_correlation must lie in [0, 1]"),
        ({"background_correlation": float("nan")}, "background_correlation must lie in [0, 1], got nan"),
        ({"background_correlation": "high"}, "background_correlation must lie in [0, 1], got 'high'"),
        ({"camera": True}, "camera must be one of 0, 1 or both, got True"),
        ({"camera": 2}, "camera must be one of 0, 1 or both, got 2"),
    ],
)
def test_bad_input_is_refused_by_name(wrong, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        shapes(**{"count": 2, **wrong})


def test_the_examples_of_the_page_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried >= 10
    assert failed == 0


def test_the_page_names_every_class():
    text = PAGE.read_text(encoding="utf-8")
    for names_of_column in (OBJECTS, COLOURS, SIZES, TEXTURES, BACKGROUNDS):
        assert ", ".join(names_of_column) in text
