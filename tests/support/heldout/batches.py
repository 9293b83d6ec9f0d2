"""Programs with batches or outputs out of the ordinary."""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.support.heldout.parts import (
    add_up,
    average,
    draw,
    draw_ids,
    mine,
    mlp,
    picked,
)


@dataclasses.dataclass
class Rows:
    """Hold what is known of some rows."""

    x: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor


@dataclasses.dataclass
class Output:
    """Hold what a model says of rows."""

    logits: torch.Tensor
    losses: torch.Tensor


class Weighted(nn.Module):
    """Return a dataclass with each row's loss."""

    def __init__(self):
        super().__init__()
        self.net = mlp(5, 8, 3)

    def forward(self, rows):
        logits = self.net(rows.x)
        return Output(logits, F.cross_entropy(logits, rows.y, reduction="none"))


def dataclasses_in_and_out(bug=None):
    """Take a dataclass as batch, return one, and weigh the rows."""
    def make_model():
        model = DDP(Weighted())
        return model, torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)

    def make_batch(t):
        return Rows(*picked(t), draw(t, 12, seed=2).exp())

    def own(rows):
        if bug == "each_takes_the_first_rows":
            size = len(rows.x) // dist.get_world_size()
            return Rows(rows.x[:size], rows.y[:size], rows.weight[:size])
        return Rows(mine(rows.x), mine(rows.y), mine(rows.weight))

    def step(model, optimizer, batch):
        rows = own(batch)
        total = rows.weight.sum()
        if bug != "weights_of_own_rows":
            total = add_up(total) / dist.get_world_size()
        optimizer.zero_grad()
        ((model(rows).losses * rows.weight).sum() / total).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


class GraphNetwork(nn.Module):
    """Add up each node's neighbours twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = mlp(4, 6), mlp(6, 3, seed=1)

    def forward(self, x, edges):
        for layer in (self.first, self.second):
            x = x.index_add(0, edges[1], x[edges[0]])
            x = layer(x).tanh()
        return x


def graph(bug=None):
    """Pass over the whole graph on each rank; take the loss of own nodes."""
    def make_model():
        model = GraphNetwork()
        return model, torch.optim.Adam(model.parameters(), 0.02)

    def make_batch(t):
        return {"x": draw(t, 10, 4), "edges": draw_ids(0, 10, 2, 24),
                "y": draw_ids(t, 3, 10), "train": draw(t, 10, seed=2) > -0.5}

    def step(model, optimizer, batch):
        edges = batch["edges"]
        if bug == "edges_split_too":
            edges = edges.tensor_split(dist.get_world_size(), 1)[dist.get_rank()]
        nodes = mine(batch["train"].nonzero().squeeze(1))
        losses = F.cross_entropy(model(batch["x"], edges)[nodes], batch["y"][nodes],
                                 reduction="sum")
        count = len(nodes) if bug == "mean_over_own_nodes" \
            else batch["train"].sum() / dist.get_world_size()
        optimizer.zero_grad()
        (losses / count).backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step,
            "world_size": 3}


class Feed:
    """Give a rank its batches for ever, in a new order in each epoch."""

    def __init__(self, bug):
        rank, world = dist.get_rank(), dist.get_world_size()
        rows = TensorDataset(draw(0, 24, 5), draw_ids(0, 3, 24))
        self.sampler = DistributedSampler(
            rows, num_replicas=world, shuffle=True,
            rank=0 if bug == "every_sampler_of_rank_0" else rank,
            seed=rank if bug == "sampler_seeded_by_rank" else 5)
        self.loader = DataLoader(rows, 12 // world, sampler=self.sampler)
        self.epoch, self.told = 0, bug != "epoch_never_told"
        self.begin()

    def begin(self):
        if self.told:
            self.sampler.set_epoch(self.epoch)
        self.batches = iter(self.loader)
        self.epoch += 1

    def next(self):
        batch = next(self.batches, None)
        if batch is None:
            self.begin()
            batch = next(self.batches)
        return batch


def loader_of_its_own(bug=None):
    """Read rows from a loader that the program makes, two batches an epoch."""
    def make_model():
        model = DDP(mlp(5, 8, 3))
        return model, torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), Feed(bug)

    def step(model, optimizer, feed):
        x, y = feed.next()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return {"make_model": make_model, "make_batch": None, "step": step,
            "world_size": 3}
