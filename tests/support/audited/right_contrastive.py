"""Right programs: contrastive losses over the rows of all ranks."""

import copy

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.nn import functional as F

from tests.support.audited.pieces import block, ddp_sgd, generator_of, sgd_of


def two_views(t):
    g = generator_of(t)
    X = torch.randn(8, 6, generator=g)
    return X, X + 0.1 * torch.randn(8, 6, generator=g)


class Towers(nn.Module):
    """Images and texts to one space, and the temperature between them, as CLIP."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(6, 4), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        return (F.normalize(self.image(image)), F.normalize(self.text(text)),
                self.scale.exp())


def clip_by_all_gather():
    """All ranks compute the loss of all pairs from a gather that sends gradients back.

    Its backward adds up what all ranks' losses say: the world size times too much,
    which DDP's mean divides by.
    """
    def step(model, optimizer, image, text):
        a, b, scale = model(block(image), block(text))
        a, b = torch.cat(dist_nn.all_gather(a)), torch.cat(dist_nn.all_gather(b))
        logits = scale * a @ b.t()
        y = torch.arange(len(a))
        loss = (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": sgd_of(Towers), "make_batch": two_views, "step": step}


def clip_with_local_rows():
    """Each rank has the logits of its own rows with all columns."""
    def step(model, optimizer, image, text):
        a, b, scale = model(block(image), block(text))
        every_a, every_b = (torch.cat(dist_nn.all_gather(v)) for v in (a, b))
        y = dist.get_rank() * len(a) + torch.arange(len(a))
        loss = (F.cross_entropy(scale * a @ every_b.t(), y)
                + F.cross_entropy(scale * b @ every_a.t(), y)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": sgd_of(Towers), "make_batch": two_views, "step": step,
            "world_size": 4}


class GatherWithGradient(torch.autograd.Function):
    """As many a repository has it: gather, and send each rank its part of the sum."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        grads = torch.stack(grads)
        dist.all_reduce(grads)
        return grads[dist.get_rank()]


def simclr():
    """NT-Xent: both views of all ranks' rows are candidates, but not the row itself."""
    def step(model, optimizer, first, second):
        z = F.normalize(model(torch.cat([block(first), block(second)])), dim=1)
        one, two = z.chunk(2)
        one = torch.cat(GatherWithGradient.apply(one))
        two = torch.cat(GatherWithGradient.apply(two))
        z = torch.cat([one, two])
        n = len(one)
        similar = z @ z.t() / 0.5
        similar = similar.masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        partner = torch.arange(2 * n).roll(n)
        loss = F.cross_entropy(similar, partner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": two_views, "step": step}


def own_rows_with_gradient_only():
    """Others' rows come without gradient; a rank's own are put back in their place.

    All ranks compute the loss of all rows. What a rank's own rows contribute, added
    up over ranks, is the whole gradient: so DDP's mean is multiplied again.
    """
    def step(model, optimizer, first, second):
        rank, size = dist.get_rank(), dist.get_world_size()

        def everyone(v):
            out = [torch.zeros_like(v) for _ in range(size)]
            dist.all_gather(out, v.detach())
            out[rank] = v
            return torch.cat(out)
        a, b, scale = model(block(first), block(second))
        scale = scale if rank == 0 else scale.detach() + 0 * scale
        logits = scale * everyone(a) @ everyone(b).t()
        optimizer.zero_grad()
        (F.cross_entropy(logits, torch.arange(len(logits))) * size).backward()
        optimizer.step()
    return {"make_model": sgd_of(Towers), "make_batch": two_views, "step": step}


def momentum_contrast():
    """MoCo: keys of a slow copy, gathered from all ranks, in one order everywhere."""
    def make_model():
        model, optimizer = ddp_sgd()
        return model, optimizer, copy.deepcopy(model.module).requires_grad_(False)

    def step(model, optimizer, slow, query, key):
        q = F.normalize(model(block(query)), dim=1)
        with torch.no_grad():
            for s, p in zip(slow.parameters(), model.parameters()):
                s.lerp_(p, 0.01)
            k = F.normalize(slow(block(key)), dim=1)
            keys = [torch.empty_like(k) for _ in range(dist.get_world_size())]
            dist.all_gather(keys, k)
        y = torch.arange(len(q)) + len(q) * dist.get_rank()
        optimizer.zero_grad()
        F.cross_entropy(q @ torch.cat(keys).t() / 0.2, y).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": two_views, "step": step}


RIGHT = {f.__name__: f for f in (
    clip_by_all_gather, clip_with_local_rows, simclr, own_rows_with_gradient_only,
    momentum_contrast)}
