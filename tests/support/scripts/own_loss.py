"""A script with a loss of its own, to be run on ranks and alone; WORDS say what is so.

Each of MISTAKES is one; the other words only make it harder to compare.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.models.syncnorm import sum_over_ranks

WORDS = sys.argv[1:]
OWN = torch.Generator()
MISTAKES = "divided", "summed", "rate", "decay", "norm", "local", "rolled", "detached"
MISTAKES += "cut", "unsplit"


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if "ranks" in WORDS and world_size == 1:
        raise ValueError("this is for several ranks")
    torch.manual_seed(0)
    X, y = torch.randn(128, 8), torch.randint(0, 5, (128,))
    if "numpy" in WORDS:
        X = torch.from_numpy(np.random.default_rng(0).normal(size=(128, 8)).astype("f4"))
    norm = (nn.BatchNorm1d(16) if "norms" in WORDS else
            Synced(16) if {"synced", "detached", "cut"} & {*WORDS} else nn.LayerNorm(16))
    if "mixed" in WORDS:
        norm = nn.Sequential(norm, nn.BatchNorm1d(16))
    model = nn.Sequential(nn.Linear(8, 16), norm, nn.Dropout(0.3), nn.Linear(16, 5))
    if "bare" not in WORDS or world_size > 1:
        model = DistributedDataParallel(model)
    torch.manual_seed(rank + 1)
    weights = 1 + torch.rand(5) if "teacher" in WORDS else torch.ones(5)
    np.random.seed(rank + 1)
    OWN.manual_seed(rank + 1)
    times = {name: world_size if name in WORDS else 1 for name in (*MISTAKES, "fixed")}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.001 * times["rate"] * times["fixed"],
        weight_decay=0.01 * times["decay"])
    rows, size = TensorDataset(X, y), 16 if "fixed" in WORDS else 32 // world_size
    sampler = DistributedSampler(rows)
    sampler.set_epoch(1)
    for X, y in DataLoader(rows, batch_size=size, sampler=sampler):
        optimizer.zero_grad()
        if "unsplit" in WORDS:
            y = rows.tensors[1][:len(y)]
        loss = own_loss(model(X), y, weights)
        (loss * times["summed"] / times["divided"]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5 * times["norm"])
        optimizer.step()
    dist.destroy_process_group()


def summed(x):
    """Sum over ranks; where it is "detached" or "cut", no sum comes back."""
    if "detached" in WORDS:
        return sum_over_ranks(x.detach()) + x - x.detach()
    if "cut" in WORDS:
        dist.all_reduce(x := x.clone())
        return x
    return sum_over_ranks(x)


class Synced(nn.BatchNorm1d):
    """Take the statistics of all ranks' rows; alone it is torch's."""

    def forward(self, x):
        n = dist.get_world_size()
        if n == 1 or not self.training:
            return super().forward(x)
        mean = summed(x.mean(0)) / n
        var = summed((x - mean).square().mean(0)) / n
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


def own_loss(y_hat, y, weights):
    if "plain" in WORDS:
        return F.cross_entropy(y_hat, y)
    if "half" in WORDS:
        y_hat = y_hat.bfloat16().float()
    y = y.roll(1) if "rolled" in WORDS else y
    p = y_hat.softmax(1)
    if "noise" in WORDS:
        p = p + 0.01 * torch.rand(len(p), 1)
    if "generator" in WORDS:
        p = p + 0.01 * torch.rand(len(p), 1, generator=OWN)
    each = -(F.one_hot(y, 5) * weights.to(p.dtype) * p.log()).sum(1)
    if "weighed" in WORDS:
        each = each * (1 + np.random.rand())
    if "local" in WORDS:
        each = each / (y == y[0]).float().mean()
    return each.mean()


main()
