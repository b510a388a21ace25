"""How the views of a picture are drawn: one spec, and the presets of the published recipes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from counterpoint.names import hint

Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Triple = tuple[float, float, float]

# Channel means and standard deviations in common use, of pictures in [0, 1].
STATISTICS: dict[str, tuple[Triple, Triple]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


class ViewSpec(BaseModel):
    """The transforms that make views of a picture, in the order in which they are applied.

    As given here with no argument it is the view for evaluation: resize, centre crop, normalise. Every random
    part is off until it is given a share of pictures (`flip`, `jitter_p`, `grey_p`, `blur_p`), a `crop_scale`
    or an `auto_augment` policy.

    Raises ValueError (pydantic's) for an unknown field or a value that is not allowed.

    >>> spec = ViewSpec(size=32, crop_scale=(0.2, 1.0), flip=0.5)
    >>> spec.is_random, spec.plain().is_random
    (True, False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    count: int = Field(2, ge=1, description="views per sample")
    size: int = Field(224, ge=1, le=8192, description="height and width of a view, in pixels")
    crop_scale: tuple[Positive, Annotated[float, Field(gt=0, le=1)]] | None = Field(
        None, description="smallest and largest share of the area a random crop takes; none for a centre crop"
    )
    crop_ratio: tuple[Positive, Positive] = Field(
        (3 / 4, 4 / 3), description="smallest and largest width over height of a random crop"
    )
    centre: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the shorter side a centre crop keeps; 0.875 is ImageNet's custom",
    )
    interpolation: Literal["bilinear", "bicubic"] = Field(
        "bilinear", description="how a crop is brought to size; always antialiased where it shrinks"
    )
    flip: Probability = Field(0.0, description="share of views that are mirrored left to right")
    auto_augment: Literal["imagenet", "cifar10"] | None = Field(
        None, description="AutoAugment policy applied after crop and flip"
    )
    jitter: tuple[
        Annotated[float, Field(ge=0)],
        Annotated[float, Field(ge=0)],
        Annotated[float, Field(ge=0)],
        Annotated[float, Field(ge=0, le=0.5)],
    ] = Field((0.0, 0.0, 0.0, 0.0), description="colour jitter: brightness, contrast, saturation, hue")
    jitter_strength: float = Field(1.0, ge=0, description="factor on all four values of jitter, SimCLR's s")
    jitter_p: Probability = Field(0.0, description="share of views with colour jitter")
    grey_p: Probability = Field(0.0, description="share of views turned grey")
    blur_p: Probability = Field(0.0, description="share of views that are blurred")
    blur_sigma: tuple[Positive, Positive] = Field(
        (0.1, 2.0), description="smallest and largest standard deviation of the Gaussian blur, in pixels"
    )
    mean: Triple = Field(STATISTICS["none"][0], description="per channel, taken off the picture in [0, 1]")
    std: tuple[Positive, Positive, Positive] = Field(
        STATISTICS["none"][1], description="per channel, divides after the mean is taken off"
    )
    pair_by: str | None = Field(
        None,
        min_length=1,
        description="label column, such as camera: views of a sample are then pictures of one identity "
        "(label column identity) that differ in it; if not given, all views are of one picture",
    )

    @model_validator(mode="after")
    def _check(self) -> ViewSpec:
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"{name} must be (smallest, largest), got {bounds}")
        if self.jitter[3] * self.jitter_strength > 0.5:
            raise ValueError(
                f"jitter hue times jitter_strength must be at most 0.5, half the colour circle, "
                f"got {self.jitter[3]} * {self.jitter_strength}"
            )
        if self.blur_p > 0 and self.size <= self.blur_kernel // 2:
            raise ValueError(
                f"size must be at least {self.blur_kernel // 2 + 1} to be blurred, got {self.size}"
            )
        return self

    @property
    def strengths(self) -> tuple[float, float, float, float]:
        """Jitter strengths of brightness, contrast, saturation and hue, with `jitter_strength` applied."""
        b, c, s, h = (value * self.jitter_strength for value in self.jitter)
        return b, c, s, h

    @property
    def jitters(self) -> bool:
        """Whether some view gets its colours jittered."""
        return self.jitter_p > 0 and any(self.strengths)

    @property
    def blur_kernel(self) -> int:
        """Taps of the blur: the odd number at a tenth of the size, at least 3, as SimCLR has it (224: 23)."""
        return max(3, int(0.1 * self.size) | 1)

    @property
    def is_random(self) -> bool:
        """Whether two views of one picture can differ."""
        shares = (self.flip, self.grey_p, self.blur_p)
        return self.crop_scale is not None or self.auto_augment is not None or self.jitters or any(shares)

    def plain(self) -> ViewSpec:
        """One view for evaluation: nothing random; size, centre, interpolation and normalisation stay."""
        kept = {"size", "centre", "interpolation", "mean", "std"}
        return ViewSpec(count=1, **self.model_dump(include=kept))

    def crops(self) -> ViewSpec:
        """One random crop of 0.08 to 1 of the area, half of them mirrored: what linear probes are trained on.

        Size, interpolation and normalisation stay.
        """
        kept = {"size", "interpolation", "mean", "std"}
        return ViewSpec(count=1, crop_scale=(0.08, 1.0), flip=0.5, **self.model_dump(include=kept))


