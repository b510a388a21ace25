import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from counterpoint.data.pil_views import picture_transform
from counterpoint.data.views import PRESETS, ViewSpec, view_spec


def picture(width=50, height=40):
    values = torch.randint(
        0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return Image.fromarray(values.numpy())


def steps(spec, **options):
    """The transforms by name, those inside RandomApply taken out."""
    found = {}
    for step in picture_transform(spec, **options).transforms:
        if isinstance(step, v2.RandomApply):
            found["p of " + type(step.transforms[0]).__name__] = step.p
            step = step.transforms[0]
        found[type(step).__name__] = step
    return found


def test_simclr_is_made_of_the_published_steps():
    found = steps(PRESETS["simclr"])
    assert list(found) == [
        "RandomResizedCrop",
        "RandomHorizontalFlip",
        "p of ColorJitter",
        "ColorJitter",
        "RandomGrayscale",
        "ToImage",
        "p of GaussianBlur",
        "GaussianBlur",
        "ToDtype",
        "Normalize",
        "ToPureTensor",
    ]
    assert (found["RandomResizedCrop"].scale, found["RandomResizedCrop"].size) == ((0.08, 1.0), (224, 224))
    jitter = found["ColorJitter"]
    assert jitter.brightness == jitter.contrast == jitter.saturation == pytest.approx((0.2, 1.8))
    assert jitter.hue == (-0.2, 0.2)
    assert (found["p of ColorJitter"], found["p of GaussianBlur"], found["RandomGrayscale"].p) == (
        0.8,
        0.5,
        0.2,
    )
    blur = found["GaussianBlur"]
    assert (tuple(blur.kernel_size), tuple(blur.sigma)) == ((23, 23), (0.1, 2.0))


def test_supcon_has_auto_augment_and_no_jitter():
    found = steps(PRESETS["supcon"])
    assert found["AutoAugment"].policy == v2.AutoAugmentPolicy.IMAGENET
    assert not {"ColorJitter", "RandomGrayscale", "GaussianBlur"} & set(found)


def test_a_plain_view_is_resized_and_cropped_at_the_centre():
    spec = ViewSpec(size=21, centre=0.875, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    by_hand = v2.functional.center_crop(picture().resize((30, 24), Image.Resampling.BICUBIC), [21, 21])
    view = picture_transform(spec)(picture())
    torch.testing.assert_close(view, v2.functional.pil_to_tensor(by_hand) / 127.5 - 1)


def test_bytes_are_the_view_before_normalisation():
    spec = view_spec("simclr", size=32)
    for seed in range(5):
        torch.manual_seed(seed)
        bytes_ = picture_transform(spec, normalise=False)(picture())
        torch.manual_seed(seed)
        view = picture_transform(spec)(picture())
        assert bytes_.dtype == torch.uint8
        theirs = v2.functional.normalize(bytes_ / 255, list(spec.mean), list(spec.std))
        torch.testing.assert_close(view, theirs)


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize(("width", "height"), [(50, 40), (7, 90), (1, 1)])
def test_every_preset_takes_pictures_of_any_size(name, width, height):
    view = picture_transform(view_spec(name, size=24))(picture(width, height))
    assert type(view) is torch.Tensor
    assert (view.shape, view.dtype) == ((3, 24, 24), torch.float32)
    assert view.isfinite().all()
