"""The losses on a GPU: checks that the Triton kernels are right there, then times them, in under 8 minutes.

    python benchmarks/gpu.py [--seconds 420] [--out benchmarks/results]
    python benchmarks/gpu.py --interpret

Needs a CUDA device, and says so where there is none, with exit status 2. Checks come first, losses and their
gradients against the table in float64; where one is wrong nothing is timed, and the exit status is 1. Then
NT-Xent and X-CLR, one pass forward and backward, of views in float32 and bfloat16: the table (plain), torch's
tiles (tiles), Triton's kernels (triton), and as a peer the same loss written in a few lines of torch and
compiled (compiled). Tables that would not fit in half of the memory are left out; where the time is over, so
are the sizes that remain, largest last, and their rows say so.

`--interpret` runs the checks alone, on the CPU, under Triton's interpreter, to see that this script works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measure import measure_in_turn, versions, write_csv
from torch import Tensor
from torch.nn.functional import normalize

from counterpoint.objectives import CLIP, XCLR, InfoNCE, NTXent
from counterpoint.objectives.base import Known
from counterpoint.similarity import EmbeddingGraph

OUT = Path(__file__).parent / "results"
TEXT_WIDTH = 384
ROWS = (8_192, 65_536, 262_144)
WIDTHS = (128, 512)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PRECISIONS = ("highest", "high", "medium")
TOLERANCE = {"highest": 1e-4, "high": 1e-4, "medium": 2e-2}
"""Largest relative error of loss and gradients: TF32 has 11 bits, and a score is its product over tau."""

Row = dict[str, Any]


@contextmanager
def triton(asked: bool) -> Iterator[None]:
    before = os.environ.get("COUNTERPOINT_TRITON", "0")
    os.environ["COUNTERPOINT_TRITON"] = "1" if asked else "0"
    try:
        yield
    finally:
        os.environ["COUNTERPOINT_TRITON"] = before


def views(n: int, d: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return [
        torch.randn(n, d, generator=generator, device=device).to(dtype).requires_grad_() for _ in range(2)
    ]


def graph_of(n: int, device: str) -> EmbeddingGraph:
    generator = torch.Generator(device).manual_seed(1)
    return EmbeddingGraph(torch.randn(n, TEXT_WIDTH, generator=generator, device=device))


def error(got: Tensor, right: Tensor) -> float:
    got, right = got.detach().double(), right.detach()
    return float((got - right).abs().max() / right.abs().max().clamp_min(1e-30))


def checks(device: str, sizes: list[tuple[int, int]], precisions: tuple[str, ...]) -> list[Row]:
    """Each loss by Triton in each precision against the table in float64: value and both views' gradients."""
    rows: list[Row] = []
    before = torch.get_float32_matmul_precision()
    for n, d in sizes:
        graph, ids = graph_of(n, device), torch.arange(n, device=device)
        part = slice(n // 3, n // 3 + max(1, n // 4))
        for make, anchors in [
            (NTXent, None),
            (InfoNCE, None),
            (CLIP, None),
            (XCLR, None),
            (XCLR, part),
            (NTXent, part),
        ]:
            soft = make is XCLR
            known = Known(target=graph.tiles(ids) if soft else None, anchors=anchors)
            table = graph.batch(ids).double()[anchors or slice(None)] if soft else None
            exact = [x.detach().double().requires_grad_() for x in views(n, d, torch.float32, device)]
            plain = make(chunk_size=None).to(device).double()
            right = plain.evaluate(exact, Known(target=table, anchors=anchors), False)[0]
            gradients = torch.autograd.grad(right, exact)
            for precision in precisions:
                torch.set_float32_matmul_precision(precision)
                z = views(n, d, torch.float32, device)
                with triton(True):
                    loss = make(chunk_size=512).to(device).evaluate(z, known, False)[0]
                    got = torch.autograd.grad(loss, z)
                errors = [error(a, b) for a, b in zip([loss, *got], [right, *gradients], strict=True)]
                rows.append(
                    {
                        "objective": make.__name__,
                        "anchors": "a part" if anchors else "all",
                        "samples": n,
                        "d": d,
                        "precision": precision,
                        "loss_error": f"{errors[0]:.1e}",
                        "gradient_error": f"{max(errors[1:]):.1e}",
                        "right": max(errors) <= TOLERANCE[precision],
                    }
                )
    torch.set_float32_matmul_precision(before)
    return rows


def written_out(z: list[Tensor], texts: Tensor | None) -> Tensor:
    """NT-Xent, or X-CLR with text vectors, as one writes it in torch; both temperatures are the defaults."""
    unit = normalize(torch.cat(z).float(), dim=1)
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    if texts is None:
        scores = (unit @ unit.T / 0.5).masked_fill(itself, -torch.inf)
        other = torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
        return torch.nn.functional.cross_entropy(scores, other)
    similar = (texts @ texts.T).repeat(2, 2).div(0.1).masked_fill(itself, -torch.inf)
    scores = (unit @ unit.T / 0.1).masked_fill(itself, torch.finfo(torch.float32).min)
    return torch.nn.functional.cross_entropy(scores, similar.softmax(1))


def arms_of(name: str, z: list[Tensor], room: int) -> dict[str, Callable[[], object]]:
    """Forward and backward of each way; those that hold tables only where these fit."""
    n, device = len(z[0]), str(z[0].device)
    graph, ids = graph_of(n, device), torch.arange(n, device=device)
    texts = normalize(graph.vectors, dim=1) if name == "xclr" else None
    make = XCLR if name == "xclr" else NTXent

    def ours(chunk_size: int | None, kernels: bool) -> Callable[[], object]:
        objective = make(chunk_size=chunk_size)

        def call() -> object:
            target = None
            if texts is not None:
                target = graph.batch(ids) if chunk_size is None else graph.tiles(ids)
            with triton(kernels):
                return torch.autograd.grad(objective.evaluate(z, Known(target=target), False)[0], z)

        return call

    compiled = torch.compile(written_out)
    tables = 6 * 4 * (2 * n) ** 2  # scores, exponentials, their gradient, and the same of the target
    found = {"triton": ours(512, True), "tiles": ours(4096, False)}
    if tables <= room:
        found["plain"] = ours(None, False)
        found["compiled"] = lambda: torch.autograd.grad(compiled(z, texts), z)
    return found


def timings(seconds: float) -> list[Row]:
    rows: list[Row] = []
    begin = time.perf_counter()
    room = torch.cuda.get_device_properties(0).total_memory // 2
    for total in ROWS:
        for d in WIDTHS:
            for dtype in TYPES:
                for name in ("ntxent", "xclr"):
                    case = {"objective": name, "rows": total, "d": d, "views": dtype}
                    z = views(total // 2, d, TYPES[dtype], "cuda")
                    for arm, call in arms_of(name, z, room).items():
                        for precision in PRECISIONS if arm == "triton" else ("highest", "high"):
                            left = seconds - (time.perf_counter() - begin)
                            row = timed(call, precision, left)
                            rows.append({**case, "arm": arm, "precision": precision, **row})
                            show("time", rows[-1])
    return rows


def timed(call: Callable[[], object], precision: str, left: float) -> Row:
    """Milliseconds, the median of up to 5, and the most memory beyond the inputs; or why not."""
    if left <= 0:
        return {"left_out": "the time was over"}
    torch.set_float32_matmul_precision(precision)
    try:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()  # compiles
        torch.cuda.synchronize()
        first = time.perf_counter() - begin
        if 2 * first > left:
            return {"first_call_ms": round(1000 * first, 2), "left_out": "one call alone: the time was over"}
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        repeats = max(1, min(5, int(5 / max(first, 1e-3))))
        seconds = measure_in_turn({"": call}, repeats, warmup=0)[""]
        peak = torch.cuda.max_memory_allocated() - held
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"left_out": "out of memory"}
    return {
        "median_ms": round(1000 * statistics.median(seconds), 3),
        "repeats": repeats,
        "first_call_ms": round(1000 * first, 2),
        "peak_MiB": round(peak / 2**20, 1),
    }


def show(part: str, row: Row) -> None:
    print(part, *(f"{key}={value}" for key, value in row.items()), flush=True)


def main() -> None:
    """Check, time, write two CSV files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interpret", action="store_true", help="the checks alone, tiny, on the CPU")
    parser.add_argument(
        "--seconds", type=float, default=420, help="for the timings; the last one may run over"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.interpret and os.environ.get("TRITON_INTERPRET") != "1":
        # Triton reads it when it is imported, which torch may have done by now.
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if not given.interpret and not torch.cuda.is_available():
        print(
            "gpu.py: torch finds no CUDA device; --interpret checks the kernels without one", file=sys.stderr
        )
        sys.exit(2)
    if given.interpret:
        found = checks("cpu", [(37, 20)], ("highest",))
    else:
        found = checks("cuda", [(1000, 128), (777, 500)], PRECISIONS)
    for row in found:
        show("check", row)
    name = "gpu-checks-interpreted.csv" if given.interpret else "gpu-checks.csv"
    write_csv(given.out / name, [{**row, **versions()} for row in found])
    print(f"rows: {given.out / name}")
    if not all(row["right"] for row in found):
        sys.exit("gpu.py: the kernels are wrong on this machine: see the checks above; nothing was timed")
    if not given.interpret:
        write_csv(given.out / "gpu.csv", [{**row, **versions()} for row in timings(given.seconds)])
        print(f"rows: {given.out / 'gpu.csv'}")


if __name__ == "__main__":
    main()
