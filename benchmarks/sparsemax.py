"""What the sparse maps, SparseCLR and the one-to-one assignment cost, against what they replace.

    python benchmarks/sparsemax.py [--repeats 7] [--threads 1] [--clock cpu] [--only PART]

Times are of a forward and a backward pass, the arms of a comparison in turn in one process; every row gives
the ratio of its median to that of the arm it is compared with. One thread and processor time are for a
machine that others use too. Memory is the most that torch's allocator holds at one time, beyond the inputs.

* the loss of 2048 rows of 8192 candidates: ours against the entmax package's, which sorts the whole row
  (k=None, its default for sparsemax) or takes the largest 100 and more where it must (k=100, its default for
  entmax15);
* SparseCLR against NT-Xent on two views of 2048 samples, 128 wide;
* the one-to-one assignment of two views of 1024 samples against scipy's solver alone on the same costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from entmax import Entmax15Loss, SparsemaxLoss
from measure import measure_in_turn, peak_bytes, versions, write_csv
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from counterpoint.objectives import NTXent, SparseCLR, StructuredAssignment, fenchel_young

OUT = Path(__file__).parent / "results" / "sparsemax.csv"
ROWS, CANDIDATES = 2048, 8192

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Arms = dict[str, Callable[[], object]]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both_passes(loss: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    def call() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        loss(*leaves).backward()

    return call


def row_losses(scores: Tensor) -> Arms:
    """The losses of rows: ours by map, theirs by map and k."""
    y = torch.randint(scores.shape[1], (len(scores),), generator=torch.Generator().manual_seed(1))
    arms: Arms = {}
    for name in ("sparsemax", "entmax15", "softmax"):
        arms[name] = both_passes(lambda x, name=name: fenchel_young(x, y, name).sum(), scores)
    for name, peer in (("sparsemax", SparsemaxLoss), ("entmax15", Entmax15Loss)):
        for k in (None, 100):
            loss = peer(k=k, reduction="sum")
            arms[f"entmax package, {name}, k={k}"] = both_passes(lambda x, loss=loss: loss(x, y), scores)
    return arms


def contrastive(n: int = 2048, d: int = 128) -> Arms:
    """SparseCLR and NT-Xent on the same two views, at random and after some training."""
    a, noise = normal(n, d), normal(n, d, seed=1)
    arms: Arms = {}
    for state, b in (("random", noise), ("near", a + 0.5 * noise)):
        for name, objective in (
            ("NTXent", NTXent()),
            ("SparseCLR", SparseCLR()),
            ("SparseCLR, tau 0.1", SparseCLR(tau=0.1)),
        ):
            arms[f"{name}, {state} views"] = both_passes(objective, a, b)
    return arms


def assignment(n: int = 1024, d: int = 128) -> Arms:
    """The objective with both passes, and the solver alone on the costs that it solves."""
    a, noise = normal(n, d), normal(n, d, seed=1)
    arms: Arms = {}
    for state, b in (("random", noise), ("near", a + 0.5 * noise)):
        cost = (1 - normalize(a, dim=1) @ normalize(b, dim=1).T + 0.2 * torch.eye(n)).double().numpy()
        arms[f"scipy, {state} views"] = lambda cost=cost: linear_sum_assignment(cost)
        objective = StructuredAssignment(mining="one_to_one", margin=0.2)
        arms[f"one_to_one, {state} views"] = both_passes(objective, a, b)
    return arms


def compare(
    title: str, arms: Arms, against: dict[str, str], repeats: int, clock: str
) -> list[dict[str, object]]:
    """One row per arm; `against` says which arm each is divided by."""
    seconds_of = measure_in_turn(arms, repeats, clock=CLOCKS[clock])
    medians = {name: statistics.median(times) for name, times in seconds_of.items()}
    rows = []
    for name, seconds in medians.items():
        base = against[name]
        ratio = seconds / medians[base]
        memory = peak_bytes(arms[name]) / 2**20
        rows.append(
            {
                "comparison": title,
                "arm": name,
                "clock": clock,
                "median_ms": round(1000 * seconds, 1),
                "against": base,
                "ratio": round(ratio, 3),
                "peak_MiB": round(memory, 1),
                **versions(),
            }
        )
        print(
            f"{title:<34} {name:<36} {1000 * seconds:9.1f} ms {ratio:8.2f} x {base:<34} {memory:7.1f} MiB",
            flush=True,
        )
    return rows


def main() -> None:
    """Run the comparisons, print them and write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of torch; all cores where not given")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--only", choices=("rows", "objective", "assignment"))
    given = parser.parse_args()
    repeats, clock = given.repeats, given.clock
    if given.threads:
        torch.set_num_threads(given.threads)
    rows = []
    if given.only in (None, "rows"):
        cosines = normalize(normal(ROWS, 128), dim=1) @ normalize(normal(CANDIDATES, 128, seed=1), dim=1).T
        for kind, scores in (("normal", normal(ROWS, CANDIDATES)), ("cosines", cosines)):
            arms = row_losses(scores)
            against = {name: "entmax15" if "entmax15" in name else "sparsemax" for name in arms}
            rows += compare(f"loss of {ROWS} x {CANDIDATES} {kind}", arms, against, repeats, clock)
    if given.only in (None, "objective"):
        arms = contrastive()
        against = {name: f"NTXent, {name.rpartition(', ')[2]}" for name in arms}
        rows += compare("objective, n = 2048, d = 128", arms, against, repeats, clock)
    if given.only in (None, "assignment"):
        arms = assignment()
        against = {name: f"scipy, {name.rpartition(', ')[2]}" for name in arms}
        rows += compare("assignment, n = 1024, d = 128", arms, against, repeats, clock)
    out = OUT if given.only is None else OUT.with_stem(f"sparsemax-{given.only}")
    write_csv(out, rows)
    print(f"rows: {out}")


if __name__ == "__main__":
    main()
