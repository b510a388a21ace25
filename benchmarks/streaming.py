"""What the losses cost without their table of scores, against the table, against peers, against the products.

    python benchmarks/streaming.py [--only scale,plain,peers,floor,table] [--small] [--repeats 5]

Times are of a forward and a backward pass, the arms of a comparison in turn in one process. Memory is the
largest resident set of the process during one call, above what it was before (`scale`), or the most that
torch's allocator holds beyond the inputs (all others).

* scale: X-CLR by tiles at 65,536 and 131,072 rows, d = 128, with text vectors of width 384;
* plain: tiles against the table at 8,192 rows: NT-Xent, X-CLR, SupCon, CLIP, SparseCLR;
* peers: NT-Xent against lightly's and pytorch-metric-learning's NTXentLoss, 256 to 4,096 pairs;
* floor: NT-Xent of 2,048 pairs against two products of its size alone: the scores, and their gradient;
* table: every objective against n, with one product of the scores' size beside it.

`--small` takes sizes that end in seconds, to see that it works. One thread and processor time are for a
machine that others use too.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import measure_in_turn, peak_bytes, peak_memory, versions, write_csv
from torch import Tensor
from torch.nn.functional import normalize

from counterpoint.objectives import OBJECTIVES, Objective
from counterpoint.similarity import EmbeddingGraph

OUT = Path(__file__).parent / "results"
WIDTH, TEXT_WIDTH = 128, 384
PARTS = ("scale", "plain", "peers", "floor", "table")

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Timing:
    repeats: int
    clock: str


Arms = dict[str, Callable[[], object]]
Row = dict[str, Any]


def views(n: int, d: int = WIDTH, v: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, d, generator=generator).requires_grad_() for _ in range(v)]


def graph_of(n: int) -> EmbeddingGraph:
    return EmbeddingGraph(torch.randn(n, TEXT_WIDTH, generator=torch.Generator().manual_seed(1)))


def both_passes(objective: Objective, z: list[Tensor], **side: Any) -> Callable[[], object]:
    def call() -> None:
        torch.autograd.grad(objective(*z, **side), z)

    return call


def scale(sizes: list[int]) -> list[Row]:
    """One pass at each size: minutes on two cores."""
    rows: list[Row] = []
    for rows_of_scores in sizes:
        n = rows_of_scores // 2
        z, graph = views(n), graph_of(n)
        objective, ids = OBJECTIVES["xclr"](), torch.arange(n)

        def call(
            z: list[Tensor] = z,
            graph: EmbeddingGraph = graph,
            ids: Tensor = ids,
            objective: Objective = objective,
        ) -> None:
            torch.autograd.grad(objective(*z, target=graph.tiles(ids)), z)

        before = peak_memory(lambda: None)
        begin = time.perf_counter()
        peak = peak_memory(call)
        seconds = time.perf_counter() - begin
        above = None if peak is None or before is None else round(peak - before, 1)
        flops = 4 * rows_of_scores**2 * WIDTH + 2 * n**2 * TEXT_WIDTH
        row = {
            "rows": rows_of_scores,
            "seconds": round(seconds, 1),
            "peak_MiB": above,
            "GFLOP/s": round(flops / seconds / 1e9, 1),
            "one_table_MiB": round(4 * rows_of_scores**2 / 2**20),
        }
        if rows and above is not None:
            row["memory_ratio"] = round(above / rows[-1]["peak_MiB"], 2)
        rows.append(row)
    return rows


def compared(arms: Arms, against: str, timing: Timing, **what: Any) -> list[Row]:
    seconds_of = measure_in_turn(arms, timing.repeats, clock=CLOCKS[timing.clock])
    medians = {arm: statistics.median(seconds) for arm, seconds in seconds_of.items()}
    return [
        {
            **what,
            "arm": arm,
            "clock": timing.clock,
            "median_ms": round(1000 * seconds, 2),
            "against": against,
            "ratio": round(seconds / medians[against], 3),
            "peak_MiB": round(peak_bytes(arms[arm]) / 2**20, 1),
        }
        for arm, seconds in medians.items()
    ]


def plain(small: bool, timing: Timing) -> list[Row]:
    n = 512 if small else 4096
    z, graph, ids = views(n), graph_of(n), torch.arange(n)
    labels = torch.randint(100, (n,), generator=torch.Generator().manual_seed(2))
    rows = []
    for name, options in (("ntxent", {}), ("supcon", {}), ("clip", {}), ("sparseclr", {}), ("xclr", {})):
        make = OBJECTIVES[name]
        side = {"labels": labels} if name == "supcon" else {}
        tiles = make(**options, chunk_size=512)
        table = make(**options, chunk_size=None)
        arms: Arms = {"table": both_passes(table, z, **side), "tiles": both_passes(tiles, z, **side)}
        if name == "xclr":
            arms = {
                "table": lambda o=table: torch.autograd.grad(o(*z, target=graph.batch(ids)), z),
                "tiles": lambda o=tiles: torch.autograd.grad(o(*z, target=graph.tiles(ids)), z),
            }
        rows += compared(arms, "table", timing, objective=name, rows=2 * n)
    return rows


def peer_losses() -> dict[str, Callable[[list[Tensor]], Tensor]]:
    """Those that are installed."""
    found: dict[str, Callable[[list[Tensor]], Tensor]] = {}
    if importlib.util.find_spec("lightly"):
        from lightly.loss import NTXentLoss

        lightly = NTXentLoss(temperature=0.5)
        found["lightly"] = lambda z: lightly(*z)
    if importlib.util.find_spec("pytorch_metric_learning"):
        from pytorch_metric_learning.losses import NTXentLoss as MetricLoss

        metric = MetricLoss(temperature=0.5)
        found["pytorch-metric-learning"] = lambda z: metric(
            torch.cat(z), torch.arange(len(z[0])).repeat(len(z))
        )
    for name in {"lightly", "pytorch-metric-learning"} - found.keys():
        print(f"{name} is not installed: left out")
    return found


def peers(small: bool, timing: Timing) -> list[Row]:
    rows = []
    for n in (64, 128) if small else (256, 512, 1024, 2048, 4096):
        z = views(n)
        arms: Arms = {
            "default": both_passes(OBJECTIVES["ntxent"](), z),
            "table": both_passes(OBJECTIVES["ntxent"](chunk_size=None), z),
            "tiles": both_passes(OBJECTIVES["ntxent"](chunk_size=512), z),
        }
        for name, loss in peer_losses().items():
            # Its memory grows with the cube of the batch.
            if name != "pytorch-metric-learning" or n <= 512:
                arms[name] = lambda loss=loss, z=z: torch.autograd.grad(loss(z), z)
        rows += compared(arms, "default", timing, pairs=n)
    return rows


def floor(small: bool, timing: Timing) -> list[Row]:
    n = 256 if small else 2048
    z = views(n)
    unit = normalize(torch.cat(z).detach(), dim=1)

    def products() -> Tensor:
        return (unit @ unit.T) @ unit

    arms: Arms = {"two products": products}
    for arm, size in (("default", "auto"), ("table", None), ("tiles", 512)):
        arms[arm] = both_passes(OBJECTIVES["ntxent"](chunk_size=size), z)
    return compared(arms, "two products", timing, pairs=n)


def table(small: bool, timing: Timing) -> list[Row]:
    rows = []
    for n in (64, 128) if small else (256, 1024, 4096):
        z, labels = views(n), torch.arange(n) % 50
        unit = normalize(torch.cat(z).detach(), dim=1)
        for name, make in OBJECTIVES.items():
            if (name == "mmcl" and n > 256) or (name == "structured_assignment" and n > 1024):
                continue  # minutes: see benchmarks/mmcl.py and benchmarks/sparsemax.py
            side: dict[str, Any] = {"labels": labels} if name == "supcon" else {}
            if name == "xclr":
                side = {"target": graph_of(n).tiles(torch.arange(n))}
            arms: Arms = {"one product": lambda u=unit: u @ u.T, name: both_passes(make(), z, **side)}
            rows += compared(arms, "one product", timing, objective=name, samples=n)
    return rows


def main() -> None:
    """Run the parts asked for, print them and write a CSV each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", help="of the part scale")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch; all cores where not given")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if unknown := set(given.only.split(",")) - set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if given.threads:
        torch.set_num_threads(given.threads)
    for part in given.only.split(","):
        if part == "scale":
            rows = scale(given.rows or ([2048, 4096] if given.small else [65_536, 131_072]))
        else:
            run = {"plain": plain, "peers": peers, "floor": floor, "table": table}[part]
            rows = run(given.small, Timing(given.repeats, given.clock))
        for row in rows:
            print(part, *(f"{k}={v}" for k, v in row.items()), flush=True)
        out = given.out / f"streaming-{part}.csv"
        write_csv(out, [{**row, **versions()} for row in rows])
        print(f"rows: {out}")


if __name__ == "__main__":
    main()
