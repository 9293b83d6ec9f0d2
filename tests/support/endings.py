"""Runs that end before their time: for `python -m manual_dp audit`, and a script.

    python -m manual_dp audit tests.support.endings:hangs_alone
    python -m manual_dp audit -- tests/support/endings.py hangs|killed|silent

Each touches reached-RANK in the folder FOLDER of the environment when it is there.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.broken_training import case, ddp, ordinary

FOLDER = "ENDINGS"  # names the folder, in the environment


def reached():
    if FOLDER in os.environ:
        Path(os.environ[FOLDER], f"reached-{dist.get_rank()}").touch()


def sleeps(world_size):
    def step(model, optimizer, X, y):
        if dist.get_world_size() == world_size:
            reached()
            time.sleep(120)
        ordinary(model, optimizer, X, y)
    return case(ddp, step)


def hangs_alone():
    return sleeps(world_size=1)


def hangs_on_ranks():
    return sleeps(world_size=2)


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def killed():
    def step(model, optimizer, X, y):
        ordinary(model, optimizer, X, y)
        if dist.get_rank() == 1:
            dies()
    return case(ddp, step)


def main(how):
    """Train; in the second step rank 1 does not do as rank 0."""
    dist.init_process_group("gloo")
    model = torch.nn.Linear(5, 3)
    if how == "silent":
        return
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        if step == 1:
            reached()
            if dist.get_rank() == 1:
                time.sleep(120) if how == "hangs" else dies()
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
