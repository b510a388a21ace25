"""Projection heads: the small network between the features and the objective, thrown away after training.

Source: Chen et al., A Simple Framework for Contrastive Learning of Visual Representations (SimCLR, 2020).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU}
MOST_LAYERS = 3


def mlp_head(
    width: int,
    sizes: Sequence[int] | None = (256, 128),
    *,
    norm: bool = True,
    final_norm: bool = False,
    activation: str = "relu",
) -> nn.Module:
    """A head from features `(n, width)` to embeddings `(n, sizes[-1])`.

    sizes: output size of each of 1 to 3 linear layers; `()` or None gives the identity.
    norm: batch norm between the linear layers, before the activation; the linear map then has no bias, since
        the norm would remove it.
    final_norm: batch norm on the embeddings too, with a learned scale and no learned bias, as SimCLR's code
        and the released MMCL have it.
    activation: "relu" (SimCLR, X-CLR, MMCL) or "leaky_relu" (QARe).

    Raises ValueError on a size below 1, more than 3 layers, or an unknown activation.

    >>> import torch
    >>> mlp_head(64, (256, 128))(torch.zeros(2, 64)).shape
    torch.Size([2, 128])
    """
    sizes = tuple(sizes or ())
    if len(sizes) > MOST_LAYERS:
        raise ValueError(f"head={sizes} has {len(sizes)} linear layers; 0 to {MOST_LAYERS} are allowed")
    if any(size < 1 for size in sizes):
        raise ValueError(f"head={sizes}: every size must be >= 1")
    if activation not in ACTIVATIONS:
        raise ValueError(f"head activation {activation!r} is not known; allowed: {', '.join(ACTIVATIONS)}")
    if not sizes:
        if final_norm:
            raise ValueError("head=() is the identity; it takes no final_norm")
        return nn.Identity()
    layers: list[tuple[str, nn.Module]] = []
    for i, (n_in, n_out) in enumerate(zip([width, *sizes], sizes, strict=False), start=1):
        last = i == len(sizes)
        normed = final_norm if last else norm
        layers.append((f"linear{i}", nn.Linear(n_in, n_out, bias=not normed)))
        if normed:
            layers.append((f"norm{i}", ScaleNorm(n_out) if last else nn.BatchNorm1d(n_out)))
        if not last:
            layers.append((f"act{i}", ACTIVATIONS[activation]()))
    return nn.Sequential(OrderedDict(layers))


class ScaleNorm(nn.BatchNorm1d):
    """Batch norm `(n, d) -> (n, d)` with a learned scale and no learned bias.

    >>> sorted(ScaleNorm(4).state_dict())
    ['num_batches_tracked', 'running_mean', 'running_var', 'weight']
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        nn.init.ones_(self.weight)
