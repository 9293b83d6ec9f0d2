"""Gather features for a contrastive loss by `all_gather`, which passes no gradient.

Source: PyTorch forum and many repositories of contrastive learning (SimCLR, CLIP):
"all_gather does not propagate gradients". The other ranks' rows are constants then.

Right: the loss of all rows on each rank. It has the whole gradient of the rank's own
rows; DDP's mean over the ranks has to be multiplied up again.
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from tests.support.record.parts import arguments, minibatch, own, wrapped


def pairs(t):
    return minibatch(t)[0], minibatch(1000 + t)[0]  # two views of each row


def gather(features):
    parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features.detach())
    parts[dist.get_rank()] = features
    return torch.cat(parts)


def loss_of_own(one, two):
    first = dist.get_rank() * len(one)
    return F.cross_entropy(one @ gather(two).T / 0.2,
                           torch.arange(first, first + len(one)))


def loss_of_all(one, two):
    scores = gather(one) @ gather(two).T / 0.2
    return dist.get_world_size() * F.cross_entropy(scores, torch.arange(len(scores)))


def step(model, optimizer, X, Z, loss=loss_of_own):
    X, Z = own(X, Z)
    optimizer.zero_grad()
    one, two = F.normalize(model(torch.cat([X, Z])), dim=1).chunk(2)
    loss(one.contiguous(), two.contiguous()).backward()
    optimizer.step()


def right_step(model, optimizer, X, Z):
    step(model, optimizer, X, Z, loss_of_all)


def wrong_step(model, optimizer, X, Z):
    step(model, optimizer, X, Z)


def broken():
    return arguments(wrapped, wrong_step, pairs)


def right():
    return arguments(wrapped, right_step, pairs)
