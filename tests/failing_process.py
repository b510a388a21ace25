"""One of two processes fails, and the other waits for it. Little is imported: it is imported twice a test."""

import os
import signal
import time

import torch
from torch import distributed


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
