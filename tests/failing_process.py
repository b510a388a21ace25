"""What two processes do where one fails, or ends early. Little is imported: it is imported twice a test."""

import os
import signal
import time

import torch
from torch import distributed

from counterpoint.train.signals import Stopped, StopSignals


def fail_in_one(kind):
    rank = int(os.environ["LOCAL_RANK"])
    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    if rank == 1:
        if kind is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise kind("the batch is bad")
    while True:
        distributed.all_reduce(torch.ones(1))
        time.sleep(0.05)


def wait_for_a_signal(folder, early):
    """Note that this process is there, and stay until a signal comes; process 0 may end before."""
    (folder / os.environ["LOCAL_RANK"]).write_text(str(os.getpid()))
    if early and os.environ["LOCAL_RANK"] == "0":
        return
    with StopSignals() as signals:
        (folder / "heeding").touch()
        while not signals.asked:
            time.sleep(0.01)
    raise Stopped(signals.asked)
