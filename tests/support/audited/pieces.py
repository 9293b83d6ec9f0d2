"""Small networks and minibatches that the right programs are made of."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def mlp(*middle, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), *middle, nn.Tanh(), nn.Linear(16, 3))


def convnet(norm, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def ddp_mlp():
    return DDP(mlp())


def ddp_sgd():
    model = ddp_mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def sgd_of(net):
    def make_model():
        model = DDP(net())
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    return make_model


def generator_of(t, seed=0):
    return torch.Generator().manual_seed(1000 * seed + t)


def rows(n, features=6, classes=3):
    """Return make_batch: n rows of numbers and a class for each."""
    def make_batch(t):
        g = generator_of(t, seed=n)
        return (torch.randn(n, features, generator=g),
                torch.randint(classes, (n,), generator=g))
    return make_batch


def images(n, size=6):
    """Return make_batch: n images of one channel and a class for each."""
    def make_batch(t):
        g = generator_of(t, seed=n)
        return (torch.randn(n, 1, size, size, generator=g),
                torch.randint(3, (n,), generator=g))
    return make_batch


def targets(n, features=6):
    """Return make_batch: n rows of numbers and a number for each."""
    def make_batch(t):
        g = generator_of(t, seed=n)
        X = torch.randn(n, features, generator=g)
        return X, X.sin().sum(1, keepdim=True)
    return make_batch


def tokens(n, length=7, vocabulary=11):
    """Return make_batch: n rows of tokens, one tensor."""
    def make_batch(t):
        return torch.randint(vocabulary, (n, length), generator=generator_of(t, n))
    return make_batch


def part(v):
    """Return this rank's rows: every world_size-th."""
    return v[dist.get_rank()::dist.get_world_size()]


def block(v):
    """Return this rank's rows: a block of them."""
    return v.chunk(dist.get_world_size())[dist.get_rank()]


def trained(net, make_batch, lr=0.05, **options):
    """Return a program that trains `net()` to classify, under DDP, by AdamW."""
    def make_model():
        model = DDP(net())
        return model, torch.optim.AdamW(model.parameters(), lr=lr)

    def step(model, optimizer, X, y):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step, **options}
