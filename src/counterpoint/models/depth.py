"""How deep in a backbone each weight lies: for learning rates that fall from the last block to the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from counterpoint.extras import need

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
MOST = 0.75


def block_depths(backbone: nn.Module) -> dict[str, int]:
    """The place of the block of each parameter, by name: 0 is the block nearest to the picture.

    A model of timm says itself what its blocks are. For any other, blocks are the modules that have weights,
    in their order; a container is opened into its parts, and so is a module around a container with more
    than three quarters of all weights, as torchvision's ViT has it. What has only vectors (a norm layer)
    belongs to the block before it, and what lies beside the modules (a class token) to the first one.

    >>> from counterpoint.models.conv4 import Conv4
    >>> depths = block_depths(Conv4())
    >>> depths["blocks.0.conv.weight"], depths["blocks.0.norm.weight"], depths["blocks.3.norm.bias"]
    (0, 0, 3)
    """
    matcher: Any = getattr(backbone, "group_matcher", None)
    if matcher is not None:
        models = need("timm.models", extra="backbones")
        named = {name for name, _ in backbone.named_parameters()}
        found = models.group_parameters(backbone, matcher(coarse=False), reverse=True)
        places = {name: place for name, place in found.items() if name in named}
        order = {place: rank for rank, place in enumerate(sorted(set(places.values())))}
        return {name: order[place] for name, place in places.items()}
    whole = sum(p.numel() for p in backbone.parameters())
    depth = -1
    depths = {name: 0 for name, _ in backbone.named_parameters()}
    for prefix, block in _blocks("", backbone, whole):
        parameters = dict(block.named_parameters())
        if depth < 0 or any(p.ndim > 1 for p in parameters.values()):
            depth += 1
        depths.update({f"{prefix}{name}": depth for name in parameters})
    return depths


def _blocks(prefix: str, module: nn.Module, whole: int) -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_children():
        size = sum(p.numel() for p in part.parameters())
        if not size:
            continue
        around = size > MOST * whole and any(isinstance(inner, CONTAINERS) for inner in part.children())
        if isinstance(part, CONTAINERS) or around:
            yield from _blocks(f"{prefix}{name}.", part, whole)
        else:
            yield f"{prefix}{name}.", part
