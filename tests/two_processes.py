"""What each of two processes does in the tests of training on both; a module, so that it can be imported."""

import contextlib
import io
from functools import partial

import torch
from rich.console import Console
from tar_shards import write_shards

from counterpoint.objectives import OBJECTIVES as KINDS
from counterpoint.objectives import NTXent
from counterpoint.train import loop
from counterpoint.train.checkpoint import checkpoints
from counterpoint.train.devices import build_fabric, first_only
from counterpoint.train.loop import fit
from counterpoint.train.recipe import parse_recipe

OBJECTIVES = {
    "ntxent": {"objective": {"name": "ntxent", "tau": 0.2}},
    "xclr": {"objective": {"name": "xclr", "tau": 0.2}, "similarity": {"graph": "label"}},
    "mmcl": {"objective": {"name": "mmcl"}},
    "streamed": {
        "objective": {"name": "xclr", "tau": 0.2, "chunk_size": 3},
        "similarity": {"graph": "label"},
    },
    "moco": {
        "objective": {"name": "infonce", "tau": 0.2},
        "momentum": {"rate": 0.8, "queue": 17},  # less than the 26 keys of a step
        "views": {"preset": "simclr_small", "size": 24, "count": 3},
    },
    "bad": {"objective": {"name": "bad"}},
}
ALIKE = ("ntxent", "xclr", "mmcl", "streamed", "moco")


class Bad(NTXent):
    """NT-Xent that is not finite at its third step."""

    calls = 0  # that of the rehearsal before a run

    def evaluate(self, views, known, with_log):
        loss, log = super().evaluate(views, known, with_log)
        self.calls += 1
        if self.calls == 1 + 3:
            loss = loss * float("nan")
        return loss, log | ({"loss": loss} if with_log else {})


def recipe(objective, **train):
    """Four steps of 13 samples, which two processes share unequally; the encoder has no BatchNorm."""
    plain = {
        "name": objective,
        "data": {"source": "shapes", "count": 26, "size": 32},
        "views": {"preset": "simclr_small", "size": 24},
        "model": {"backbone": "squeezenet1_1", "head": [16], "head_norm": False},
        "optim": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "train": {"epochs": 2, "batch_size": 13, "log_every": 1, "accelerator": "cpu", **train},
        **OBJECTIVES[objective],
    }
    return parse_recipe(plain)


@contextlib.contextmanager
def float64():
    """Everything that `fit` computes in double precision, which no recipe can ask for."""
    build, loop.build_fabric = (
        loop.build_fabric,
        lambda train: build_fabric(train.model_copy(update={"precision": "64-true"})),
    )
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        loop.build_fabric = build


def quiet():
    return Console(file=io.StringIO())


def end(run):
    return checkpoints(run.checkpoints)[-1]


def shards(folder):
    """Four steps of a stream of four shards, each with a picture that cannot be read."""
    paths = write_shards(folder, shards=4, each=6)
    for path in paths:
        content = path.read_bytes()
        place = content.index(b"\x89PNG", 4096)
        path.write_bytes(content[:place] + b"<html>" + content[place + 6 :])
    return folder


def from_shards(folder):
    data = {"source": "streamed_shards", "path": str(folder), "samples": 24, "shuffle": 4, "train": None}
    plain = recipe("ntxent", devices=2, workers=2, epochs=1, batch_size=6).resolved()
    plain |= {"data": data | {"on_error": "skip"}, "evaluate_on": plain["data"]}
    return parse_recipe(plain)


def train_all(folder):
    """Each objective by both processes, and the end of a run that one process began."""
    # Here, in the processes that train: the tests' own process is to see our objectives alone.
    KINDS["bad"] = Bad
    with float64():
        for objective in ALIKE:
            fit(recipe(objective, devices=2), folder / objective, console=quiet())
        fit(recipe("ntxent", devices=2, micro_batch=3), folder / "parts", console=quiet())
        fit(recipe("ntxent", devices=2, save_every=2), folder / "begun", resume=True, console=quiet())
    fit(recipe("bad", devices=2, on_nan="skip"), folder / "skipped", console=quiet())
    with contextlib.suppress(ValueError):
        fit(recipe("bad", devices=2), folder / "stopped", console=quiet())
    said = io.StringIO()
    fit(from_shards(folder / "shards"), folder / "from_shards", console=Console(file=said, width=300))
    if said.getvalue():  # of the first process
        (folder / "said").write_text(said.getvalue())
    note_what_is_shared(folder)


def note_what_is_shared(folder):
    fabric = build_fabric(recipe("ntxent", devices=2).train)
    fabric.launch()
    rank = fabric.global_rank
    seen = first_only(fabric, lambda: f"told by {rank}")
    refusal = ""
    try:
        first_only(fabric, partial(int, "x" if rank == 0 else "1"))
    except ValueError as error:
        refusal = str(error)
    (folder / f"seen-{rank}").write_text(f"{fabric.world_size} {seen}; {refusal}")
