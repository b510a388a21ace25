"""What MMCL's machines cost: against the released algorithm, against NT-Xent, and in memory.

    python benchmarks/mmcl.py [--parts duals,loss,memory,osqp] [--repeats 5]

The released algorithm is written here plainly: an `(n, n-1, n-1)` tensor of one Delta per anchor, a solve or
plain projected gradient on it, with step 1e-3 and Nesterov's momentum. "random" embeddings are Gaussian, of
width 128, the second view the first one with noise; "clustered" ones have ten groups, as trained ones do.
Every arm of a comparison runs in turn in this process; the figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from measure import measure_in_turn, peak_bytes, versions, write_csv
from torch import Tensor

from counterpoint.objectives import MMCL, NTXent
from counterpoint.objectives.kernels import RBF
from counterpoint.objectives.svm import Inverse, Machines
from counterpoint.objectives.svm_exact import optimum
from counterpoint.objectives.svm_pgd import clipped_inverse, projected_gradient

OUT = Path(__file__).parent / "results" / "mmcl.csv"
SIGMA, RIDGE, WIDTH = 10.0, 0.1, 128
GAP = 1e-3
RELEASED_MOST = 3000


def views(kind: str, n: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Two views of n samples, not normalised."""
    generator = torch.Generator().manual_seed(n)
    first = torch.randn(n, WIDTH, generator=generator)
    if kind == "clustered":
        first = 0.7 * first + torch.randn(10, WIDTH, generator=generator)[torch.arange(n) % 10]
    second = first + 0.5 * torch.randn(n, WIDTH, generator=generator)
    return [first.to(dtype), second.to(dtype)]


def machines(kind: str, n: int, dtype: torch.dtype = torch.float32) -> Machines:
    """The machines of the first view."""
    z = torch.nn.functional.normalize(views(kind, n, dtype)[0], dim=1)
    return Machines(RBF(SIGMA)(z, z), torch.arange(n)[:, None], None, RIDGE)


def released_deltas(gram: Tensor) -> Tensor:
    """Delta + ridge I of every anchor, `(n, n-1, n-1)`."""
    n = len(gram)
    others = torch.stack([torch.cat([torch.arange(t), torch.arange(t + 1, n)]) for t in range(n)])
    k = gram.gather(1, others)
    deltas = gram[others[:, :, None], others[:, None, :]] + 1 - k[:, :, None] - k[:, None, :]
    deltas.diagonal(dim1=1, dim2=2).add_(RIDGE)
    return deltas


def released_inverse(gram: Tensor) -> Tensor:
    """The released "inv" duals, `(n, n-1)`."""
    deltas = released_deltas(gram)
    ones = torch.full((len(gram), len(gram) - 1, 1), 2.0)
    return torch.linalg.solve(deltas, ones).squeeze(2).clamp_min(0)


def released_pgd(given: Machines, gap: float) -> tuple[int, float]:
    """The released "pgd" run until the largest gap is reached: iterations, and the gap it came to."""
    gram, n = given.gram, len(given.gram)
    deltas = released_deltas(gram)
    alpha = torch.randn(n, n - 1, 1, generator=torch.Generator().manual_seed(0)).relu_()
    ahead, a = alpha, 0.5
    for iteration in range(1, RELEASED_MOST + 1):
        new = (ahead - 1e-3 * (deltas @ ahead - 2)).clamp_min(0)
        a_next = ((a**4 + 4 * a * a) ** 0.5 - a * a) / 2
        ahead = torch.lerp(alpha, new, 1 + a * (1 - a) / (a * a + a_next))
        alpha, a = new, a_next
        if iteration % 100 == 0 or iteration == RELEASED_MOST:
            reached = float(given.gap(*_with_product(given, alpha.squeeze(2))).max())
            if reached <= gap:
                break
    return iteration, reached


def _with_product(given: Machines, alpha: Tensor) -> tuple[Tensor, Tensor]:
    n = len(given.gram)
    full = torch.zeros(n, n)
    full[~torch.eye(n, dtype=torch.bool)] = alpha.reshape(-1)
    return full, given.times(full)


