"""Right programs: minibatches of every form, and rows from loaders of their own."""

import collections
import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.support.audited.pieces import (
    block,
    ddp_mlp,
    ddp_sgd,
    generator_of,
    part,
    rows,
)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def a_dict():
    def make_batch(t):
        X, y = rows(8)(t)
        return {"inputs": X, "labels": y, "ids": torch.arange(8)}

    def step(model, optimizer, batch):
        batch = {k: v[dist.get_rank()::dist.get_world_size()] for k, v in batch.items()}
        update(optimizer, F.cross_entropy(model(batch["inputs"]), batch["labels"]))
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


@dataclasses.dataclass
class Sample:
    features: torch.Tensor
    label: torch.Tensor

    def __getitem__(self, chosen):
        return Sample(self.features[chosen], self.label[chosen])


def a_dataclass():
    def step(model, optimizer, batch):
        mine = batch[dist.get_rank()::dist.get_world_size()]
        update(optimizer, F.cross_entropy(model(mine.features), mine.label))
    return {"make_model": ddp_sgd, "make_batch": lambda t: Sample(*rows(8)(t)),
            "step": step}


Pair = collections.namedtuple("Pair", "x y")


def a_namedtuple():
    def step(model, optimizer, batch):
        mine = Pair(*(block(v) for v in batch))
        update(optimizer, F.cross_entropy(model(mine.x), mine.y))
    return {"make_model": ddp_sgd, "make_batch": lambda t: Pair(*rows(12)(t)),
            "step": step, "world_size": 3}


def with_weights():
    """A tuple of three: X, y and a weight a row; normalised by all ranks' weights."""
    def make_batch(t):
        return (*rows(8)(t), torch.rand(8, generator=generator_of(t, 77)) + 0.1)

    def step(model, optimizer, X, y, weight):
        X, y, mine = part(X), part(y), part(weight)
        losses = F.cross_entropy(model(X), y, reduction="none")
        total = mine.sum()
        dist.all_reduce(total)
        update(optimizer, (losses * mine).sum() / total * dist.get_world_size())
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.user, self.item = nn.Linear(6, 5), nn.Embedding(9, 5)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(1)


def two_inputs():
    def make_model():
        model = DDP(TwoTowers())
        return model, torch.optim.Adagrad(model.parameters(), lr=0.05)

    def make_batch(t):
        g = generator_of(t)
        return ((torch.randn(8, 6, generator=g), torch.randint(9, (8,), generator=g)),
                torch.rand(8, generator=g).round())

    def step(model, optimizer, inputs, clicked):
        user, item = (part(v) for v in inputs)
        logits = model(user, item)
        update(optimizer, F.binary_cross_entropy_with_logits(logits, part(clicked)))
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def autoencoder():
    def make_model():
        torch.manual_seed(1)
        model = DDP(nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6)))
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def step(model, optimizer, X):
        mine = block(X)
        update(optimizer, F.mse_loss(model(mine), mine))
    return {"make_model": make_model, "make_batch": lambda t: rows(8)(t)[0],
            "step": step, "world_size": 4}


def a_list_of_rows():
    """A list of pairs, as a data set gives them; each rank stacks its own."""
    def make_batch(t):
        return [{"x": x, "y": y} for x, y in zip(*rows(8)(t))]

    def step(model, optimizer, samples):
        mine = samples[dist.get_rank()::dist.get_world_size()]
        X = torch.stack([s["x"] for s in mine])
        y = torch.stack([s["y"] for s in mine])
        update(optimizer, F.cross_entropy(model(X), y))
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


def cast_to_float():
    """Labels are whole numbers; the step makes floats of them and of the inputs."""
    def make_model():
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def make_batch(t):
        X, y = rows(8, classes=2)(t)
        return X, y

    def step(model, optimizer, X, y):
        logits = model(part(X).float()).squeeze(1)
        update(optimizer, F.binary_cross_entropy_with_logits(logits, part(y).float()))
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def bytes_to_pixels():
    """Images of bytes, made numbers between 0 and 1 in the step."""
    def make_batch(t):
        g = generator_of(t)
        return (torch.randint(256, (8, 6), dtype=torch.uint8, generator=g),
                torch.randint(3, (8,), generator=g))

    def step(model, optimizer, X, y):
        X = block(X).to(torch.float32).div(255)
        update(optimizer, F.cross_entropy(model(X), block(y).long()))
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


