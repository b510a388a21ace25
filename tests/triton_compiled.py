"""Compiles the Triton kernels for GPUs, none of which need be here, and checks that they fit: a script.

A program may have 99 KiB of shared memory on the smallest GPUs of compute capability 8.0 and up.
"""

import os
import sys

import torch
from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from counterpoint.objectives import triton_kernels as kernels
from counterpoint.objectives.tiles import Cosines

MOST_SHARED = 99 * 1024
CASES = [(90, "high", 300, 384), (80, "highest", 128, 0)]


class Asked(Exception):
    """A launch, instead of which its arguments are taken."""

    def __init__(self, positional: tuple, named: dict) -> None:
        self.positional, self.named = positional, named


class Recorder:
    """In a kernel's place: `kernel[grid](...)` ends with its arguments."""

    def __getitem__(self, grid: tuple) -> object:
        def launch(*positional: object, **named: object) -> None:
            raise Asked(positional, named)

        return launch


def arguments_of(call: object, name: str) -> tuple[tuple, dict]:
    """What the launcher would give the kernel of that name."""
    real = getattr(kernels, name)
    setattr(kernels, name, Recorder())
    try:
        call()
    except Asked as asked:
        return asked.positional, asked.named
    finally:
        setattr(kernels, name, real)
    raise AssertionError(f"{name} was not launched")


TYPES = {torch.float32: "*fp32", torch.int64: "*i64"}


def shared_bytes(name: str, call: object, capability: int) -> int:
    kernel = getattr(kernels, name)
    positional, named = arguments_of(call, name)
    options = {key: named.pop(key) for key in ("num_warps", "num_stages")}
    given = dict(zip([p.name for p in kernel.params], positional, strict=False)) | named
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = given.pop(parameter.name)
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
            attributes[place,] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    if given:
        raise AssertionError(f"{name} has no parameters {sorted(given)}")
    source = ASTSource(kernel, signature, constants, attributes)
    binary = compiled(source, target=GPUTarget("cuda", capability, 32), options=options)
    if not binary.asm["cubin"]:
        raise AssertionError(f"{name} has no binary")
    return int(binary.metadata.shared)


def main() -> None:
    for capability, precision, d, d_t in CASES:
        torch.set_float32_matmul_precision(precision)
        z, n = torch.zeros(2, 100, d), 100
        target = None
        if d_t:
            cosines = Cosines(torch.zeros(n, d_t), torch.arange(n))
            target = kernels.Target(cosines, 10.0)
        x = kernels.Side(z, 0, z[..., 0], z[..., 0], z[..., 0])
        calls = {
            "_forward": lambda x=x, t=target: kernels.sums(x, x, "itself", t),
            "_backward": lambda x=x, t=target: kernels.gradient(x, x, "itself", t),
        }
        for name, call in calls.items():
            shared = shared_bytes(name, call, capability)
            print(f"sm_{capability} {precision} d={d} d_t={d_t} {name}: {shared} bytes", flush=True)
            if shared > MOST_SHARED:
                sys.exit(f"{name} for sm_{capability} takes {shared} bytes of shared memory")
    print("all fit")


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        sys.exit("compiling needs TRITON_INTERPRET unset")
    main()
