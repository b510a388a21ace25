"""Views of a whole batch of small pictures at once, each with random parameters of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from counterpoint.data import tensor_ops as ops
from counterpoint.data.auto_augment import auto_augment, draw_auto_augment
from counterpoint.data.cores import alone, for_each
from counterpoint.data.views import ViewSpec

CROP_TRIES = 10  # as torchvision: then the largest centre crop with an allowed ratio
CHUNK = 3 * 2**17  # picture values worked on at once by a CPU core: what its cache holds
WORTHWHILE = 32  # views below which the calls take longer than the work


@dataclass(frozen=True)
class Draws:
    """The random parameters of m views, on the CPU; None for what the spec leaves out.

    boxes: `(m, 4)` int64 top, left, height, width of the crop. flip, jitter, grey, blur: `(m,)` bool.
    factors: `(m, 4)` of brightness, contrast, saturation (1 changes nothing) and hue (0 does not).
    order: `(m, 4)` int64, the order in which those are applied. sigma: `(m,)` of the blur, in pixels.
    auto: `(m, 5)`, see `draw_auto_augment`.
    """

    boxes: Tensor | None = None
    flip: Tensor | None = None
    auto: Tensor | None = None
    jitter: Tensor | None = None
    factors: Tensor | None = None
    order: Tensor | None = None
    grey: Tensor | None = None
    blur: Tensor | None = None
    sigma: Tensor | None = None

    def take(self, rows: Tensor) -> Draws:
        """Those of some views."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return Draws(**{name: None if values is None else values[rows] for name, values in own.items()})


def make_views(
    pictures: Tensor,
    spec: ViewSpec,
    generator: torch.Generator,
    ids: Tensor | None = None,
    part: slice | None = None,
) -> list[Tensor]:
    """`spec.count` views of each picture of a batch.

    pictures: `(k, 3, h, w)`, uint8 or float in [0, 1], on any device.
    generator: on the CPU; the same state gives the same views on every device, to rounding.
    ids: `(n,)` int64 on the CPU, the rows of `pictures` that make the batch, all if not given; or
        `(spec.count, n)`, those of each view.
    part: which columns of the batch to make, all if not given; they come out as they do in the whole batch.
    Returns `spec.count` tensors `(n, 3, size, size)` float32, normalised, on the pictures' device.
    Raises ValueError for pictures of another shape or dtype.

    >>> from counterpoint.data.views import view_spec
    >>> pictures = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
    >>> views = make_views(pictures, view_spec("simclr_small"), torch.Generator().manual_seed(0))
    >>> len(views), views[0].shape
    (2, torch.Size([5, 3, 32, 32]))
    """
    _check(pictures)
    ids = torch.arange(len(pictures)) if ids is None else ids
    part = slice(None) if part is None else part
    height, width = pictures.shape[2:]
    with alone():
        places = torch.arange(ids.shape[-1] * spec.count).view(spec.count, -1)
        draws = draw(spec, places.numel(), height, width, generator).take(places[:, part].flatten())
    rows = ids.expand(spec.count, -1)[:, part].flatten()
    return list(render(pictures, rows, draws, spec).chunk(spec.count))


def draw(spec: ViewSpec, m: int, height: int, width: int, generator: torch.Generator) -> Draws:
    """The random parameters of m views of pictures of that size, distributed as torchvision draws them.

    >>> from counterpoint.data.views import ViewSpec
    >>> draw(ViewSpec(flip=1.0), 3, 32, 32, torch.Generator())
    Draws(boxes=None, flip=tensor([True, True, True]), auto=None, ...)
    """

    def share(p: float) -> Tensor | None:
        return torch.rand(m, generator=generator) < p if p > 0 else None

    boxes = (
        crop_boxes(m, height, width, spec.crop_scale, spec.crop_ratio, generator) if spec.crop_scale else None
    )
    flip = share(spec.flip)
    auto = draw_auto_augment(m, generator) if spec.auto_augment else None
    jitter = factors = order = None
    if spec.jitters:
        jitter = share(spec.jitter_p)
        low = torch.tensor([*(max(0.0, 1 - s) for s in spec.strengths[:3]), -spec.strengths[3]])
        high = torch.tensor([*(1 + s for s in spec.strengths[:3]), spec.strengths[3]])
        factors = low + (high - low) * torch.rand(m, 4, generator=generator)
        order = torch.rand(m, 4, generator=generator).argsort(1)
    grey, blur = share(spec.grey_p), share(spec.blur_p)
    sigma = None
    if blur is not None:
        low_sigma, high_sigma = spec.blur_sigma
        sigma = low_sigma + (high_sigma - low_sigma) * torch.rand(m, generator=generator)
    return Draws(boxes, flip, auto, jitter, factors, order, grey, blur, sigma)


