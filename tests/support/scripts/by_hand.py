"""Train without DDP and, unless asked, a word to any audit; WORDS say what is so."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import watch

WORDS = sys.argv[1:]


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)

    def encode(self, X):
        return torch.tanh(self.encoder(X))

    def forward(self, X):
        return self.decoder(self.encode(X))


class Around(nn.Module):
    """Hold a model, and be never called."""

    def __init__(self, model):
        super().__init__()
        self.model = model


def send(rank, models):
    for p in [p for model in models for p in model.parameters()]:
        dist.broadcast(p.data, 0)


def average(models):
    for name, p in [one for model in models for one in model.named_parameters()]:
        if "biases" not in WORDS or "bias" not in name:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    models = [nn.Linear(8, 4), nn.Linear(4, 8)] if "two" in WORDS else [Coder()]
    around = Around(models[0]) if "around" in WORDS else None
    params = [p for model in models for p in model.parameters()]
    optimizer = torch.optim.Adam(params, lr=0.01)
    if "watched" in WORDS:
        watch(models[0], optimizer)
    if "tried" in WORDS:  # before it has rank 0's weights
        models[0](torch.zeros(2, 8))
    if "alone" not in WORDS:
        send(rank, models)
    if "wrapped" in WORDS:
        models = [DistributedDataParallel(models[0])]
    rows = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
    for t in range(6):
        X = rows[16 * t:16 * t + 16][rank::world_size]
        optimizer.zero_grad()
        if "two" in WORDS:
            X_hat = models[1](models[0](X))
        elif "parts" in WORDS:  # `forward` is never called
            X_hat = models[0].decoder(models[0].encode(X))
        else:
            X_hat = models[0](X)
        F.mse_loss(X_hat, X).backward()
        if "wrapped" not in WORDS and "unsent" not in WORDS:
            average(models)
        optimizer.step()
    del around
    dist.destroy_process_group()


main()
