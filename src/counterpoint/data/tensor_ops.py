"""Picture transforms on a batch at once, each sample with parameters of its own.

Each equals torchvision's transform of one float picture at the same parameters. Names that end in `_` work in
place. Pictures are `(n, 3, h, w)` float32 in [0, 1], on any device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def resized_crop(
    pictures: Tensor, boxes: Tensor, size: int, flip: Tensor | None = None, interpolation: str = "bilinear"
) -> Tensor:
    """Crop each picture to its box, bring it to `(size, size)` and mirror some.

    Resampling is separable, so a crop is two matrix products with small matrices made per sample; the
    mirror image only reverses the rows of one. The filter widens where a crop shrinks, so shrinking is
    antialiased just as Pillow and torchvision (`antialias=True`) do it, per axis and per sample.

    pictures: `(n, c, h, w)`, uint8 or float in [0, 1].
    boxes: `(n, 4)` top, left, height, width in pixels, inside the picture.
    flip: `(n,)` bool, which ones to mirror left to right.
    Returns `(n, c, size, size)` float32; bicubic may leave [0, 1] slightly and is clamped to it.

    >>> picture = torch.arange(4.0).view(1, 1, 1, 4).expand(1, 3, 4, 4) / 4
    >>> resized_crop(picture, torch.tensor([[0, 2, 4, 2]]), 2, flip=torch.tensor([True]))[0, 0, 0].tolist()
    [0.75, 0.5]
    """
    n, channels, height, width = pictures.shape
    top, left, box_height, box_width = boxes.to(torch.float32).unbind(1)
    rows = _resampling(top, box_height, height, size, interpolation)
    columns = _resampling(left, box_width, width, size, interpolation, flip)
    if pictures.dtype == torch.uint8:
        # The scale to [0, 1] costs nothing on the matrix.
        rows = rows / 255
    # Under autocast the products would run in half precision.
    with torch.autocast(pictures.device.type, enabled=False):
        wide = torch.bmm(
            pictures.to(torch.float32).reshape(n, channels * height, width), columns.transpose(1, 2)
        )
        out = torch.matmul(rows[:, None], wide.view(n, channels, height, size))
    return out.clamp_(0, 1) if interpolation == "bicubic" else out


def _resampling(
    start: Tensor, length: Tensor, extent: int, size: int, interpolation: str, flip: Tensor | None = None
) -> Tensor:
    """Matrices `(n, size, extent)` that resample `length` of `extent` pixels, from `start` on, to `size`."""
    scale = length / size
    widening = scale.clamp_min(1)
    out = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5
    centre = start[:, None] + out * scale[:, None]
    if flip is not None:
        centre = torch.where(flip[:, None], centre.flip(1), centre)
    pixel = (torch.arange(extent, device=start.device, dtype=torch.float32) + 0.5).expand(len(start), extent)
    # Pixels outside the box do not exist for the crop: moved out of the filter's reach.
    inside = (pixel > start[:, None]) & (pixel < (start + length)[:, None])
    pixel = torch.where(inside, pixel / widening[:, None], -1e6)
    distance = (pixel[:, None, :] - (centre / widening[:, None])[:, :, None]).abs_()
    weight = (
        _cubic(distance) if interpolation == "bicubic" else torch.sub(1, distance, out=distance).clamp_min_(0)
    )
    return weight.div_(weight.sum(2, keepdim=True))


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5, the one of Pillow."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))


def luma(pictures: Tensor) -> Tensor:
    """Grey value `(n, h, w)` of each pixel."""
    red, green, blue = pictures.unbind(1)
    return red.mul(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def tone_(pictures: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Brightness, contrast or saturation, in place, whichever each sample asks for.

    All three blend the picture with another one, x <- clamp(factor x + (1 - factor) other), where other is
    black, the picture's mean grey value, or its grey values; so one pass serves a batch of all three.

    pictures: contiguous. kind: `(n,)` int64, 0 brightness, 1 contrast, 2 saturation.
    factor: `(n,)`, at least 0; 1 changes nothing.

    >>> x = torch.full((1, 3, 1, 1), 0.4)
    >>> tone_(x, kind=torch.tensor([0]), factor=torch.tensor([1.5]))[0, :, 0, 0]
    tensor([0.6000, 0.6000, 0.6000])
    """
    rest = 1 - factor
    from_mean = (rest * (kind == CONTRAST))[:, None]
    from_grey = (rest * (kind == SATURATION))[:, None]
    grey = luma(pictures).flatten(1)
    other = torch.addcmul(from_mean * grey.mean(1, keepdim=True), grey, from_grey)
    planes = pictures.flatten(2)
    torch.addcmul(other[:, None], planes, factor[:, None, None], out=planes)
    planes.clamp_(0, 1)
    return pictures


