"""What callers can get wrong, refused by name: numbers, views and side arguments."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from counterpoint.objectives.tiles import Tiles, checked_tile

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MODERATE = 1000
"""Beside a number beyond it a cosine in float32 keeps fewer than four digits."""


def positive(name: str, value: float) -> float:
    """That number as a float, or a ValueError where it is not a finite number above 0.

    >>> positive("tau", 0.5)
    0.5
    """
    number = _number(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    # Beyond these a float32 quotient overflows, and the loss would be NaN with nothing said.
    if not 1e-30 <= number <= 1e30:
        raise ValueError(f"{name} must lie between 1e-30 and 1e30, got {value!r}")
    return number


def not_negative(name: str, value: float) -> float:
    """That number as a float, or a ValueError where it is neither 0 nor one that `positive` allows.

    >>> not_negative("margin", 0)
    0.0
    """
    try:
        return 0.0 if _number(value) == 0 else positive(name, value)
    except ValueError:
        raise ValueError(f"{name} must be 0 or a number from 1e-30 to 1e30, got {value!r}") from None


def moderate(name: str, value: float) -> float:
    """That number as a float, or a ValueError where it would drown cosines in rounding.

    >>> moderate("shift", -1)
    -1.0
    """
    number = _number(value)
    if not abs(number) <= MODERATE:
        raise ValueError(f"{name} must be a number between -{MODERATE} and {MODERATE}, got {value!r}")
    return number


def _number(value: object) -> float:
    """A number as a float; NaN for what is none, such as text, True or several numbers.

    Nor is a tensor that wants a gradient, which a float would not give it.
    """
    if isinstance(value, bool | str | bytes) or getattr(value, "requires_grad", False):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def truth(name: str, value: bool) -> bool:
    """True or False, or a ValueError for anything else.

    >>> truth("symmetric", False)
    False
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return value


def one_of(name: str, value: str, allowed: Collection[str]) -> str:
    """That word, or a ValueError where it is not one of those allowed.

    >>> one_of("map", "softmax", ["softmax"])
    'softmax'
    """
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(sorted(allowed))}, got {value!r}")
    return value


def check_views(objective: str, views: Sequence[Tensor], fewest: int) -> None:
    """ValueError unless there are at least `fewest` views, each `(n, d)`, alike in shape and device."""
    if len(views) < fewest:
        raise ValueError(f"{objective} needs at least {fewest} view(s) of shape (n, d), got {len(views)}")
    for i, z in enumerate(views):
        if not isinstance(z, Tensor):
            raise ValueError(f"{objective}: view {i} must be a tensor (n, d), got {type(z).__name__}")
        if z.ndim != 2 or 0 in z.shape or not z.is_floating_point():
            raise ValueError(
                f"{objective}: view {i} must be a floating tensor (n, d) with n >= 1 and d >= 1, got shape "
                f"{tuple(z.shape)} and {z.dtype}; labels, target and ids are given by name"
            )
        if not is_dense(z):
            raise ValueError(
                f"{objective}: view {i} must be dense and float16, bfloat16, float32 or float64, "
                f"got {described(z)}"
            )
    if len({tuple(z.shape) for z in views}) > 1:
        shapes = ", ".join(str(tuple(z.shape)) for z in views)
        raise ValueError(f"{objective}: all views must have the same shape (n, d), got {shapes}")
    if len({z.device for z in views}) > 1:
        devices = ", ".join(str(z.device) for z in views)
        raise ValueError(f"{objective}: all views must be on the same device, got {devices}")


def sample_integers(name: str, values: Tensor | None, like: Tensor, lowest: int | None = None) -> Tensor:
    """`values` as `(n,)` int64 on the device of `like` `(n, d)`, or a ValueError."""
    n = len(like)
    if not isinstance(values, Tensor) or values.dtype not in INTEGERS or values.shape != (n,):
        raise ValueError(f"{name} must be an integer tensor of shape ({n},), got {described(values)}")
    # Reading a value from an accelerator would wait for all work queued on it.
    if lowest is not None and values.device.type == "cpu" and int(values.min()) < lowest:
        raise ValueError(f"{name} must be {lowest} or above, got {int(values.min())}")
    return values.to(device=like.device, dtype=torch.int64)


def sample_similarity(
    name: str, values: Tensor | Tiles | None, like: Tensor, anchors: slice | None = None
) -> Tensor:
    """`values` as a detached `(n, n)` tensor of the type of `like` `(n, d)`, or a ValueError.

    values: a tensor, or `Tiles` of the n samples.
    anchors: with start and stop; of all rows these are taken, and they alone, `(a, n)`, may be given.
    """
    n = len(like)
    if isinstance(values, Tiles) and not isinstance(values, Tensor):
        values = whole_rows(name, values, like, slice(0, n) if anchors is None else anchors)
    rows = n if anchors is None else anchors.stop - anchors.start
    fits = isinstance(values, Tensor) and is_dense(values) and values.shape in {(n, n), (rows, n)}
    if not isinstance(values, Tensor) or not fits:
        graph = "; a similarity graph gives it by graph.batch(ids)" if hasattr(values, "batch") else ""
        or_rows = "" if rows == n else f", or ({rows}, {n}) for the anchors alone"
        raise ValueError(
            f"{name} must be a floating tensor of shape ({n}, {n}){or_rows}, got {described(values)}{graph}"
        )
    if anchors is not None and len(values) == n:
        values = values[anchors]
    # In the type it is used in: 1e200 is finite in float64 and not in float32.
    on_cpu, values = values.device.type == "cpu", values.detach().to(dtype=like.dtype)
    if on_cpu:
        check_finite(name, values)
    return values.to(device=like.device)


def check_length(name: str, tiles: Tiles, like: Tensor) -> None:
    """ValueError unless tiles are of as many samples as there are rows in `like` `(n, d)`."""
    if len(tiles) != len(like):
        raise ValueError(f"{name} must give tiles of {len(like)} samples, got those of {len(tiles)}")


def whole_rows(name: str, tiles: Tiles, like: Tensor, anchors: slice) -> Tensor:
    """The rows of some anchors, `(a, n)`, of a target given by tiles; ValueError where they do not fit."""
    check_length(name, tiles, like)
    return checked_tile(tiles, anchors, slice(0, len(like)), like)


def check_finite(name: str, values: Tensor) -> None:
    """ValueError that counts the NaN and infinite entries, if there are any. Waits for an accelerator."""
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        raise ValueError(
            f"{name} must be finite, got {int((~finite).sum())} of {values.numel()} NaN or infinite"
        )


def is_dense(values: Tensor) -> bool:
    """Whether a tensor is floating, of 16 bits or more, and holds all its entries.

    >>> is_dense(torch.eye(2)), is_dense(torch.eye(2).to_sparse()), is_dense(torch.eye(2).int())
    (True, False, False)
    """
    return values.dtype in FLOATS and values.layout == torch.strided


def described(values: object) -> str:
    """Shape and type of a tensor, for messages; of anything else its kind.

    >>> described(torch.eye(2).to_sparse()), described([1.0])
    ('shape (2, 2) and torch.float32, torch.sparse_coo', 'list')
    """
    if isinstance(values, Tensor):
        layout = "" if values.layout == torch.strided else f", {values.layout}"
        return f"shape {tuple(values.shape)} and {values.dtype}{layout}"
    return type(values).__name__
