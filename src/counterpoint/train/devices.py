"""The devices of a run, and what its processes do together."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from counterpoint.models.encoder import Encoder
from counterpoint.train.recipe import Recipe
from counterpoint.train.sections import Train

T = TypeVar("T")
ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")


def build_fabric(train: Train) -> Fabric:
    """Fabric for the devices that the recipe asks for, or that torchrun or srun has started a process for.

    Several devices are DistributedDataParallel. Raises ValueError where the accelerator or so many devices
    are not there, and where the recipe asks for other numbers than were started.

    >>> build_fabric(Train(accelerator="cpu")).world_size
    1
    """
    environment, devices, nodes = _layout(train)
    try:
        return Fabric(
            accelerator=train.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=train.precision,
            plugins=[environment],
        )
    except (RuntimeError, MisconfigurationException) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        wanted = f"train.accelerator={train.accelerator!r} with train.devices={train.devices!r}"
        raise ValueError(f"{wanted} cannot be used: {reason}") from None


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
    if train.compile:
        # Sizes are left open: a short batch is then taken as it is, and nothing is compiled anew for it.
        encoder.compile(dynamic=True)
    return encoder


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
    """Give each of several processes random numbers of its own: a function of seed, step and process.

    So a resumed run draws the same ones, though a checkpoint holds the state of the first process alone.
    """
    if fabric.world_size > 1:
        words = np.random.SeedSequence((seed, step, fabric.global_rank)).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))
