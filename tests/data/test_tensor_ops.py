"""Each batched transform against torchvision's own, one picture at a time."""

import itertools

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from counterpoint.data import tensor_ops as ops


def pictures(n=12, height=32, width=32, seed=0):
    """Smooth noise, saturated colours, pure greys and black: what hue and clamping must survive."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, height, width, generator=generator)
    x[1] = x[1].round()
    x[2] = x[2, :1]
    x[3] = 0
    x[4] = (x[4] * 3).round() / 3
    return x


def boxes(n, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        h = int(torch.randint(1, height + 1, (), generator=generator))
        w = int(torch.randint(1, width + 1, (), generator=generator))
        top = int(torch.randint(0, height - h + 1, (), generator=generator))
        left = int(torch.randint(0, width - w + 1, (), generator=generator))
        rows.append([top, left, h, w])
    rows[0] = [0, 0, height, width]
    return torch.tensor(rows)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 32), (64, 64, 32), (40, 64, 24), (20, 30, 48), (5, 64, 7)]
)
def test_crop_and_flip_are_torchvisions(height, width, size, interpolation):
    x, where = pictures(16, height, width), boxes(16, height, width)
    flip = torch.arange(16) % 2 == 0
    ours = ops.resized_crop(x, where, size, flip, interpolation)
    for i, (top, left, h, w) in enumerate(where.tolist()):
        theirs = F.resized_crop(
            x[i], top, left, h, w, [size, size], InterpolationMode(interpolation), antialias=True
        ).clamp(0, 1)
        theirs = theirs.flip(-1) if flip[i] else theirs
        torch.testing.assert_close(ours[i], theirs, atol=2e-5, rtol=0)


def test_shrinking_is_antialiased():
    stripes = (torch.arange(64) % 2).float().expand(1, 3, 64, 64)
    out = ops.resized_crop(stripes, torch.tensor([[0, 0, 64, 64]]), 16)
    torch.testing.assert_close(out[..., 1:-1], torch.full((1, 3, 16, 14), 0.5), atol=0.01, rtol=0)


def test_crop_of_bytes_is_the_crop_of_floats():
    x = torch.randint(0, 256, (6, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    where = boxes(6, 20, 24)
    torch.testing.assert_close(ops.resized_crop(x, where, 16), ops.resized_crop(x / 255, where, 16))


def test_crop_keeps_full_precision_under_autocast():
    x, where = pictures(), boxes(12, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ops.resized_crop(x, where, 32)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, ops.resized_crop(x, where, 32))


ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


@pytest.mark.parametrize("kind", [ops.BRIGHTNESS, ops.CONTRAST, ops.SATURATION])
def test_tone_is_torchvisions(kind):
    x = pictures()
    factor = torch.linspace(0, 1.8, len(x))
    ours = ops.tone_(x.clone(), torch.full((len(x),), kind), factor)
    for i, f in enumerate(factor.tolist()):
        torch.testing.assert_close(ours[i], ADJUST[kind](x[i], f), atol=1e-6, rtol=0)


def test_tone_takes_three_kinds_in_one_batch():
    x = pictures()
    kind = torch.arange(len(x)) % 3
    factor = torch.linspace(0.3, 1.7, len(x))
    ours = ops.tone_(x.clone(), kind, factor)
    for i in range(len(x)):
        torch.testing.assert_close(ours[i], ADJUST[int(kind[i])](x[i], factor[i].item()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shift", [-0.5, -0.31, -1 / 6, 0.0, 0.01, 1 / 6, 1 / 3, 0.5])
def test_hue_is_torchvisions(shift):
    x = pictures()
    ours = ops.hue_(x.clone(), torch.full((len(x),), shift))
    theirs = torch.stack([F.adjust_hue(picture, shift) for picture in x])
    torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


def test_hue_on_every_corner_and_edge_of_the_colour_cube():
    levels = torch.tensor([0.0, 0.5, 1.0])
    x = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 27, 1)
    for shift in torch.linspace(-0.5, 0.5, 13).tolist():
        ours = ops.hue_(x.clone(), torch.tensor([shift]))
        torch.testing.assert_close(ours[0], F.adjust_hue(x[0], shift), atol=5e-6, rtol=0)


def test_each_sample_has_its_own_hue():
    x = pictures()[:1].repeat(4, 1, 1, 1)
    shift = torch.tensor([-0.4, -0.1, 0.2, 0.5])
    ours = ops.hue_(x.clone(), shift)
    for i in range(4):
        torch.testing.assert_close(ours[i], F.adjust_hue(x[i], shift[i].item()), atol=5e-6, rtol=0)


def test_jitter_in_every_order_is_torchvisions():
    order = torch.tensor(list(itertools.permutations(range(4))))
    order = order[ops.hue_turn(order).argsort(stable=True)]
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(24, 3, 9, 11, generator=generator)
    factors = torch.rand(24, 4, generator=generator) * 1.6 + 0.2
    factors[:, 3] = torch.rand(24, generator=generator) - 0.5
    ours = ops.colour_jitter_(x.clone(), factors, order)
    for i in range(24):
        theirs = x[i]
        for step in order[i].tolist():
            theirs = ADJUST[step](theirs, factors[i, step].item())
        torch.testing.assert_close(ours[i], theirs, atol=1e-5, rtol=0)


def test_jitter_of_unsorted_samples_is_refused():
    with pytest.raises(ValueError, match="sorted"):
        ops.colour_jitter_(pictures()[:2], torch.ones(2, 4), torch.tensor([[0, 1, 2, 3], [3, 0, 1, 2]]))


@pytest.mark.parametrize(("height", "width", "kernel"), [(32, 32, 3), (24, 40, 7), (32, 32, 23)])
def test_blur_is_torchvisions(height, width, kernel):
    x = pictures(height=height, width=width)
    sigma = torch.linspace(0.1, 2, len(x))
    ours = ops.gaussian_blur(x, sigma, kernel)
    for i, s in enumerate(sigma.tolist()):
        theirs = F.gaussian_blur(x[i], [kernel, kernel], [s, s])
        torch.testing.assert_close(ours[i], theirs, atol=3e-6, rtol=0)


def test_blur_refuses_kernels_that_do_not_fit():
    for kernel in (4, 17):
        with pytest.raises(ValueError, match=f"got {kernel}"):
            ops.gaussian_blur(pictures(height=8), torch.ones(12), kernel)


@pytest.mark.parametrize("n", [0, 1])
def test_transforms_take_batches_of_none_and_one(n):
    x = torch.rand(n, 3, 8, 8)
    assert ops.resized_crop(x, torch.tensor([[0, 0, 8, 8]] * n).view(n, 4), 4).shape == (n, 3, 4, 4)
    order = torch.tensor([[0, 1, 2, 3]] * n).view(n, 4)
    assert ops.colour_jitter_(x.clone(), torch.ones(n, 4), order).shape == x.shape
    assert ops.gaussian_blur(x, torch.ones(n), 3).shape == x.shape
