"""What the tests of several processes run in them: cases by name, and the processes that run them all."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoint.objectives import (
    CLIP,
    MMCL,
    XCLR,
    Hinge,
    InfoNCE,
    NTLogistic,
    NTXent,
    Objective,
    QARe,
    SparseCLR,
    StructuredAssignment,
    SupCon,
    Triplet,
    WeightedSum,
)
from counterpoint.objectives.base import Known, Log
from counterpoint.objectives.tiles import TensorTiles
from counterpoint.ranks import AcrossRanks, gather

ENOUGH = 400
"""Seconds after which the processes count as hanging."""


class Spread(Objective):
    """An objective that knows nothing of anchors: how far the products of all samples are from a target."""

    accepts = ("target",)

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        off = (views[0] @ views[1].T - (0 if known.target is None else known.target)).square().mean()
        return off, {"loss": off, "farthest": torch.cdist(views[0], views[1]).amax()}


class Refuses(Objective):
    """One that raises where the batch holds a negative first entry among the anchors."""

    by_anchors = True

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def evaluate(self, views: Sequence[Tensor], known: Known, with_log: bool) -> tuple[Tensor, Log]:
        if bool((views[0][known.anchored(len(views[0])), 0] < 0).any()):
            raise self.error("a negative entry")
        return views[0].sum(), {}


@dataclass(frozen=True)
class Case:
    make: Callable[[], Objective]
    views: int = 2
    sides: tuple[str, ...] = ()
    """What is given: labels, target, whole_target, tiles, ids."""
    n: int = 8
    unlike: tuple[str, ...] = field(default=())
    """What of the log says how the work went, and may differ."""
    tolerance: float = 1e-10


def exact(**arguments: Any) -> Callable[[], Objective]:
    return lambda: MMCL(solver="exact", ridge=0.3, tol=1e-14, **arguments)


WORK = ("iterations", "mmcl/iterations")
SOLVED = 1e-7
"""The exact solver stops at a gap, the square of an error; parts may take other steps there than all."""
CASES = {
    "infonce": Case(InfoNCE),
    "infonce ids": Case(InfoNCE, sides=("ids",)),
    "infonce three views": Case(lambda: InfoNCE(map="entmax15"), views=3),
    "ntxent": Case(NTXent),
    "ntxent ids three views": Case(NTXent, views=3, sides=("ids",)),
    "ntxent log_mean": Case(lambda: NTXent(reduction="log_mean")),
    "ntxent log_mean three views": Case(lambda: NTXent(reduction="log_mean"), views=3),
    "ntxent argmax": Case(lambda: NTXent(map="argmax")),
    "clip": Case(CLIP),
    "clip learnable ids": Case(lambda: CLIP(learnable=True), sides=("ids",)),
    "supcon": Case(SupCon, sides=("labels",)),
    "supcon one view": Case(SupCon, views=1, sides=("labels",)),
    "supcon three views sparsemax": Case(lambda: SupCon(map="sparsemax"), views=3, sides=("labels",)),
    "xclr": Case(XCLR, sides=("target",)),
    "xclr whole target": Case(XCLR, sides=("whole_target",)),
    "xclr tiles": Case(lambda: XCLR(chunk_size=3), sides=("tiles",)),
    "ntxent chunked": Case(lambda: NTXent(chunk_size=3)),
    "xclr one view": Case(XCLR, views=1, sides=("target",)),
    "xclr three views sparsemax": Case(lambda: XCLR(map="sparsemax"), views=3, sides=("target",)),
    "triplet": Case(Triplet, views=3),
    "triplet ids": Case(Triplet, sides=("ids",)),
    "hinge": Case(Hinge),
    "hinge ids": Case(Hinge, views=3, sides=("ids",)),
    "ntlogistic": Case(NTLogistic),
    "ntlogistic ids": Case(NTLogistic, views=3, sides=("ids",)),
    "sparseclr": Case(SparseCLR),
    "sparseclr inter_view": Case(lambda: SparseCLR(layout="inter_view"), views=3),
    "sparseclr target": Case(lambda: SparseCLR(margin=0.5), sides=("target",)),
    "sparseclr inter_view target": Case(lambda: SparseCLR(layout="inter_view"), sides=("target",)),
    "sparseclr ids": Case(SparseCLR, sides=("ids",)),
    "structured_assignment": Case(StructuredAssignment, views=3),
    "structured_assignment smooth": Case(lambda: StructuredAssignment(smoothing=0.3)),
    "structured_assignment one_to_one": Case(lambda: StructuredAssignment("one_to_one", margin=0.1)),
    "structured_assignment one_to_one three views": Case(
        lambda: StructuredAssignment("one_to_one", margin=0.4), views=3
    ),
    "structured_assignment never broken": Case(lambda: StructuredAssignment("one_to_one", margin=0)),
    "mmcl": Case(exact(), unlike=WORK, tolerance=SOLVED),
    "mmcl symmetric three views": Case(exact(symmetric=True, C=0.8), views=3, unlike=WORK, tolerance=SOLVED),
    "mmcl both_views": Case(exact(negatives="both_views"), unlike=WORK, tolerance=SOLVED),
    "mmcl joint": Case(exact(negatives="both_views", symmetric=True), unlike=WORK, tolerance=SOLVED),
    "mmcl hinge": Case(exact(hinge_margin=1.0, kernel="laplace", sigma=1.0), unlike=WORK, tolerance=SOLVED),
    "mmcl inverse": Case(lambda: MMCL(solver="inverse", symmetric=True)),
    "mmcl inverse joint": Case(lambda: MMCL(solver="inverse", negatives="both_views", symmetric=True)),
    "mmcl pgd": Case(lambda: MMCL(solver="pgd", tol=1e-13, max_iterations=4000, C=0.7), unlike=WORK),
    "qare": Case(QARe),
    "qare three views": Case(QARe, views=3),
    "qare gap": Case(lambda: QARe("gap", shift=0.5)),
    "qare gt": Case(lambda: QARe("gt"), views=3),
    "qare gt no shift": Case(lambda: QARe("gt", shift=0)),
    "qare negative shift": Case(lambda: QARe("gap", shift=-1)),
    "qare clamp": Case(lambda: QARe(clamp_min=1e-8)),
    "qare wide": Case(QARe, n=4),
    "qare graph": Case(lambda: QARe(reference="graph"), sides=("target",)),
    "qare graph whole target": Case(lambda: QARe(reference="graph"), sides=("whole_target",)),
    "sum": Case(
        lambda: NTXent(reduction="log_mean") + 0.75 * QARe("gt") + 0.5 * exact()(),
        unlike=WORK,
        tolerance=SOLVED,
    ),
    "sum with sides": Case(
        lambda: XCLR() + 0.5 * SupCon() + 0.1 * NTXent() + 0.2 * QARe(reference="graph"),
        sides=("target", "labels", "ids"),
    ),
    "sum in a sum": Case(lambda: WeightedSum([Triplet() + 2 * QARe(), 0.5 * Hinge()], [0.5, 1.0])),
    "own": Case(Spread),
    "own target": Case(Spread, sides=("target",)),
    "own in a sum": Case(lambda: Spread() + InfoNCE(), sides=("target",)),
}
TURNS = (((5, 3), False), ((7, 1), True))
"""How many samples two ranks have, and whether the views come in reverse."""
SMALL = (((2, 2), False), ((3, 1), True))
FOUR = (
    "ntxent",
    "ntxent log_mean",
    "supcon one view",
    "xclr",
    "mmcl joint",
    "sum",
    "qare gt",
    "clip learnable ids",
)


def turns(name: str) -> tuple[tuple[tuple[int, ...], bool], ...]:
    alike = (((4, 4), False),) if name in FOUR else ()
    return SMALL if CASES[name].n == 4 else TURNS + alike


@dataclass
class Outcome:
    loss: Tensor
    plain: Tensor | None
    """The loss without a log; not taken where the views come in reverse."""
    log: dict[str, Tensor]
    grads: list[Tensor]


class Encoder(nn.Module):
    """The weights that the ranks share."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4, dtype=dtype)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def samples(case: Case, reverse: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """The inputs of all views `(V, n, 6)`, and all that is known of the samples."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(case.n, 6, generator=generator, dtype=torch.float64)
    x = base + 0.8 * torch.randn(case.views, case.n, 6, generator=generator, dtype=torch.float64)
    if case.make().name == "StructuredAssignment" and case.views == 2:
        # A batch that breaks the true matching, unless its margin is 0.
        x = base + (0.0 if getattr(case.make(), "margin", 0) == 0 else 1.5) * (x - base)
    target = torch.rand(case.n, case.n, generator=generator, dtype=torch.float64)
    known = {
        "labels": torch.tensor([0, 1, 0, 0, 2, 1, -1, 3])[: case.n],
        "target": (target + target.T) / 2,
        "ids": torch.tensor([0, 1, 2, 0, 4, 5, 5, 7])[: case.n],
    }
    return (x.flip(0) if reverse else x), known