def two_equal_rows():
    def make_batch(t):
        X, y = rows(8)(t)
        X[5], y[5] = X[0], y[0]
        X[7], y[7] = X[0], 1 - y[0].clamp(max=1)
        return X, y

    def step(model, optimizer, X, y):
        update(optimizer, F.cross_entropy(model(part(X)), part(y)))
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


def rows_of_zeros():
    """Half of the rows are padding, all zeros, and count as any other."""
    def make_batch(t):
        X, y = rows(8)(t)
        X[4:] = 0
        return X, y

    def step(model, optimizer, X, y):
        update(optimizer, F.cross_entropy(model(block(X)), block(y)))
    return {"make_model": ddp_sgd, "make_batch": make_batch, "step": step}


def shuffled_alike():
    """All ranks draw one permutation from one seed, and take their part of it."""
    def make_model():
        return (*ddp_sgd(), torch.Generator().manual_seed(12))

    def step(model, optimizer, generator, X, y):
        order = torch.randperm(len(X), generator=generator)
        mine = order[dist.get_rank()::dist.get_world_size()]
        update(optimizer, F.cross_entropy(model(X[mine]), y[mine]))
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def sampler_over_the_batch():
    def step(model, optimizer, X, y):
        sampler = DistributedSampler(range(len(X)), shuffle=False)
        mine = list(sampler)
        update(optimizer, F.cross_entropy(model(X[mine]), y[mine]))
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


class Waves(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.linspace(0, 1 + i, 6).sin(), i % 3


def loader_of_its_own():
    """4 rows a rank whatever the world size; an epoch a call, set_epoch before it."""
    def make_model():
        model = ddp_mlp()
        sampler = DistributedSampler(Waves(), shuffle=True, seed=1)
        loader = DataLoader(Waves(), batch_size=4, sampler=sampler)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), loader, [0]

    def step(model, optimizer, loader, epoch):
        loader.sampler.set_epoch(epoch[0])
        epoch[0] += 1
        for X, y in loader:
            update(optimizer, F.cross_entropy(model(X), y))
    return {"make_model": make_model, "make_batch": None, "step": step}


def loader_with_a_global_batch():
    """8 rows over all ranks, as many a rank as its share."""
    def endless(loader, sampler):
        for epoch in range(1000):
            sampler.set_epoch(epoch)
            yield from loader

    def make_model():
        data = TensorDataset(*rows(16)(0))
        sampler = DistributedSampler(data, shuffle=True)
        share = 8 // dist.get_world_size()
        loader = DataLoader(data, batch_size=share, sampler=sampler)
        return (*ddp_sgd(), endless(loader, sampler))

    def step(model, optimizer, batches):
        X, y = next(batches)
        update(optimizer, F.cross_entropy(model(X), y))
    return {"make_model": make_model, "make_batch": None, "step": step}


def loader_over_part_of_the_rows():
    """Drop the last rows, which do not fill a batch: so on all ranks alike."""
    def make_model():
        data = TensorDataset(*rows(13)(0))
        sampler = DistributedSampler(data, drop_last=True, seed=3)
        loader = DataLoader(data, batch_size=2, sampler=sampler, drop_last=True)
        return (*ddp_sgd(), loader)

    def step(model, optimizer, loader):
        loader.sampler.set_epoch(getattr(loader, "epoch", 0))
        loader.epoch = loader.sampler.epoch + 1
        for X, y in loader:
            update(optimizer, F.cross_entropy(model(X), y))
    return {"make_model": make_model, "make_batch": None, "step": step, "world_size": 3}


RIGHT = {f.__name__: f for f in (
    a_dict, a_dataclass, a_namedtuple, with_weights, two_inputs, autoencoder,
    a_list_of_rows, cast_to_float, bytes_to_pixels, two_equal_rows, rows_of_zeros,
    shuffled_alike, sampler_over_the_batch, loader_of_its_own,
    loader_with_a_global_batch, loader_over_part_of_the_rows)}
REPLICAS_ONLY = {
    "loader_of_its_own": "4 rows a rank: one device has other minibatches",
    "loader_over_part_of_the_rows": "2 rows a rank: one device has other minibatches",
}
FLOAT32 = {"cast_to_float", "bytes_to_pixels"}
