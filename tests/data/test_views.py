from pathlib import Path

import pytest
from pydantic import ValidationError

from counterpoint.data.views import PRESETS, STATISTICS, ViewSpec, view_spec


def test_every_field_says_what_it_is():
    assert all(field.description for field in ViewSpec.model_fields.values())


def test_presets_hold_the_published_values():
    simclr, small, mmcl, supcon, plain = (
        PRESETS[name] for name in ("simclr", "simclr_small", "mmcl_cifar", "supcon", "plain")
    )
    for spec in (simclr, small):
        assert spec.strengths == (0.8, 0.8, 0.8, 0.2)
    assert mmcl.strengths == (0.4, 0.4, 0.4, 0.1)
    for spec in (simclr, small, mmcl):
        assert (spec.crop_scale, spec.flip, spec.jitter_p, spec.grey_p) == ((0.08, 1.0), 0.5, 0.8, 0.2)
    assert [spec.blur_p for spec in PRESETS.values()] == [0.5, 0, 0.5, 0, 0]
    assert [spec.size for spec in PRESETS.values()] == [224, 32, 32, 224, 224]
    assert (supcon.auto_augment, supcon.jitters, supcon.flip) == ("imagenet", False, 0.5)
    assert (plain.count, plain.is_random) == (1, False)


def test_strength_scales_all_four():
    assert view_spec("simclr", jitter_strength=0.5).strengths == (0.4, 0.4, 0.4, 0.1)


@pytest.mark.parametrize(("size", "kernel"), [(8, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_blur_kernel_is_odd_and_near_a_tenth(size, kernel):
    assert ViewSpec(size=size).blur_kernel == kernel


def test_a_dump_reads_back_equal():
    for spec in PRESETS.values():
        assert ViewSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_plain_keeps_what_is_not_random():
    plain = view_spec("simclr", size=96, centre=0.875, interpolation="bicubic").plain()
    assert (plain.size, plain.centre, plain.interpolation, plain.count) == (96, 0.875, "bicubic", 1)
    assert (plain.mean, plain.std) == STATISTICS["imagenet"]
    assert not plain.is_random


@pytest.mark.parametrize(
    "field",
    [{"flip": 0.1}, {"grey_p": 0.1}, {"blur_p": 0.1}, {"crop_scale": (1, 1)}, {"auto_augment": "cifar10"}],
)
def test_any_random_part_makes_a_spec_random(field):
    assert ViewSpec(**field).is_random


def test_jitter_without_strength_or_share_is_none():
    assert not ViewSpec(jitter_p=0.8).is_random
    assert not ViewSpec(jitter=(0.4, 0.4, 0.4, 0.1)).is_random
    assert ViewSpec(jitter_p=0.8, jitter=(0, 0, 0, 0.1)).is_random


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("count", 0, "views.count must be greater than or equal to 1, got 0"),
        ("flip", 1.5, "views.flip must be less than or equal to 1, got 1.5"),
        ("crop_scale", (0.0, 1.0), "views.crop_scale.0 must be greater than 0, got 0.0"),
        ("crop_scale", (0.9, 0.1), "crop_scale must be (smallest, largest), got (0.9, 0.1)"),
        ("crop_ratio", (2, 1), "crop_ratio must be (smallest, largest), got (2.0, 1.0)"),
        ("blur_sigma", (2, 1), "blur_sigma must be (smallest, largest), got (2.0, 1.0)"),
        ("std", (0.1, 0.0, 0.1), "views.std.1 must be greater than 0, got 0.0"),
        ("mean", (0.1, float("nan"), 0.1), "views.mean.1 must be a finite number, got nan"),
        ("interpolation", "nearest", "views.interpolation must be 'bilinear' or 'bicubic', got 'nearest'"),
        ("auto_augment", "svhn", "views.auto_augment must be 'imagenet' or 'cifar10', got 'svhn'"),
        ("jitter_strength", 3.0, "at most 0.5, half the colour circle, got 0.2 * 3.0"),
        ("size", 1, "size must be at least 2 to be blurred, got 1"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_in_one_line(field, value, words):
    with pytest.raises(ValueError, match="views") as error:
        view_spec("simclr", **{field: value})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no view preset 'simclr_smal'.*did you mean 'simclr_small'"):
        view_spec("simclr_smal")
    with pytest.raises(ValueError, match=r"no field 'gray_p'.*did you mean 'grey_p'"):
        view_spec("simclr", gray_p=0.2)
    with pytest.raises(ValidationError, match="gray_p"):
        ViewSpec(gray_p=0.2)


def test_a_spec_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        PRESETS["simclr"].size = 32


def test_the_page_names_every_field_and_preset():
    page = (Path(__file__).parents[2] / "docs" / "data" / "views.md").read_text()
    assert [name for name in [*ViewSpec.model_fields, *PRESETS] if f"`{name}`" not in page] == []


def test_crops_for_probes_keep_what_evaluation_keeps():
    spec = view_spec("simclr", size=48, interpolation="bicubic", mean=(0, 0, 0), std=(1, 1, 1))
    crops = spec.crops()
    assert (crops.count, crops.crop_scale, crops.flip) == (1, (0.08, 1.0), 0.5)
    assert not any([crops.jitters, crops.grey_p, crops.blur_p])
    assert crops.plain() == spec.plain()
