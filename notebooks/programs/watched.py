"""Train a small network, and let its first steps be watched.

    torchrun --standalone --nproc_per_node=2 watched.py
    torchrun --standalone --nproc_per_node=2 watched.py --bug "no sampler"

Two lines, marked with *, are all that a script needs. --bug makes one mistake. With
"hang" it never ends.

    train   on this rank, one epoch
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from manual_dp.audit import watch  # *

BUGS = ["none", "bare", "no sampler", "sum", "hang"]


def train(data, bug):
    """Train on this rank's part of the data."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watch(model, optimizer)  # *
    sampler = None if bug == "no sampler" else DistributedSampler(data, shuffle=False)
    for X, y in DataLoader(data, 8, sampler=sampler):
        if bug == "hang" and dist.get_rank() == 0:
            dist.barrier()
        y_hat = net(X) if bug == "bare" else model(X)
        loss = F.cross_entropy(y_hat, y, reduction="sum" if bug == "sum" else "mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", choices=BUGS, default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    train(TensorDataset(torch.rand(192, 6, generator=generator),
                        torch.randint(3, (192,), generator=generator)), args.bug)
    dist.destroy_process_group()
