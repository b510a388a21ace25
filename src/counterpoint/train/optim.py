"""Optimisers and learning rates.

LARS follows You et al., Large Batch Training of Convolutional Networks (2017), with the exclusions of Chen et
al., SimCLR (2020): batch norm parameters and biases get neither weight decay nor an adapted rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from counterpoint.models.depth import block_depths
from counterpoint.models.encoder import Encoder

OPTIMIZERS = ("adam", "adamw", "sgd", "lars")
SCALINGS = ("none", "sqrt", "linear")
SCHEDULES = ("cosine", "linear", "constant")


class LARS(Optimizer):
    """SGD with momentum; each tensor's rate is scaled by the norm of its weights over that of its gradient.

    With w the weights of one tensor, g their gradient, v the momentum buffer (0 at the start):

        local = trust ||w|| / (||g|| + weight_decay ||w||)
        v <- momentum v + local (g + weight_decay w)
        w <- w - lr v                     (nesterov: w - lr (momentum v + local (g + weight_decay w)))

    `local` is 1 where w is zero or the denominator is, and in parameter groups with `adapt=False`.

    Relations: with `adapt=False` this is torch's SGD. The paper keeps lr inside v; here it stands outside, as
    in torch's SGD, which is the same while lr is constant. SimCLR's code divides by ||g + weight_decay w||,
    which is nearly the same for the small weight decays in use.

    Raises ValueError on a value out of range and on sparse gradients.

    >>> weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.0, 10.0])
    >>> LARS([weight], lr=2.0, trust=0.001).step()
    >>> weight.data
    tensor([3.0000, 3.9900])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        nesterov: bool = False,
        adapt: bool = True,
    ) -> None:
        _at_least_zero(lr=lr, weight_decay=weight_decay)
        _momentum(momentum, nesterov)
        if not trust > 0:
            raise ValueError(f"trust must be > 0, got {trust}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "nesterov": nesterov,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    alike.setdefault((param.device, param.dtype), []).append(param)
            for params in alike.values():
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [param.grad for param in params if param.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise ValueError("LARS takes dense gradients only, got a sparse one")
        momentum, decay = group["momentum"], group["weight_decay"]
        moves = torch._foreach_add(grads, params, alpha=decay) if decay else grads
        if group["adapt"]:
            local = _local_rates(params, grads, decay, group["trust"])
            moves = torch._foreach_mul(moves, list(local.to(params[0].dtype).unbind()))
        if momentum:
            buffers = [self._buffer(param) for param in params]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, moves)
            moves = torch._foreach_add(moves, buffers, alpha=momentum) if group["nesterov"] else buffers
        torch._foreach_add_(params, moves, alpha=-group["lr"])

    def _buffer(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _local_rates(params: list[Tensor], grads: list[Tensor], decay: float, trust: float) -> Tensor:
    """`(len(params),)`: the factor on the rate of each tensor. No value leaves the device."""
    # Squares overflow in half precision.
    dtype = torch.float32 if params[0].dtype in (torch.float16, torch.bfloat16) else params[0].dtype
    w = torch.stack(torch._foreach_norm(params, 2, dtype))
    below = torch.stack(torch._foreach_norm(grads, 2, dtype)) + decay * w
    return torch.where((w > 0) & (below > 0), trust * w / below, torch.ones_like(w))


def build_optimizer(
    model: nn.Module,
    name: str = "adamw",
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    trust: float = 0.001,
    factors: Mapping[Tensor, float] | None = None,
) -> Optimizer:
    """An optimiser over the trainable parameters of a model, in two groups.

    The first group has the weights. The second has every parameter of at most one dimension, which are the
    biases and the scales of the norm layers: they get no weight decay and, under LARS, no adapted rate.
    Frozen parameters are in neither.

    name: "adam" (decay added to the gradient), "adamw" (decay apart from it), "sgd", "lars".
    momentum, nesterov: of sgd and lars. betas: of adam and adamw. trust: of lars.
    factors: on the rate of single parameters, see `rate_factors`; all others have 1. Each factor then has two
        groups of its own, with the factor as `lr_factor`.

    Raises ValueError on an unknown name, a value out of range, or a model without trainable parameters.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> optimizer = build_optimizer(model, "lars", lr=0.1, weight_decay=1e-6)
    >>> [(len(group["params"]), group["weight_decay"], group["adapt"]) for group in optimizer.param_groups]
    [(1, 1e-06, True), (3, 0.0, False)]
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is not known; allowed: {', '.join(OPTIMIZERS)}")
    _at_least_zero(lr=lr, weight_decay=weight_decay)
    _momentum(momentum, nesterov)
    if nesterov and name not in ("sgd", "lars"):
        raise ValueError(f"nesterov is for sgd and lars, not {name}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must lie in [0, 1), got {betas}")
    trainable = [param for param in model.parameters() if param.requires_grad]
    if not trainable:
        raise ValueError(f"{type(model).__name__} has no trainable parameters")
    groups: list[dict[str, Any]] = []
    of = {param: 1.0 if factors is None else factors.get(param, 1.0) for param in trainable}
    for factor in sorted(set(of.values())):
        alike = [param for param in trainable if of[param] == factor]
        kept: dict[str, Any] = {"params": [p for p in alike if p.ndim > 1], "weight_decay": weight_decay}
        bare: dict[str, Any] = {"params": [p for p in alike if p.ndim <= 1], "weight_decay": 0.0}
        if name == "lars":
            bare["adapt"] = False
        if factors is not None:
            for group in (kept, bare):
                group |= {"lr": lr * factor, "lr_factor": factor}
        groups += [group for group in (kept, bare) if group["params"]]
    if name == "lars":
        return LARS(groups, lr=lr, momentum=momentum, nesterov=nesterov, trust=trust)
    if name == "sgd":
        return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    kind = Adam if name == "adam" else AdamW
    return kind(groups, lr=lr, betas=betas)


def rate_factors(
    encoder: Encoder, layer_decay: float | None = None, head_factor: float = 1.0
) -> dict[Tensor, float] | None:
    """Factors on the learning rate for fine-tuning, by parameter; None where all are 1.

    layer_decay: the last block of the backbone has this factor, the one before it the square, and so on down
        to the first. Blocks are those of `models.depth.block_depths`.
    head_factor: of the head, which starts fresh. Text towers and learned temperatures keep 1.

    Raises ValueError on a layer_decay outside (0, 1] and a head_factor that is not above 0.

    >>> from counterpoint.models.encoder import build_encoder
    >>> encoder = build_encoder("conv4", head=(16,))
    >>> sorted(set(rate_factors(encoder, layer_decay=0.5, head_factor=2.0).values()))
    [0.0625, 0.125, 0.25, 0.5, 2.0]
    """
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must lie in (0, 1], got {layer_decay}")
    if not 0 < head_factor < math.inf:
        raise ValueError(f"head_factor must be a finite number > 0, got {head_factor}")
    factors: dict[Tensor, float] = {
        param: head_factor for param in encoder.head.parameters() if head_factor != 1
    }
    if layer_decay not in (None, 1):
        depths = block_depths(encoder.backbone)
        blocks = max(depths.values()) + 1
        for name, param in encoder.backbone.named_parameters():
            factors[param] = layer_decay ** (blocks - depths[name])
    return factors or None


def scaled_lr(base_lr: float, batch_size: int, scaling: str = "none") -> float:
    """The peak rate for a batch of that many samples: over all processes, a sample's views counted once.

    "none": base_lr. "linear": base_lr batch_size / 256. "sqrt": base_lr sqrt(batch_size); the SimCLR code
        base has
    both, and there a square-root base rate of 0.075 at batch 1024 means 2.4.

    Raises ValueError on an unknown scaling and on values out of range.

    >>> scaled_lr(0.3, 512, "linear")
    0.6
    >>> round(scaled_lr(0.075, 1024, "sqrt"), 6)
    2.4
    """
    _at_least_zero(base_lr=base_lr)
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    if scaling == "none":
        return base_lr
    if scaling == "linear":
        return base_lr * batch_size / 256
    if scaling == "sqrt":
        return base_lr * math.sqrt(batch_size)
    raise ValueError(f"lr scaling {scaling!r} is not known; allowed: {', '.join(SCALINGS)}")


def learning_rate(
    step: int,
    total_steps: int,
    warmup_steps: int,
    peak: float,
    schedule: str = "cosine",
    final: float = 0.0,
) -> float:
    """The rate of update number `step`, counted from 0: no scheduler, so resuming needs no state of one.

    A straight line from 0 at step 0 to `peak` at step `warmup_steps`, then a half cosine, a straight line or
    a constant to step `total_steps`, where "cosine" and "linear" are exactly `final`. The last update is
    number `total_steps - 1`, one step before. With a warm-up, update 0 has rate 0, as in SimCLR's code.

    Raises ValueError on a step outside [0, total_steps], a warm-up longer than the run, an unknown schedule,
    and `final` with "constant".

    >>> [learning_rate(step, 8, 2, 1.0, "linear") for step in (0, 1, 2, 5, 8)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= step <= total_steps:
        raise ValueError(f"step must lie in [0, total_steps] = [0, {total_steps}], got {step}")
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(
            f"warmup_steps must lie in [0, total_steps] = [0, {total_steps}], got {warmup_steps}"
        )
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is not known; allowed: {', '.join(SCHEDULES)}")
    _at_least_zero(peak=peak, final=final)
    if schedule == "constant" and final:
        raise ValueError(f"final={final} has no meaning with schedule='constant'; leave it at 0")
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant" or warmup_steps == total_steps:
        return peak
    gone = (step - warmup_steps) / (total_steps - warmup_steps)
    left = 1 - gone if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * gone))
    # A weighted sum, not final + (peak - final) left: that one misses the peak by a rounding.
    return peak * left + final * (1 - left)


def _at_least_zero(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number >= 0, got {value}")


def _momentum(momentum: float, nesterov: bool) -> None:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
    if nesterov and momentum == 0:
        raise ValueError("nesterov needs a momentum > 0, got 0")
