"""The devices of a run, and what its processes do together."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.fsdp import FSDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.models.encoder import Encoder
from counterpoint.train.recipe import Recipe
from counterpoint.train.sections import Train

T = TypeVar("T")
State = dict[str, Any]
ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
SHARD = 1_000_000  # weights that FSDP gathers at a time, at least


def build_fabric(train: Train) -> Fabric:
    """Fabric for the devices that the recipe asks for, or that torchrun or srun has started a process for.

    Several devices are DistributedDataParallel, or FSDP where the recipe says so. Raises ValueError where the
    accelerator or so many devices are not there, and where the recipe asks for other numbers than were
    started.

    >>> build_fabric(Train(accelerator="cpu")).world_size
    1
    """
    environment, devices, nodes = _layout(train)
    try:
        return Fabric(
            accelerator=train.accelerator,
            strategy=_sharded(train) if train.strategy == "fsdp" else "auto",
            devices=devices,
            num_nodes=nodes,
            precision=train.precision,
            plugins=[environment],
        )
    except (RuntimeError, MisconfigurationException) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        wanted = f"train.accelerator={train.accelerator!r} with train.devices={train.devices!r}"
        raise ValueError(f"{wanted} cannot be used: {reason}") from None


def _sharded(train: Train) -> FSDPStrategy:
    """FSDP, a shard for every million weights or so; ValueError where there are no GPUs for it."""
    if train.accelerator not in ("auto", "cuda") or not torch.cuda.is_available():
        raise ValueError(
            f"train.strategy='fsdp' needs CUDA GPUs, and with train.accelerator={train.accelerator!r} "
            "there are none here: leave it at 'auto', and every process holds the whole encoder"
        )
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    return FSDPStrategy(auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=SHARD))


def _layout(train: Train) -> tuple[Any, int | str, int]:
    """The environment that tells each process its rank, devices of a machine, and machines."""
    starter = started_by()
    if starter == "torchrun":
        own = int(os.environ["LOCAL_WORLD_SIZE"])
        return TorchElasticEnvironment(), *_agreed(train, own, int(os.environ["WORLD_SIZE"]), "torchrun")
    if starter == "srun":
        world = int(os.environ["SLURM_NTASKS"])
        own = world // int(os.environ.get("SLURM_NNODES", 1))
        return SLURMEnvironment(auto_requeue=False), *_agreed(train, own, world, "srun")
    if train.nodes > 1 and (missing := [name for name in ADDRESS if name not in os.environ]):
        raise ValueError(
            f"train.nodes={train.nodes}: start the command on each machine with torchrun or srun, "
            f"or set {', '.join(missing)} there"
        )
    return LightningEnvironment(), train.devices, train.nodes


def _agreed(train: Train, own: int, world: int, starter: str) -> tuple[int, int]:
    """Devices and machines as they were started; where the recipe asks for several, it must be those."""
    nodes = world // own
    for name, asked, started in (("devices", train.devices, own), ("nodes", train.nodes, nodes)):
        if asked not in (1, "auto", started):
            raise ValueError(f"train.{name}={asked}, but {starter} started {started}")
    return own, nodes


def to_start(fabric: Fabric) -> int:
    """How many processes are still to be started on this machine; 0 where this is one of them."""
    launcher = fabric.strategy.launcher
    environment = getattr(fabric.strategy, "cluster_environment", None)
    if launcher is None or environment is None or environment.creates_processes_externally:
        return 0
    return int(getattr(fabric.strategy, "num_processes", 0))


def prepared(encoder: Encoder, recipe: Recipe, fabric: Fabric) -> Encoder:
    """The encoder as the recipe wants it on these devices; ValueError where that cannot be.

    Names of weights stay as they are, so that checkpoints fit with and without.
    """
    train = recipe.train
    if train.sync_batchnorm:
        if fabric.device.type != "cuda":
            raise ValueError(
                f"train.sync_batchnorm=true needs CUDA GPUs, and this run is on {fabric.device}: "
                "set it to false, and each process normalises its own share"
            )
        encoder = nn.SyncBatchNorm.convert_sync_batchnorm(encoder)  # type: ignore[no-untyped-call]
    if train.compile and fabric.device.type == "cpu":
        _check_compiler()
    if encoder.channels_last and fabric.device.type == "cpu":
        # As the pictures lie, so that no convolution turns its weights at every step.
        encoder = encoder.to(memory_format=torch.channels_last)
    return encoder


def _check_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        raise ValueError(
            "train.compile=true needs a C++ compiler on a CPU, and none was found: install g++, or name one "
            "by the environment variable CXX, or set train.compile=false"
        ) from None


def compile_encoder(encoder: nn.Module, outer: nn.Module, backend: str = "inductor") -> None:
    """Compile the encoder where it stands, so that its weights keep their names.

    outer: what the loop calls, with the encoder in it. The length of a batch is left open from the first one
        on, so that another one compiles nothing anew. Below 16 pictures PyTorch takes other convolutions on
        a CPU, and compiles once more for these.
    """
    from torch._dynamo import maybe_mark_dynamic

    def leave_length_open(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        for tensor in inputs:
            maybe_mark_dynamic(tensor, 0)

    encoder.compile(backend=backend)
    outer.register_forward_pre_hook(leave_length_open)


def whole_state(fabric: Fabric, encoder: nn.Module, optimizer: Optimizer) -> tuple[State, State]:
    """The states of the encoder and its optimiser; of shards, put together in the first process."""
    if not isinstance(fabric.strategy, FSDPStrategy):
        return encoder.state_dict(), optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_state_dict(*_bare(encoder, optimizer), options=whole)


def load_whole_state(
    fabric: Fabric, encoder: nn.Module, optimizer: Optimizer, state: State, optimizer_state: State
) -> None:
    """Take up what `whole_state` gave; every process is given it whole."""
    if not isinstance(fabric.strategy, FSDPStrategy):
        encoder.load_state_dict(state)
        optimizer.load_state_dict(optimizer_state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        *_bare(encoder, optimizer),
        model_state_dict=state,
        optim_state_dict=optimizer_state,
        options=StateDictOptions(full_state_dict=True),
    )


def _bare(encoder: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Those that Fabric has put its own around."""
    return getattr(encoder, "_forward_module", encoder), getattr(optimizer, "optimizer", optimizer)


