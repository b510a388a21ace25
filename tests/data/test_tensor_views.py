import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp, kstest
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from counterpoint.data import tensor_views
from counterpoint.data.auto_augment import auto_augment
from counterpoint.data.pil_views import picture_transform
from counterpoint.data.tensor_ops import resized_crop
from counterpoint.data.tensor_views import crop_boxes, draw, make_views, normalise, render
from counterpoint.data.views import ViewSpec, view_spec

SIMCLR = view_spec("simclr", size=24)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def bytes_like(n, height=32, width=32, seed=0):
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator(seed))


def torchvision_boxes(n, height, width, scale, ratio):
    torch.manual_seed(1)
    picture = torch.empty(3, height, width)
    return torch.tensor([RandomResizedCrop.get_params(picture, list(scale), list(ratio)) for _ in range(n)])


@pytest.mark.parametrize(("height", "width"), [(224, 160), (32, 32)])
@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.0), (0.3, 1.5))])
def test_crop_boxes_are_distributed_as_torchvisions(height, width, scale, ratio):
    ours = crop_boxes(3000, height, width, scale, ratio, generator()).double()
    theirs = torchvision_boxes(3000, height, width, scale, ratio).double()
    for name, value in {
        "area": lambda box: box[:, 2] * box[:, 3],
        "ratio": lambda box: box[:, 3] / box[:, 2],
        "top": lambda box: box[:, 0] / (height - box[:, 2]).clamp(min=1),
        "left": lambda box: box[:, 1] / (width - box[:, 3]).clamp(min=1),
    }.items():
        assert ks_2samp(value(ours), value(theirs)).pvalue > 0.01, name


def test_the_distribution_test_sees_a_wrong_scale():
    ours = crop_boxes(3000, 224, 160, (0.2, 1.0), (3 / 4, 4 / 3), generator()).double()
    theirs = torchvision_boxes(3000, 224, 160, (0.08, 1.0), (3 / 4, 4 / 3)).double()
    assert ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue < 1e-6


@pytest.mark.parametrize(("height", "width"), [(10, 200), (200, 10), (30, 33)])
def test_where_no_draw_fits_the_centre_is_cropped_as_torchvision_does(height, width):
    scale, ratio = ((1.0, 1.0), (3 / 4, 4 / 3)) if height != 30 else ((1.0, 1.0), (0.5, 0.6))
    theirs = torchvision_boxes(1, height, width, scale, ratio)
    assert torch.equal(crop_boxes(1, height, width, scale, ratio, generator()), theirs)


def test_boxes_lie_inside_the_picture():
    top, left, h, w = crop_boxes(20_000, 7, 11, (0.01, 1.0), (0.1, 10.0), generator()).unbind(1)
    assert (top.min(), left.min(), h.min(), w.min()) == (0, 0, 1, 1)
    assert int((top + h).max()) == 7
    assert int((left + w).max()) == 11


def within(share, p, n):
    return abs(float(share) - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_shares_and_ranges_are_those_of_the_spec():
    n = 20_000
    spec = view_spec("simclr", size=24, flip=0.3, blur_sigma=(0.5, 1.5), jitter=(0.4, 1.2, 0.6, 0.2))
    draws = draw(spec, n, 32, 32, generator())
    for drawn, p in ((draws.flip, 0.3), (draws.jitter, 0.8), (draws.grey, 0.2), (draws.blur, 0.5)):
        assert within(drawn.double().mean(), p, n)
    bounds = [(0.6, 1.4), (0.0, 2.2), (0.4, 1.6), (-0.2, 0.2)]
    for values, (low, high) in zip([*draws.factors.T, draws.sigma], [*bounds, (0.5, 1.5)], strict=True):
        assert kstest(values.double(), "uniform", args=(low, high - low)).pvalue > 0.01
    code = (draws.order * torch.tensor([64, 16, 4, 1])).sum(1)
    orders, counts = code.unique(return_counts=True)
    assert len(orders) == 24
    assert all(within(count / n, 1 / 24, n) for count in counts)
    for one, other in ((draws.flip, draws.grey), (draws.jitter, draws.blur), (draws.grey, draws.blur)):
        both = (one & other).double().mean()
        assert within(both, float(one.double().mean() * other.double().mean()), n)


ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def slow_view(picture, draws, i, spec):
    """View i by torchvision's functional transforms, one after the other, on a float picture."""
    x = picture / 255
    if draws.boxes is not None:
        top, left, h, w = draws.boxes[i].tolist()
        mode = InterpolationMode(spec.interpolation)
        x = F.resized_crop(x, top, left, h, w, [spec.size, spec.size], mode, antialias=True)
    if draws.flip[i]:
        x = F.horizontal_flip(x)
    if draws.jitter is not None and draws.jitter[i]:
        for step in draws.order[i].tolist():
            x = ADJUST[step](x, draws.factors[i, step].item())
    if draws.grey is not None and draws.grey[i]:
        x = F.rgb_to_grayscale(x, num_output_channels=3)
    if draws.blur is not None and draws.blur[i]:
        x = F.gaussian_blur(x, [spec.blur_kernel] * 2, [draws.sigma[i].item()] * 2)
    return F.normalize(x, list(spec.mean), list(spec.std))


@pytest.mark.parametrize(
    "spec", [SIMCLR, view_spec("simclr_small", count=3), view_spec("simclr", size=64, count=1)]
)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 48)])
def test_views_are_those_of_torchvision_at_the_same_parameters(spec, height, width):
    x = bytes_like(11, height, width)
    draws = draw(spec, 11 * spec.count, height, width, generator(1))
    views = torch.stack(make_views(x, spec, generator(1)))
    assert views.shape == (spec.count, 11, 3, spec.size, spec.size)
    for i, view in enumerate(views.flatten(0, 1)):
        torch.testing.assert_close(view, slow_view(x[i % 11], draws, i, spec), atol=1e-4, rtol=0)