_SIMCLR: dict[str, Any] = {
    "crop_scale": (0.08, 1.0),
    "flip": 0.5,
    "jitter": (0.8, 0.8, 0.8, 0.2),
    "jitter_p": 0.8,
    "grey_p": 0.2,
}
_IMAGENET = dict(zip(("mean", "std"), STATISTICS["imagenet"], strict=True))
_CIFAR10 = dict(zip(("mean", "std"), STATISTICS["cifar10"], strict=True))

PRESETS: dict[str, ViewSpec] = {
    # Chen et al. 2020, section 3 and appendix A; `jitter_strength` is the paper's s (1 for ImageNet).
    "simclr": ViewSpec(size=224, blur_p=0.5, **_SIMCLR, **_IMAGENET),
    # The small-picture recipe of QARe: the same without blur.
    "simclr_small": ViewSpec(size=32, **_SIMCLR, **_CIFAR10),
    # The CIFAR recipe of MMCL, which it shares with HCL.
    "mmcl_cifar": ViewSpec(size=32, blur_p=0.5, **{**_SIMCLR, "jitter": (0.4, 0.4, 0.4, 0.1)}, **_CIFAR10),
    # SupCon and X-CLR on ImageNet.
    "supcon": ViewSpec(size=224, crop_scale=(0.08, 1.0), flip=0.5, auto_augment="imagenet", **_IMAGENET),
    "plain": ViewSpec(count=1, size=224, **_IMAGENET),
}


def view_spec(preset: str, **overrides: Any) -> ViewSpec:
    """A preset with some of its fields changed.

    Raises ValueError, one line, with the name, the value given and what is allowed, for an unknown preset, an
    unknown field and a value that is not allowed.

    >>> view_spec("simclr_small", size=28, jitter_strength=0.5).strengths
    (0.4, 0.4, 0.4, 0.1)
    >>> view_spec("simclr", colour=0.5)
    Traceback (most recent call last):
    ValueError: view preset 'simclr' has no field 'colour': there are count, size, crop_scale, ...
    """
    if preset not in PRESETS:
        raise ValueError(f"no view preset {preset!r}: {hint(preset, PRESETS)}")
    for name in overrides:
        if name not in ViewSpec.model_fields:
            raise ValueError(
                f"view preset {preset!r} has no field {name!r}: {hint(name, ViewSpec.model_fields)}"
            )
    try:
        # Dumped and read again because model_copy(update=...) does not validate.
        return ViewSpec.model_validate({**PRESETS[preset].model_dump(), **overrides})
    except ValidationError as error:
        raise ValueError("; ".join(_one_line(fault) for fault in error.errors())) from None


def _one_line(fault: Any) -> str:
    """One of pydantic's errors in words: 'views.flip must be less than or equal to 1, got 2'."""
    message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    place = ".".join(str(part) for part in fault["loc"])
    return f"views.{place} {message}, got {fault['input']!r}" if place else f"views: {message}"
