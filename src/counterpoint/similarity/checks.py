"""What a graph refuses, said by name, number and what is allowed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterpoint.data.samples import UNLABELLED

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Relative to the larger of 1 and the two entries: cosines in float32 differ by about 1e-7.
TOLERANCE = 1e-5
STRIP = 1024


def check_ids(ids: Tensor, count: int, what: str = "ids") -> None:
    """Ids of samples: `(n,)` int64, each in 0..count-1.

    Raises ValueError that names the first one outside.

    >>> check_ids(torch.tensor([0, 7]), count=5)
    Traceback (most recent call last):
    ValueError: ids[1] is 7, but the graph has 5 samples: 0 to 4 are allowed
    """
    if not isinstance(ids, Tensor):
        raise ValueError(f"{what} must be an int64 tensor of shape (n,), got {type(ids).__name__}")
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise ValueError(
            f"{what} must be an int64 tensor of shape (n,), got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    outside = (ids < 0) | (ids >= count)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"{what}[{row}] is {int(ids[row])}, but the graph has {count} samples: "
            f"0 to {count - 1} are allowed"
        )


def check_count(n: int, what: str = "n") -> int:
    """A number of samples: an integer of at least 1.

    >>> check_count(0)
    Traceback (most recent call last):
    ValueError: n must be an integer of at least 1, got 0
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"{what} must be an integer of at least 1, got {n!r}")
    return int(n)


def check_labels(labels: Tensor) -> Tensor:
    """Labels `(n,)` of any integer type, as int64; -1 means unlabelled.

    Raises ValueError for another type or shape, no sample, or a label below -1.

    >>> check_labels(torch.tensor([0, -3]))
    Traceback (most recent call last):
    ValueError: labels[1] is -3: a label is 0 or more, or -1 for a sample without one
    """
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS or labels.ndim != 1:
        got = (
            f"{labels.dtype} of shape {tuple(labels.shape)}"
            if isinstance(labels, Tensor)
            else type(labels).__name__
        )
        raise ValueError(f"labels must be an integer tensor of shape (n,), got {got}")
    check_count(len(labels), "the number of labels")
    labels = labels.to(torch.int64)
    below = labels < UNLABELLED
    if bool(below.any()):
        row = int(below.nonzero()[0])
        raise ValueError(
            f"labels[{row}] is {int(labels[row])}: a label is 0 or more, or {UNLABELLED} for a sample "
            "without one"
        )
    return labels


def check_symmetric(matrix: Tensor, what: str) -> Tensor:
    """A square, finite, symmetric matrix as float32 `(n, n)`, made exactly symmetric.

    Raises ValueError that names the first bad entry in row order. Entries may differ from their mirror image
    by 1e-5, relative to the larger of 1 and the entries.

    >>> check_symmetric(torch.tensor([[1.0, 0.2], [0.3, 1.0]]), "matrix")
    Traceback (most recent call last):
    ValueError: matrix must be symmetric: matrix[0, 1] is 0.2, but matrix[1, 0] is 0.3
    """
    if not isinstance(matrix, Tensor) or matrix.is_complex():
        got = str(matrix.dtype) if isinstance(matrix, Tensor) else type(matrix).__name__
        raise ValueError(f"{what} must be a tensor of real numbers, got {got}")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(
            f"{what} must be square, of shape (n, n) with n at least 1, got {tuple(matrix.shape)}"
        )
    matrix = matrix.detach().to(torch.float32)
    out = torch.empty_like(matrix)
    # In strips of rows: a table of 20,000 classes is 1.6 GB, and the checks would take it several times over.
    for start in range(0, len(matrix), STRIP):
        rows, mirror = matrix[start : start + STRIP], matrix[:, start : start + STRIP].T
        infinite = ~rows.isfinite()
        if bool(infinite.any()):
            i, j = infinite.nonzero()[0].tolist()
            raise ValueError(
                f"{what}[{start + i}, {j}] is {float(rows[i, j]):g}: every entry must be a finite float32"
            )
        scale = torch.maximum(rows.abs(), mirror.abs()).clamp_min(1)
        skew = (rows - mirror).abs() > TOLERANCE * scale
        if bool(skew.any()):
            i, j = skew.nonzero()[0].tolist()
            raise ValueError(
                f"{what} must be symmetric: {what}[{start + i}, {j}] is {float(rows[i, j]):.7g}, "
                f"but {what}[{j}, {start + i}] is {float(mirror[i, j]):.7g}"
            )
        # Halved before the sum, so that two entries near the largest float32 do not overflow.
        out[start : start + STRIP] = rows / 2 + mirror / 2
    return out