def started_by() -> str | None:
    """What has started this process as one of several: "torchrun", "srun", or None."""
    if TorchElasticEnvironment.detect():
        return "torchrun"
    # Inside sbatch, but outside srun, the variables of a job are there and its processes are not.
    return "srun" if SLURMEnvironment.detect() and "SLURM_STEP_ID" in os.environ else None


def is_first() -> bool:
    """Whether this process is the first, or the only one, of those that torchrun or srun started."""
    rank = {"torchrun": "RANK", "srun": "SLURM_PROCID", None: ""}[started_by()]
    return int(os.environ.get(rank, 0)) == 0


def first_only(fabric: Fabric, function: Callable[[], T]) -> T:
    """What the function gives in the first process, told to all; its ValueError or OSError is raised in all.

    >>> first_only(Fabric(accelerator="cpu", devices=1), lambda: 3)
    3
    """
    if fabric.world_size == 1:
        return function()
    told: tuple[T | None, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            told = (function(), None)
        except (ValueError, OSError) as error:
            told = (None, error)
    result, failure = fabric.broadcast(told)
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]


def seed_step(fabric: Fabric, seed: int, step: int) -> None:
    """Random numbers that are a function of seed, step and process: of several processes, and of a GPU.

    So each of them has its own, and a resumed run draws the same ones, though a checkpoint holds the random
    state of the first process alone, and only that of its CPU.
    """
    if fabric.world_size > 1 or fabric.device.type != "cpu":
        words = np.random.SeedSequence((seed, step, fabric.global_rank)).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))