@pytest.mark.parametrize("policy", ["imagenet", "cifar10"])
def test_auto_augment_comes_after_crop_and_flip(policy):
    spec = view_spec("supcon", size=32, auto_augment=policy)
    x = bytes_like(40).repeat(2, 1, 1, 1)
    draws = draw(spec, 80, 32, 32, generator(2))
    views = torch.cat(make_views(x[:40], spec, generator(2)))
    # the crop as it is made here, for a byte that rounds the other way changes all that follows
    cropped = (resized_crop(x, draws.boxes, 32, draws.flip) * 255).round().to(torch.uint8)
    expected = torch.cat([auto_augment(cropped[i : i + 1], draws.auto[i : i + 1], policy) for i in range(80)])
    torch.testing.assert_close(views, normalise(expected, spec), atol=1e-5, rtol=0)


@pytest.mark.parametrize("spec", [view_spec("simclr_small"), view_spec("supcon", size=32)])
def test_views_look_like_those_of_the_picture_pipeline(spec):
    """Brightness, contrast and colour of views of one picture, batched and by torchvision on PIL, agree."""
    coarse = torch.rand(1, 3, 4, 4, generator=generator(3))
    picture = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic").clamp(0, 1)
    picture = (picture * 255).round().to(torch.uint8)
    ours = torch.cat(make_views(picture.expand(500, -1, -1, -1), spec, generator(4)))
    transform = picture_transform(spec)
    pil = Image.fromarray(picture[0].permute(1, 2, 0).numpy())
    torch.manual_seed(5)
    theirs = torch.stack([transform(pil) for _ in range(1000)])
    for measure in (
        lambda x: x.mean((1, 2, 3)),
        lambda x: x.std((1, 2, 3)),
        lambda x: (x[:, 0] - x[:, 2]).mean((1, 2)),
        lambda x: (x[..., :16] - x[..., 16:]).mean((1, 2, 3)),
        lambda x: x.diff(dim=3).abs().mean((1, 2, 3)),
    ):
        assert ks_2samp(measure(ours), measure(theirs)).pvalue > 0.01


def test_samples_of_a_batch_get_different_parameters():
    x = bytes_like(1).expand(16, -1, -1, -1)
    views = torch.cat(make_views(x, SIMCLR, generator())).flatten(1)
    distances = torch.cdist(views, views) + torch.eye(32) * 1e6
    assert distances.min() > 0.5