def hue_(pictures: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue (HSV), in place, by a share of the colour circle.

    Turning the hue keeps the largest and the smallest channel value of a pixel, so no trip to HSV and back
    is needed. With the hue t in sixths of the circle, each channel of the result is largest - spread * ramp,
    where ramp rises from 0 to 1 as the distance of t from that channel's own hue goes from 1 to 2.

    shift: `(n,)` in [-0.5, 0.5].

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> hue_(red, torch.tensor([1 / 3]))[0, :, 0, 0].round()
    tensor([0., 1., 0.])
    """
    red, green, blue = pictures.unbind(1)
    upper, lower = torch.maximum(green, blue), torch.minimum(green, blue)
    largest, smallest = torch.maximum(upper, red), torch.minimum(lower, red)
    spread = largest - smallest
    # The circle is symmetric about red: t in [0, 3] first, and the sign says on which side (green or blue).
    t = lower.sub_(red).clamp_min_(0).add_(upper).sub_(red)
    # A grey pixel has no hue, and spread 0 hides whatever stands here; the bound only keeps 0/0 out.
    t.div_(spread.clamp_min(1e-12)).add_(1)
    t = torch.copysign(t, green - blue).add_(6 * shift[:, None, None])
    t.sub_(torch.round(t / 6), alpha=6)
    # largest - spread * (d - 1) for the distance d clamped to [1, 2]
    torch.addcmul(largest + spread, t.abs().clamp_(1, 2), spread, value=-1, out=red)
    # Distances d beyond 3 come round the other side: 3 - |d - 3|, here by its complement |d - 3|.
    base = torch.sub(largest, spread, alpha=2, out=largest)
    for channel, home in ((green, 2), (blue, -2)):
        beyond = (t - home).abs_().sub_(3).abs_().clamp_(1, 2)
        torch.addcmul(base, beyond, spread, out=channel)
    return pictures


def colour_jitter_(pictures: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, in place, in an order of each sample's own.

    Hue costs most and is done once per sample: the samples must come sorted by the position of hue in
    `order`, so that those whose turn it is lie side by side. The other three are done for all at once.

    pictures: contiguous. factors: `(n, 4)`, of brightness, contrast and saturation, and the hue shift.
    order: `(n, 4)` int64 on the CPU, per sample a permutation of the four operations, numbered so.
    Raises ValueError where the samples are not sorted.

    >>> grey = torch.full((1, 3, 2, 2), 0.2)
    >>> colour_jitter_(grey, torch.tensor([[2.0, 1, 1, 0]]), torch.tensor([[3, 0, 1, 2]]))[0, 0, 0]
    tensor([0.4000, 0.4000])
    """
    turn = hue_turn(order)
    if bool((turn.diff() < 0).any()):
        raise ValueError(
            "colour_jitter_ takes samples sorted by the position of hue in their order (see hue_turn)"
        )
    others = order[order != HUE].view(-1, 3).to(pictures.device, non_blocking=True)
    ends = [0, *torch.bincount(turn, minlength=4).cumsum(0).tolist()]
    for step in range(4):
        now = slice(ends[step], ends[step + 1])
        if now.start < now.stop:
            hue_(pictures[now], factors[now, HUE])
        if step < 3:
            kind = others[:, step]
            tone_(pictures, kind, factors.gather(1, kind[:, None])[:, 0])
    return pictures


def hue_turn(order: Tensor) -> Tensor:
    """The position of hue in each sample's order of jitter, `(n,)`."""
    return (order == HUE).to(torch.int64).argmax(1)


def gaussian_blur(pictures: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur each picture by its own standard deviation, with reflected borders.

    sigma: `(n,)` in pixels. kernel: number of taps, odd.
    Returns a new `(n, c, h, w)` tensor, not always contiguous.
    Raises ValueError where the kernel is even or reaches over the whole picture.

    >>> spot = torch.zeros(1, 3, 5, 5)
    >>> spot[..., 2, 2] = 1
    >>> gaussian_blur(spot, torch.tensor([1.0]), 3)[0, 0, 2]
    tensor([0.0000, 0.1238, 0.2042, 0.1238, 0.0000])
    """
    n, channels, height, width = pictures.shape
    reach = kernel // 2
    if kernel % 2 == 0 or reach >= min(height, width):
        raise ValueError(
            f"a blur kernel must be odd and below twice the side {min(height, width)}, got {kernel}"
        )
    offsets = torch.arange(-reach, reach + 1, device=pictures.device, dtype=torch.float32)
    taps = torch.softmax((offsets / sigma[:, None]).square_().mul_(-0.5), dim=1)
    padded = F.pad(pictures, (reach, reach, reach, reach), mode="reflect")
    row = width + 2 * reach
    plane = row * (height + 2 * reach)
    # Weighted sums of shifted copies of the flat pictures: long contiguous runs, where a grouped convolution
    # with 3n groups is slow. What the shifts carry over row ends falls into the padding.
    flat = _shifted_sum(_shifted_sum(padded.flatten(1), taps, 1), taps, row)
    return flat.as_strided((n, channels, height, width), (flat.stride(0), plane, row, 1))


def _shifted_sum(flat: Tensor, taps: Tensor, step: int) -> Tensor:
    """Symmetric taps `(n, k)` over `flat` `(n, l)` at distance `step`: `(n, l - (k - 1) step)`."""
    reach = taps.shape[1] // 2
    length = flat.shape[1] - 2 * reach * step
    out = flat[:, reach * step : reach * step + length] * taps[:, reach, None]
    for j in range(1, reach + 1):
        left, right = (reach - j) * step, (reach + j) * step
        pair = flat[:, left : left + length] + flat[:, right : right + length]
        out.addcmul_(pair, taps[:, reach + j, None])
    return out
