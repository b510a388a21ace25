"""The encoder: a backbone whose features are kept and a projection head that only the objective sees."""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from counterpoint.models.backbones import Bare, bare_backbone
from counterpoint.models.heads import mlp_head


class Encoder(nn.Module):
    """`encoder(x) -> (h, z)`: features h `(n, width)` before the head, embeddings z `(n, out)` after it.

    backbone: pictures to features `(n, width)`; any module of yours will do.
    head: features to embeddings; None is the identity, and then z is h.
    size: the only picture size `(h, w)` the backbone takes, None where any will do.
    channels_last: on a CPU, hand the pictures on in that layout: the same function, and most convolutions are
        faster so (benchmarks/layouts.py). The backbone must not call `view` on maps of features.

    Objectives train z; probes and neighbours read h, which carries more than z does.

    Raises ValueError on pictures that are not floating point or not of that size, and where the backbone does
    not give `(n, width)`.

    >>> encoder = Encoder(nn.Flatten(), mlp_head(48, (16, 8)), width=48)
    >>> h, z = encoder(torch.zeros(2, 3, 4, 4))
    >>> h.shape, z.shape
    (torch.Size([2, 48]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module | None = None,
        *,
        width: int,
        size: tuple[int, int] | None = None,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Identity() if head is None else head
        self.width = width
        self.size = size
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not x.is_floating_point():
            raise ValueError(f"pictures must be floating point, got {x.dtype}: scale them, as the views do")
        if self.size is not None and tuple(x.shape[-2:]) != self.size:
            raise ValueError(f"this backbone takes pictures of {self.size} pixels only, got {tuple(x.shape)}")
        if self.channels_last and x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        h = self.backbone(x)
        if not isinstance(h, Tensor) or h.shape != (len(x), self.width):
            got = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise ValueError(f"the backbone must give features of shape {(len(x), self.width)}, got {got}")
        return h, self.head(h)


def build_encoder(
    backbone: str = "conv4",
    *,
    stem: str = "default",
    width_multiplier: int = 1,
    extra_linear: bool = False,
    head: Sequence[int] | None = (256, 128),
    head_norm: bool = True,
    head_final_norm: bool = False,
    head_activation: str = "relu",
    pretrained: bool = False,
    weights: str | Path | None = None,
    seed: int | None = None,
) -> Encoder:
    """An encoder by name.

    backbone: "conv4", "resnet8", "resnet20", "resnet32", "resnet56" (ours, for small pictures); a torchvision
        classification model ("resnet50", "torchvision:vit_b_16"); "timm:NAME", "timm:hf-hub:OWNER/MODEL"
        or "efficientnet_lite0" (extra "backbones").
    stem: "small" for torchvision ResNets on small pictures: 3x3 stride-1 first convolution, no max-pool.
    width_multiplier: factor on the channels of our backbones.
    extra_linear: QARe's linear layer after the pooling of our ResNets.
    head: output sizes of its 1 to 3 linear layers; `()` or None for no head.
    head_norm, head_final_norm, head_activation: see `heads.mlp_head`.
    pretrained: download the library's default weights; `weights="pretrained"` says the same.
    weights: a file (a state dict of the backbone or of an `Encoder`, or a checkpoint of `counterpoint
        train`), the folder of a run of it (its newest checkpoint), or the name of published torchvision
        weights. Only the backbone is filled, never the head.
    seed: where the initial weights come from. The same seed gives bit-equal weights on every device, and the
        global random state is neither read nor moved. None draws from the global random state.

    Raises ValueError on an unknown name (with the nearest), an option the backbone lacks, or weights that do
    not fit.

    >>> encoder = build_encoder("conv4", head=(32, 16), seed=0)
    >>> h, z = encoder(torch.zeros(2, 3, 32, 32))
    >>> h.shape, z.shape, encoder.width
    (torch.Size([2, 64]), torch.Size([2, 16]), 64)
    """
    if weights == "pretrained":
        pretrained, weights = True, None
    if pretrained and weights is not None:
        raise ValueError(f"give pretrained=True or weights={str(weights)!r}, not both")
    path = None if weights is None else _file(Path(weights))
    published = "DEFAULT" if pretrained else str(weights) if path is not None and not path.is_file() else None
    if path is not None and published is not None and _looks_like_a_path(path):
        raise ValueError(f"weights: there is no file {published}")
    with _seeded(seed):
        bare = bare_backbone(
            backbone,
            stem=stem,
            width_multiplier=width_multiplier,
            extra_linear=extra_linear,
            published=published,
        )
        projection = mlp_head(
            bare.width, head, norm=head_norm, final_norm=head_final_norm, activation=head_activation
        )
    if path is not None and published is None:
        _fill(bare, path)
    return Encoder(bare.module, projection, width=bare.width, size=bare.size, channels_last=True)


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    # Built on the CPU, since each kind of device draws other numbers from the same seed; and by the CPU
    # generator alone, since torch.manual_seed would move the accelerators' generators too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def _file(path: Path) -> Path:
    """The file itself, or the newest checkpoint where this is the folder of a run."""
    if not path.is_dir():
        return path
    # Steps have eight digits, so that the last name is the newest.
    if found := sorted((path / "checkpoints").glob("step-*.safetensors")):
        return found[-1]
    raise ValueError(f"weights: {path} is a folder without a checkpoint of counterpoint train")


def _looks_like_a_path(path: Path) -> bool:
    return len(path.parts) > 1 or path.suffix in (".pt", ".pth", ".safetensors")


def _fill(bare: Bare, path: Path) -> None:
    state = _backbone_state(path)
    wanted = bare.module.state_dict()
    removed = (
        [key for key in state if key not in wanted and key.startswith(bare.ignored)] if bare.ignored else []
    )
    state = {key: value for key, value in state.items() if key not in removed}
    faults = [f"{key} is missing" for key in wanted if key not in state]
    faults += [f"{key} is not in this backbone" for key in state if key not in wanted]
    faults += [
        f"{key} has shape {tuple(state[key].shape)} for {tuple(wanted[key].shape)}"
        for key in wanted
        if key in state and state[key].shape != wanted[key].shape
    ]
    if faults:
        more = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(f"weights {path} do not fit this backbone: {', '.join(faults[:3])}{more}")
    bare.module.load_state_dict(state)


def _backbone_state(path: Path) -> dict[str, Tensor]:
    """The backbone's tensors in a file, under the names the backbone itself gives them."""
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
            # Our checkpoints name each tensor by its place in their state.
            if any(key.startswith("encoder/") for key in state):
                state = {k.removeprefix("encoder/"): v for k, v in state.items() if k.startswith("encoder/")}
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (
        RuntimeError,
        EOFError,
        LookupError,
        ValueError,
        struct.error,
        pickle.UnpicklingError,
        SafetensorError,
    ) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"weights {path} are not a file of tensors: {reason}") from error
    for part in ("encoder", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(part), dict):
            state = state[part]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"weights {path} hold no state dict")
    if any(key.startswith("backbone.") for key in state):
        return {k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")}
    return dict(state)