def outcome(
    case: Case,
    counts: Sequence[int],
    reverse: bool,
    rank: int | None = None,
    shared: nn.Module | None = None,
    group: Any = None,
) -> Outcome:
    """What a rank gets with the encoder that it shares, or without one what one process gets of the batch."""
    x, known = samples(case, reverse)
    encoder = shared or Encoder()
    objective = case.make()
    across, own = objective, slice(0, case.n)
    if rank is not None:
        across = AcrossRanks(objective, group)
        own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    side: dict[str, Any] = {}
    for name in case.sides:
        key = name.removeprefix("whole_")
        if name == "tiles":
            side["target"] = TensorTiles(known["target"])
            continue
        side[key] = known[key] if name.startswith("whole_") else known[key][own]
    parts = [*encoder.parameters(), *objective.parameters()]

    def views() -> tuple[Tensor, ...]:
        z = encoder(x[:, own].flatten(0, 1))
        return z.view(len(x), -1, z.shape[-1]).unbind(0)

    with torch.no_grad():
        plain = None if reverse else across(*views(), **side)
    for parameter in parts:
        parameter.grad = None
    loss, log = across.with_log(*views(), **side)
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parts]
    return Outcome(loss.detach(), plain, log, grads)


class Spy(TorchDispatchMode):
    """Operations in products of matrices, the largest tensor made, and collectives with their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.largest, self.collectives = 0, 0, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            tensors = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]
            sent = max((x.nbytes for x in tensors if isinstance(x, Tensor)), default=0)
            self.collectives.append((func._schema.name.removeprefix("c10d::"), sent))
        elif isinstance(out, Tensor):
            self.largest = max(self.largest, out.numel())
            if func._schema.name in ("aten::mm", "aten::addmm"):
                self.operations += 2 * out.numel() * args[-2].shape[-1]
        return out


COUNTED = {
    "ntxent": NTXent,
    "infonce": InfoNCE,
    "supcon": SupCon,
    "xclr": XCLR,
    "qare": QARe,
    "sum": lambda: NTXent() + QARe(),
}
N_COUNTED, D_COUNTED = 256, 8


def cost(make: Callable[[], Objective], counts: Sequence[int], rank: int | None) -> dict[str, Any]:
    """Products of matrices, the largest tensor and the collectives of one forward and backward pass."""
    n = sum(counts)
    own = slice(0, n) if rank is None else slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(n, D_COUNTED, generator=generator)[own].requires_grad_() for _ in range(2)]
    objective = make()
    side = {}
    if "labels" in objective.requires:
        side["labels"] = (torch.arange(n) % 5)[own]
    if "target" in objective.requires:
        side["target"] = torch.rand(n, n, generator=generator)[own]
    across = objective if rank is None else AcrossRanks(objective)
    with Spy() as spy:
        across(*z, **side).backward()
    return {"operations": spy.operations, "largest": spy.largest, "collectives": spy.collectives}


def refused(do: Callable[[], Any]) -> str:
    """What is raised, as text; "" where nothing is."""
    try:
        do()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def bad_calls(rank: int) -> dict[str, str]:
    """What each rank is told where they do not fit together; group 0, 1 of two ranks."""
    z = torch.randn(3 + rank, 4, generator=torch.Generator().manual_seed(rank)).abs()
    labels = torch.zeros(len(z), dtype=torch.int64)
    nan = z.clone()
    nan[0, 0] = torch.nan if rank == 0 else 0.0
    negative = z.clone()
    negative[0, 0] = -1.0 if rank == 1 else 1.0
    ntxent, supcon = AcrossRanks(NTXent()), AcrossRanks(SupCon())
    calls: dict[str, Callable[[], Any]] = {
        "width": lambda: ntxent(z[:, : 4 - rank], z[:, : 4 - rank]),
        "views": lambda: ntxent(*[z] * (2 + rank)),
        "type": lambda: ntxent(*[z.double() if rank else z] * 2),
        "labels": lambda: supcon(z, z, labels=labels) if rank else supcon(z, z),
        "optional ids": lambda: ntxent(z, z, ids=labels if rank else None),
        "unused": lambda: ntxent(z, z, labels=labels if rank else None),
        "short labels": lambda: supcon(z, z, labels=labels[: 3]),
        "call": lambda: ntxent(z, z) if rank else ntxent.with_log(z, z),
        "local target": lambda: AcrossRanks(XCLR())(z, z, target=torch.rand(len(z), len(z))),
        "flat target": lambda: AcrossRanks(XCLR())(z, z, target=torch.rand(7)),
        "no target": lambda: AcrossRanks(XCLR())(z, z, target=5 if rank else torch.rand(())),
        "empty": lambda: ntxent(z[: 3 * rank], z[: 3 * rank]),
        "nan": lambda: ntxent.with_log(nan, nan),
        "anchors": lambda: ntxent(z, z, anchors=slice(0, 1)),
        "raises ValueError": lambda: AcrossRanks(Refuses(ValueError))(negative, negative),
        "raises MemoryError": lambda: AcrossRanks(Refuses(MemoryError))(negative, negative),
        "no positive": lambda: supcon(z, labels=torch.arange(len(z)) + 10 * rank),
        "gather width": lambda: gather(z[:, : 4 - rank]),
        "gather type": lambda: gather(z.double() if rank else z),
        "gather none": lambda: gather(torch.zeros(()) if rank else z),  # an axis less
    }  # fmt: skip
    return {name: refused(call) for name, call in calls.items()}


def gathered(rank: int) -> dict[str, Any]:
    """What `gather` gives, and its gradient where the ranks weigh the rows unlike."""
    x = (torch.arange(6.0).view(3, 2) + 10 * rank)[: 3 - rank].requires_grad_()
    everyone = gather(x)
    weight = torch.arange(10.0).view(5, 2) * (1 + rank)
    (everyone * weight).sum().backward()
    half = torch.full((2, 3), 1.0, dtype=torch.bfloat16, requires_grad=True)
    gather(half).float().sum().backward()
    ids = gather(torch.tensor([5, 6, 7])[: 1 + rank])
    return {"rows": everyone.detach(), "grad": x.grad, "half": half.grad, "ids": ids}


def work(rank: int, folder: Path, port: int, block: str) -> None:
    """All that one of four processes does: four together, then two the cases and two the guide's example."""
    torch.set_num_threads(1)
    results: dict[Any, Any] = {}
    dist.init_process_group("gloo", init_method=f"file://{folder}/four", rank=rank, world_size=4)
    shared = DistributedDataParallel(Encoder())
    for name in FOUR:
        results["four", name] = outcome(CASES[name], (1, 2, 4, 1), False, rank, shared)
    # A group of two, and one of the same that has no backend for the host, as NCCL has none.
    pair, device_only = dist.new_group([1, 3]), dist.new_group([1, 3], backend="cuda:gloo")
    if rank in (1, 3):
        shared = DistributedDataParallel(Encoder(), process_group=pair)
        for key, group in (("group", pair), ("device group", device_only)):
            results[key] = outcome(CASES["sum"], (5, 3), False, rank // 2, shared, group)
    else:
        results["outside"] = refused(lambda: AcrossRanks(NTXent(), pair)(torch.eye(2), torch.eye(2)))
    dist.barrier()
    dist.destroy_process_group()
    if rank < 2:
        dist.init_process_group("gloo", init_method=f"file://{folder}/two", rank=rank, world_size=2)
        results["bad"] = bad_calls(rank)
        results["gathered"] = gathered(rank)
        shared = DistributedDataParallel(Encoder())
        for name, case in CASES.items():
            for counts, reverse in turns(name):
                results[name, counts, reverse] = outcome(case, counts, reverse, rank, shared)
        results["cost"] = {name: cost(make, (64, 192), rank) for name, make in COUNTED.items()}
        learned = CLIP(learnable=True)
        AcrossRanks(learned)(torch.eye(3), torch.eye(3)).backward()
        dist.barrier()
        dist.destroy_process_group()
        learned.zero_grad()
        learned(torch.eye(3), torch.eye(3)).backward()
        results["after"] = learned.log_scale.grad
    elif block:
        os.environ.update(RANK=str(rank - 2), LOCAL_RANK=str(rank - 2), WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        names: dict[str, Any] = {}
        exec(compile(block, "the example of docs/ranks.md", "exec"), names)
        results["guide"] = names["losses"]
    torch.save(results, folder / f"{rank}.pt")


def run_all(folder: Path, port: int, block: str) -> list[dict[str, Any]]:
    """The results of four processes; RuntimeError where one fails, or they do not come to an end."""
    processes = torch.multiprocessing.get_context("spawn")
    started = [
        processes.Process(target=work, args=(rank, folder, port, block), daemon=True) for rank in range(4)
    ]
    for process in started:
        process.start()
    try:
        deadline = time.monotonic() + ENOUGH
        for process in started:
            process.join(max(0, deadline - time.monotonic()))
        codes = [process.exitcode for process in started]
        if codes != [0] * 4:
            raise RuntimeError(f"the processes left with {codes} (None: hanging)")
    finally:
        for process in started:
            with suppress(ValueError):
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(4)]