def duals(repeats: int) -> list[dict]:
    """Solvers alone, from the Gram matrix."""
    rows = []
    for n in (256, 512):
        given = machines("random", n)
        ours, theirs = clipped_inverse(given), released_inverse(given.gram)
        apart = float((ours[~torch.eye(n, dtype=torch.bool)].view(n, -1) - theirs).abs().max() / theirs.max())
        arms = {
            "inverse": lambda given=given: Inverse(given).ones().clamp_(0),
            "released": lambda given=given: released_inverse(given.gram),
        }
        rows += table(f"inverse duals, n={n}", arms, repeats, "released", note=f"apart {apart:.0e}")
    for kind in ("random", "clustered"):
        given = machines(kind, 256)
        iterations, reached = released_pgd(given, GAP)
        print(f"released pgd, {kind}: gap {reached:.1e} after {iterations} steps")
        start = clipped_inverse(given)
        arms = {
            "pgd": lambda given=given, start=start: to_gap(given, start),
            "exact": lambda given=given: optimum(given, GAP, 100),
            "released": lambda given=given: released_pgd(given, GAP),
        }
        note = f"released: {iterations} steps to {reached:.1e}"
        rows += table(f"to gap {GAP}, n=256, {kind}", arms, max(1, repeats // 3), "released", note=note)
    return rows


def to_gap(given: Machines, start: Tensor) -> int:
    """Projected gradient until the largest gap is small enough: a tolerance that halves until it is."""
    tol = 1e-2
    while True:
        found = projected_gradient(given, tol, 5000, start=start)
        if float(given.gap(found.alpha, given.times(found.alpha)).max()) <= GAP or tol < 1e-7:
            return found.iterations
        start, tol = found.alpha, tol / 4


def loss(repeats: int) -> list[dict]:
    """Whole losses, forward and backward, against plain NT-Xent on the same views."""
    rows = []
    for kind in ("random", "clustered"):
        for n in (256, 1024, 2048):
            z = [view.requires_grad_() for view in views(kind, n)]
            arms = {"ntxent": NTXent(tau=0.5), "inverse": MMCL(solver="inverse")}
            if n < 2048:
                arms["exact"] = MMCL(solver="exact", tol=GAP)
                arms["pgd"] = MMCL(solver="pgd")
            calls = {name: lambda one=one, z=z: both_ways(one, z) for name, one in arms.items()}
            rows += table(f"loss, n={n}, {kind}", calls, repeats, "ntxent", inverse_ratio=True)
    return rows


def both_ways(objective: torch.nn.Module, z: list[Tensor]) -> tuple[Tensor, ...]:
    """Forward and backward."""
    return torch.autograd.grad(objective(*z), z)


def memory() -> list[dict]:
    """Peak of the allocator during one loss, forward and backward, at n = 4096, in n x n float32 matrices."""
    n, rows = 4096, []
    z = [view.requires_grad_() for view in views("clustered", n)]
    for name, one in {
        "ntxent": NTXent(tau=0.5),
        "inverse": MMCL(solver="inverse"),
        "exact": MMCL(solver="exact", tol=GAP),
    }.items():
        used = peak_bytes(lambda one=one: both_ways(one, z)) / (4 * n * n)
        print(f"memory, n={n}: {name} {used:.2f} matrices of n x n", flush=True)
        rows.append({"what": f"memory above the inputs, n={n}", "arm": name, "matrices": round(used, 2)})
    return rows


def osqp(repeats: int) -> list[dict]:
    """The optimum to 1e-8 in float64, all anchors of n = 256, against OSQP anchor by anchor."""
    import numpy as np
    import osqp as solver
    from scipy import sparse

    given = machines("clustered", 256, torch.float64)
    deltas = released_deltas(given.gram).numpy()

    def loop() -> np.ndarray:
        found = []
        for delta in deltas:
            m = len(delta)
            problem = solver.OSQP()
            problem.setup(
                P=sparse.csc_matrix(np.triu(delta)),
                q=np.full(m, -2.0),
                A=sparse.identity(m, format="csc"),
                l=np.zeros(m),
                u=np.full(m, np.inf),
                eps_abs=1e-9,
                eps_rel=1e-9,
                max_iter=100_000,
                verbose=False,
            )
            found.append(np.maximum(problem.solve().x, 0))
        return np.array(found)

    alpha = optimum(given, 1e-8, 200).alpha
    ours = float(given.gap(alpha, given.times(alpha)).max())
    full = torch.zeros_like(alpha)
    full[~torch.eye(256, dtype=torch.bool)] = torch.from_numpy(loop()).reshape(-1)
    theirs = float(given.gap(full, given.times(full)).max())
    arms = {"exact": lambda: optimum(given, 1e-8, 200), "osqp": loop}
    note = f"gap {ours:.0e} ours, {theirs:.0e} OSQP"
    return table("optimum to 1e-8, float64, n=256", arms, max(1, repeats // 3), "osqp", note=note)


def table(
    what: str,
    arms: dict[str, Callable[[], object]],
    repeats: int,
    base: str,
    note: str = "",
    inverse_ratio: bool = False,
) -> list[dict]:
    """Time the arms in turn, print and return one row each; the ratio is base to arm, or arm to base."""
    seconds = {name: statistics.median(s) for name, s in measure_in_turn(arms, repeats).items()}
    rows = []
    for name, s in seconds.items():
        ratio = s / seconds[base] if inverse_ratio else seconds[base] / s
        print(f"{what:40s} {name:10s} {1e3 * s:10.2f} ms   {ratio:8.2f}x   {note}", flush=True)
        rows.append(
            {"what": what, "arm": name, "ms": round(1e3 * s, 3), "ratio": round(ratio, 2), "note": note}
        )
    return rows


def main() -> None:
    """Run the parts and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default="duals,loss,memory,osqp")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    parts = {
        "duals": lambda: duals(given.repeats),
        "loss": lambda: loss(given.repeats),
        "memory": memory,
        "osqp": lambda: osqp(given.repeats),
    }
    rows = [row for name in given.parts.split(",") for row in parts[name]()]
    write_csv(OUT, [row | versions() for row in rows])


if __name__ == "__main__":
    main()