def crop_boxes(
    n: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """n random boxes `(n, 4)` int64: top, left, height, width.

    torchvision's distribution: the area is uniform in `scale`, the logarithm of width over height uniform in
    that of `ratio`; the first of ten draws that fits is taken, and failing that the largest centre crop.

    >>> crop_boxes(2, 8, 8, (1.0, 1.0), (1.0, 1.0), torch.Generator())
    tensor([[0, 0, 8, 8],
            [0, 0, 8, 8]])
    """
    chance = torch.rand(4, n, CROP_TRIES, generator=generator, dtype=torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * chance[0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * chance[1])
    w = (area * aspect).sqrt_().round_().long()
    h = (area / aspect).sqrt_().round_().long()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.int64).argmax(1, keepdim=True)
    w, h = w.gather(1, first)[:, 0], h.gather(1, first)[:, 0]
    top = (chance[2, :, 0] * (height - h + 1)).long()
    left = (chance[3, :, 0] * (width - w + 1)).long()
    boxes = torch.stack([top, left, h, w], dim=1)
    return torch.where(fits.any(1)[:, None], boxes, torch.tensor(_centre_box(height, width, ratio)))


def _centre_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    h, w = height, width
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


def render(pictures: Tensor, ids: Tensor, draws: Draws, spec: ViewSpec) -> Tensor:
    """The views with these parameters.

    pictures: `(k, 3, h, w)`. ids: `(m,)` int64 on the CPU; view i is made of picture `ids[i]`.
    Returns `(m, 3, size, size)` float32, normalised.
    """
    m = len(ids)
    # Views that take the same path are laid side by side: a slice of a batch is free, picking rows is a copy.
    path = torch.zeros(m, dtype=torch.int64)
    if draws.jitter is not None and draws.order is not None:
        path = torch.where(draws.jitter, ops.hue_turn(draws.order), 4)
    if draws.blur is not None:
        path = path + 8 * draws.blur
    path, place = path.sort(stable=True)
    sharp = int((path < 8).sum())
    out = torch.empty(m, 3, spec.size, spec.size, device=pictures.device)
    step = _step(m, spec) if pictures.device.type == "cpu" else m

    def make(part: slice) -> None:
        rows = place[part]
        x = _coloured(pictures, ids, rows, draws, spec)
        if part.start >= sharp and draws.sigma is not None:
            x = ops.gaussian_blur(x, _there(draws.sigma[rows], x), spec.blur_kernel)
        out.index_copy_(0, _there(rows, out), normalise(x, spec))

    for_each(make, [*_parts(0, sharp, step), *_parts(sharp, m, step)])
    return out


def _step(m: int, spec: ViewSpec) -> int:
    """Views per part: what a core's cache holds, but fewer of a small batch, so that all cores get a part."""
    share = -(-m // torch.get_num_threads())
    return min(CHUNK // (3 * spec.size**2), max(share, WORTHWHILE))


def _parts(first: int, last: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, last)) for start in range(first, last, max(1, step))]


def _coloured(pictures: Tensor, ids: Tensor, rows: Tensor, draws: Draws, spec: ViewSpec) -> Tensor:
    """The views `rows`, sorted by `hue_turn` with those without jitter last, up to the blur."""
    x = _to_size(pictures.index_select(0, _there(ids[rows], pictures)), rows, draws, spec)
    if spec.auto_augment is not None and draws.auto is not None:
        eight_bits = x.mul_(255).round_().to(torch.uint8)
        x = auto_augment(eight_bits, draws.auto[rows], spec.auto_augment).to(torch.float32).div_(255)
    if draws.jitter is not None and draws.factors is not None and draws.order is not None:
        chosen = rows[: int(draws.jitter[rows].sum())]
        ops.colour_jitter_(x[: len(chosen)], _there(draws.factors[chosen], x), draws.order[chosen])
    if draws.grey is not None:
        index = _there(draws.grey[rows].nonzero()[:, 0], x)
        x.index_copy_(0, index, ops.luma(x.index_select(0, index))[:, None].expand(-1, 3, -1, -1))
    return x


def _to_size(pictures: Tensor, rows: Tensor, draws: Draws, spec: ViewSpec) -> Tensor:
    """Crop and mirror: float32 in [0, 1], contiguous, not shared with `pictures`."""
    flip = None if draws.flip is None else _there(draws.flip[rows], pictures)
    if draws.boxes is not None:
        return ops.resized_crop(
            pictures, _there(draws.boxes[rows], pictures), spec.size, flip, spec.interpolation
        )
    x = pictures.to(torch.float32).div_(255) if pictures.dtype == torch.uint8 else pictures.to(torch.float32)
    x = F.resize(x, [round(spec.size / spec.centre)], InterpolationMode(spec.interpolation), antialias=True)
    x = F.center_crop(x, [spec.size, spec.size]).clamp(0, 1)
    return x if flip is None else torch.where(flip[:, None, None, None], x.flip(-1), x)


def normalise(pictures: Tensor, spec: ViewSpec) -> Tensor:
    """Take off the mean and divide by the standard deviation, per channel.

    pictures: `(n, 3, h, w)`, uint8 or float in [0, 1]. Returns `(n, 3, h, w)` float32.

    >>> from counterpoint.data.views import ViewSpec
    >>> spec = ViewSpec(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> normalise(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8), spec).flatten()
    tensor([1., 1., 1.])
    """
    white = 255 if pictures.dtype == torch.uint8 else 1
    scale = torch.tensor([1 / (white * s) for s in spec.std]).view(3, 1, 1)
    offset = torch.tensor([-m / s for m, s in zip(spec.mean, spec.std, strict=True)]).view(3, 1, 1)
    return torch.mul(pictures, _there(scale, pictures)).add_(_there(offset, pictures))


def _there(values: Tensor, other: Tensor) -> Tensor:
    """`values` on the device of `other`."""
    return values.to(other.device, non_blocking=True)


def _check(pictures: Tensor) -> None:
    if pictures.ndim != 4 or pictures.shape[1] != 3:
        raise ValueError(f"pictures must have shape (n, 3, h, w), got {tuple(pictures.shape)}")
    if pictures.dtype != torch.uint8 and not pictures.is_floating_point():
        raise ValueError(f"pictures must be uint8, or float in [0, 1], got {pictures.dtype}")
