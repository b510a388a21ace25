"""Whether Triton's kernels take the place of torch's tiles: only where the environment asks for it.

COUNTERPOINT_TRITON=1 asks for them. They are for float32 on a CUDA device; anything else stays with torch's
tiles. Under TRITON_INTERPRET=1, which runs them slowly in Python, for tests, they take the CPU's vectors too.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

VARIABLE = "COUNTERPOINT_TRITON"

PRECISIONS = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
"""How products are taken, by `torch.set_float32_matmul_precision`: as float32, as three of TF32, as one."""


def takes_triton(x: Tensor) -> bool:
    """Whether the kernels are asked for, and are for such vectors.

    Raises ValueError where the variable is neither 0 nor 1, ImportError where Triton is missing.

    >>> takes_triton(torch.ones(2, dtype=torch.float64))
    False
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"the environment variable {VARIABLE} must be 0 or 1, got {asked!r}")
    if asked != "1" or x.dtype != torch.float32 or not (x.is_cuda or interpreted()):
        return False
    if importlib.util.find_spec("triton") is None:
        raise ImportError(f"{VARIABLE}=1 needs Triton, which comes with: pip install 'counterpoint[triton]'")
    return True


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python; it must be so from before it is imported."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"
