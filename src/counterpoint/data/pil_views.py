"""The same views for pictures of any size: torchvision's transforms, one picture at a time."""

from __future__ import annotations

from typing import Any

import torch
from torchvision.transforms import InterpolationMode, v2

from counterpoint.data.views import ViewSpec

POLICIES = {"imagenet": v2.AutoAugmentPolicy.IMAGENET, "cifar10": v2.AutoAugmentPolicy.CIFAR10}


def picture_transform(spec: ViewSpec, normalise: bool = True) -> v2.Compose:
    """The transform that makes one view of an RGB PIL picture.

    normalise: give `(3, size, size)` float32 with mean and std applied; otherwise uint8, a quarter of the
        bytes to hand from process to process.

    Use when pictures are large or of many sizes; `tensor_views.make_views` takes a batch of small ones.
    It draws from torch's global generator, as torchvision's transforms do.

    >>> from PIL import Image
    >>> transform = picture_transform(ViewSpec(size=24, crop_scale=(0.08, 1.0)))
    >>> view = transform(Image.new("RGB", (40, 30), "white"))
    >>> view.shape, view.dtype, view.min().item()
    (torch.Size([3, 24, 24]), torch.float32, 1.0)
    """
    interpolation = InterpolationMode(spec.interpolation)
    steps: list[Any] = []
    if spec.crop_scale is not None:
        steps.append(
            v2.RandomResizedCrop(spec.size, spec.crop_scale, spec.crop_ratio, interpolation, antialias=True)
        )
    else:
        steps.append(v2.Resize(round(spec.size / spec.centre), interpolation, antialias=True))
        steps.append(v2.CenterCrop(spec.size))
    if spec.flip > 0:
        steps.append(v2.RandomHorizontalFlip(spec.flip))
    if spec.auto_augment is not None:
        steps.append(v2.AutoAugment(POLICIES[spec.auto_augment]))
    if spec.jitters:
        steps.append(v2.RandomApply([v2.ColorJitter(*spec.strengths)], spec.jitter_p))
    if spec.grey_p > 0:
        steps.append(v2.RandomGrayscale(spec.grey_p))
    # torchvision blurs tensors only: a PIL picture would make the trip there and back.
    steps.append(v2.ToImage())
    if spec.blur_p > 0:
        steps.append(v2.RandomApply([v2.GaussianBlur(spec.blur_kernel, spec.blur_sigma)], spec.blur_p))
    if normalise:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(spec.mean), list(spec.std))]
    steps.append(v2.ToPureTensor())
    return v2.Compose(steps)