def test_the_same_generator_state_gives_the_same_views():
    x = bytes_like(9)
    first, again, other = (make_views(x, SIMCLR, generator(seed)) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_global_generators_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    make_views(bytes_like(6), view_spec("supcon", size=24), generator())
    make_views(bytes_like(6), SIMCLR, generator())
    assert torch.equal(torch_state, torch.get_rng_state())
    assert numpy_state == str(np.random.get_state())  # noqa: NPY002


def test_pictures_are_not_changed():
    for x in (bytes_like(6), bytes_like(6) / 255):
        before = x.clone()
        for spec in (
            SIMCLR,
            ViewSpec(size=32, grey_p=1, jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=1),
            ViewSpec(size=32),
        ):
            make_views(x, spec, generator())
        assert torch.equal(x, before)


def test_float_pictures_give_the_views_of_bytes():
    x = bytes_like(8)
    for ours, theirs in zip(
        make_views(x, SIMCLR, generator()), make_views(x.double() / 255, SIMCLR, generator()), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("spec", [SIMCLR, view_spec("supcon", size=24)])
def test_views_do_not_depend_on_cores_or_on_the_parts_a_batch_is_cut_into(monkeypatch, thread_count, spec):
    x = bytes_like(40)
    whole = torch.cat(make_views(x, spec, generator()))
    for threads, rows in ((1, 7), (2, 7), (3, 20)):
        thread_count(threads)
        monkeypatch.setattr(tensor_views, "CHUNK", rows * 3 * 24 * 24)
        assert torch.equal(torch.cat(make_views(x, spec, generator())), whole)


def test_views_are_made_in_inference_mode_and_under_autocast(monkeypatch, thread_count):
    x = bytes_like(20)
    whole = torch.cat(make_views(x, SIMCLR, generator()))
    monkeypatch.setattr(tensor_views, "CHUNK", 5 * 3 * 24 * 24)
    for threads in (1, 2):
        thread_count(threads)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(torch.cat(make_views(x, SIMCLR, generator())), whole)


@pytest.mark.parametrize(
    ("height", "width", "size", "centre"), [(32, 32, 32, 1.0), (64, 48, 32, 0.875), (20, 30, 40, 1.0)]
)
def test_a_view_that_is_not_random_is_resized_and_cropped_at_the_centre(height, width, size, centre):
    spec = ViewSpec(size=size, count=1, centre=centre)
    x = bytes_like(3, height, width)
    (views,) = make_views(x, spec, generator())
    resized = F.resize(x / 255, [round(size / centre)], antialias=True)
    torch.testing.assert_close(views, F.center_crop(resized, [size, size]), atol=1e-5, rtol=0)


def test_flip_without_crop():
    x = bytes_like(200)
    (views,) = make_views(x, ViewSpec(size=32, count=1, flip=0.5), generator())
    flipped = torch.tensor(
        [torch.allclose(view, picture.flip(-1) / 255) for view, picture in zip(views, x, strict=True)]
    )
    same = torch.tensor([torch.allclose(view, picture / 255) for view, picture in zip(views, x, strict=True)])
    assert (flipped ^ same).all()
    assert within(flipped.double().mean(), 0.5, 200)


def test_jitter_for_all_and_blur_for_none_or_all():
    for jitter_p, blur_p in ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0)):
        spec = view_spec("simclr", size=32, jitter_p=jitter_p, blur_p=blur_p, count=1)
        draws = draw(spec, 6, 32, 32, generator())
        views = render(bytes_like(6), torch.arange(6), draws, spec)
        for i in range(6):
            torch.testing.assert_close(
                views[i], slow_view(bytes_like(6)[i], draws, i, spec), atol=1e-4, rtol=0
            )


def test_a_batch_is_picked_by_ids():
    x, ids = bytes_like(9), torch.tensor([3, 8, 3, 0])
    picked = make_views(x, SIMCLR, generator(), ids)
    assert all(map(torch.equal, picked, make_views(x[ids], SIMCLR, generator())))


def test_no_pictures_give_no_views():
    views = make_views(bytes_like(0), view_spec("supcon", size=24, count=3), generator())
    assert [view.shape for view in views] == [(0, 3, 24, 24)] * 3
    assert make_views(bytes_like(0), SIMCLR, generator())[1].shape == (0, 3, 24, 24)


def test_normalise():
    spec = ViewSpec(mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    x = bytes_like(2)
    theirs = F.normalize(x / 255, list(spec.mean), list(spec.std))
    torch.testing.assert_close(normalise(x, spec), theirs)
    torch.testing.assert_close(normalise(x / 255, spec), theirs)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 8, 8), r"shape \(n, 3, h, w\), got \(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8), r"got \(2, 1, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), r"uint8, or float in \[0, 1\], got torch.int64"),
    ],
)
def test_pictures_of_another_kind_are_refused(x, words):
    with pytest.raises(ValueError, match=words):
        make_views(x, SIMCLR, generator())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["simclr", "supcon"])
def test_views_on_the_gpu_are_those_on_the_cpu(name):
    spec, x = view_spec(name, size=32), bytes_like(16)
    for ours, theirs in zip(
        make_views(x.cuda(), spec, generator()), make_views(x, spec, generator()), strict=True
    ):
        # an operation on bytes may round the other way
        assert ((ours.cpu() - theirs).abs() < 1e-3).float().mean() > 0.99
