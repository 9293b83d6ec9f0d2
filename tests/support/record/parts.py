"""What the programs of the record share: small networks, minibatches, a rank's rows."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS = 8


def network():
    """Build the same small network on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Tanh(),
                         nn.Linear(10, 3))


def wrapped(lr=0.1):
    """Return a network in DDP and its optimizer."""
    model = DDP(network())
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def minibatch(t):
    """Draw the whole minibatch of step `t`: X, y."""
    generator = torch.Generator().manual_seed(100 + t)
    X = torch.rand(ROWS, 6, generator=generator)
    return X, torch.randint(3, (ROWS,), generator=generator)


def own(*tensors):
    """Return this rank's rows of each tensor."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return [tensor.tensor_split(world_size)[rank] for tensor in tensors]


def average_gradients(model):
    """Replace each gradient by its mean over the ranks."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def update(model, optimizer, X, y):
    """Do one right step of data-parallel training: a rank's shard, DDP's mean."""
    X, y = own(X, y)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X), y).backward()
    optimizer.step()


def arguments(make_model, step, make_batch=minibatch, **others):
    """Return what `audit` is to be called with."""
    return dict(make_model=make_model, make_batch=make_batch, step=step, **others)
