"""What a batch shared by two processes costs: overhead of the exchange, and what each rank computes.

    python benchmarks/gather.py [--repeats 10] [--pairs 512,2048] [--out benchmarks/results/gather.csv]

For each objective and size, forward and backward on embeddings `(n, 128)`, gloo, one thread a process:

* one: one process with the whole batch.
* anchors: one process that computes the anchors of rank 0 alone, all samples given: what a rank would take
  if the exchange took nothing.
* ranks: two processes with n/2 samples each; the time of rank 0. `overhead` is what it takes over "anchors".

`operations` are those of products of matrices, counted, in forward and backward pass: a rank has its share of
those of one process. The processes need a core each, or the overhead is the wait for one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from measure import measure_in_turn, versions, write_csv
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.utils.flop_counter import FlopCounterMode

from counterpoint.objectives import MMCL, XCLR, NTXent, Objective, QARe
from counterpoint.ranks import AcrossRanks

D = 128
OUT = Path(__file__).parent / "results" / "gather.csv"
ARMS: dict[str, Callable[[], Objective]] = {
    "ntxent": lambda: NTXent(tau=0.1),
    "xclr": XCLR,
    "ntxent + qare": lambda: NTXent(tau=0.1) + 0.75 * QARe(),
    "qare": QARe,
    "mmcl": MMCL,
}


def batch(n: int, objective: Objective) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Two views, alike as after some training, and a target where the objective takes one."""
    g = torch.Generator().manual_seed(0)
    first = torch.randn(n, D, generator=g)
    views = [first, first + 0.3 * torch.randn(n, D, generator=g)]
    return views, {"target": torch.rand(n, n, generator=g)} if "target" in objective.requires else {}


def step(objective: Objective, views: list[Tensor], side: dict[str, Tensor], anchors: slice | None) -> None:
    """Forward and backward."""
    z = [view.detach().requires_grad_() for view in views]
    objective(*z, **side, anchors=anchors).backward()


def operations(objective: Objective, views: list[Tensor], side: dict[str, Tensor]) -> int:
    """Of the products of matrices in one step."""
    with FlopCounterMode(display=False) as counter:
        step(objective, views, side, None)
    return int(counter.get_total_flops())


def rank_work(rank: int, meeting: str, name: str, n: int, repeats: int, found: str) -> None:
    """What one of the two processes does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    objective = AcrossRanks(ARMS[name]())
    views, side = batch(n, objective)
    own = slice(rank * n // 2, (rank + 1) * n // 2)
    views, side = [view[own] for view in views], {key: value[own] for key, value in side.items()}
    counted = operations(objective, views, side)
    seconds = measure_in_turn({"ranks": lambda: step(objective, views, side, None)}, repeats, warmup=2)
    if rank == 0:
        torch.save((statistics.median(seconds["ranks"]), counted), found)
    dist.destroy_process_group()


def compare(name: str, n: int, repeats: int) -> dict[str, object]:
    """One row of the table."""
    objective = ARMS[name]()
    views, side = batch(n, objective)
    half = None if name == "qare" else slice(0, n // 2)
    part = [view[: n // 2] for view in views] if half is None else views
    seconds = measure_in_turn(
        {
            "one": lambda: step(objective, views, side, None),
            "anchors": lambda: step(objective, part, side, half),
        },
        repeats,
        warmup=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        work = (f"{folder}/meeting", name, n, repeats, f"{folder}/found.pt")
        spawn(rank_work, work, nprocs=2)  # type: ignore[no-untyped-call]
        ranks, counted = torch.load(f"{folder}/found.pt")
    one, anchors = (statistics.median(seconds[arm]) for arm in ("one", "anchors"))
    whole = operations(objective, views, side)
    row = {
        "objective": name,
        "n": n,
        "one_ms": round(1e3 * one, 2),
        "anchors_ms": round(1e3 * anchors, 2),
        "ranks_ms": round(1e3 * ranks, 2),
        "overhead_ms": round(1e3 * (ranks - anchors), 2),
        "operations_one": whole,
        "operations_rank": counted,
        "share": round(counted / whole, 4),
    }
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def main() -> None:
    """Run the arms, print the table and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--pairs", default="512,2048", help="sizes of the whole batch, with commas between")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [int(n) for n in given.pairs.split(",")]
    rows = [{**compare(name, n, given.repeats), **versions()} for name in ARMS for n in sizes]
    write_csv(given.out, rows)
    print(f"rows: {given.out}")


if __name__ == "__main__":
    main()
