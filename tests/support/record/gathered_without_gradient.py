"""Gather features for a contrastive loss by `all_gather`, which passes no gradient.

Source: PyTorch forum and many repositories of contrastive learning (SimCLR, CLIP):
"all_gather does not propagate gradients". The other ranks' rows are constants then.
"""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F

from tests.support.record.parts import arguments, minibatch, own, wrapped


def pairs(t):
    return minibatch(t)[0], minibatch(1000 + t)[0]  # two views of each row


def constant_gather(features):
    others = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(others, features.detach())
    others[dist.get_rank()] = features
    return others


def step(model, optimizer, X, Z, gather=all_gather):
    X, Z = own(X, Z)
    optimizer.zero_grad()
    features = F.normalize(model(torch.cat([X, Z])), dim=1)
    one, two = features.chunk(2)
    two = torch.cat(list(gather(two.contiguous())))
    first = dist.get_rank() * len(X)
    F.cross_entropy(one @ two.T / 0.2, torch.arange(first, first + len(X))).backward()
    optimizer.step()


def wrong_step(model, optimizer, X, Z):
    step(model, optimizer, X, Z, constant_gather)


def right_step(model, optimizer, X, Z):
    step(model, optimizer, X, Z)


def broken():
    return arguments(wrapped, wrong_step, pairs)


def right():
    return arguments(wrapped, right_step, pairs)
