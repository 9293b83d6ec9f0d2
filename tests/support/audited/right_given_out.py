"""Right programs: one rank reads the rows, or updates weights, for the others."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.support.audited.pieces import block, ddp_sgd, mlp, part, rows


def rows_scattered_from_rank_0():
    """Rank 0 alone reads the minibatch, and sends every rank its part."""
    def step(model, optimizer, X, y):
        rank, size = dist.get_rank(), dist.get_world_size()
        mine = torch.empty(len(X) // size, X.shape[1])
        labels = torch.empty(len(y) // size, dtype=y.dtype)
        dist.scatter(mine, list(X.chunk(size)) if rank == 0 else None, src=0)
        dist.scatter(labels, list(y.chunk(size)) if rank == 0 else None, src=0)
        optimizer.zero_grad()
        F.cross_entropy(model(mine), labels).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


def rows_broadcast_from_rank_0():
    """Every rank gets all rows from rank 0 and keeps its own."""
    def step(model, optimizer, X, y):
        X, y = X.clone(), y.clone()
        dist.broadcast(X, src=0)
        dist.broadcast(y, src=0)
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(9), "step": step,
            "world_size": 3}


def order_drawn_by_rank_0():
    def make_model():
        return (*ddp_sgd(), torch.Generator().manual_seed(4))

    def step(model, optimizer, generator, X, y):
        order = [torch.randperm(len(X), generator=generator).tolist()]
        dist.broadcast_object_list(order, src=0)
        mine = part(torch.tensor(order[0]))
        optimizer.zero_grad()
        F.cross_entropy(model(X[mine]), y[mine]).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def parameter_server():
    """Gradients go to rank 0, which alone updates; weights come back from it."""
    def make_model():
        model = mlp()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def step(model, optimizer, X, y):
        model.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
        if dist.get_rank() == 0:
            for p in model.parameters():
                p.grad /= dist.get_world_size()
            optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                dist.broadcast(p, src=0)
    return {"make_model": make_model, "make_batch": rows(9), "step": step,
            "world_size": 3}


def each_rank_updates_its_share():
    """ZeRO by hand: rank i keeps the optimizer of every world_size-th parameter."""
    def make_model():
        model = mlp(nn.LayerNorm(16))
        own = part(list(model.parameters()))
        return model, torch.optim.AdamW(own, lr=0.01)

    def step(model, optimizer, X, y):
        model.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                dist.broadcast(p, src=i % dist.get_world_size())
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def summary_from_rank_0():
    """Rank 0 alone prints and keeps a history; it gathers what the others say."""
    def make_model():
        return (*ddp_sgd(), [])

    def step(model, optimizer, history, X, y):
        loss = F.cross_entropy(model(block(X)), block(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        everyone = [None] * dist.get_world_size()
        dist.gather_object(loss.item(), everyone if dist.get_rank() == 0 else None)
        if dist.get_rank() == 0:
            history.append(sum(everyone) / len(everyone))
    return {"make_model": make_model, "make_batch": rows(8), "step": step,
            "world_size": 4}


def checkpoint_on_rank_0():
    """Rank 0 copies the weights aside, the others wait at a barrier."""
    def make_model():
        return (*ddp_sgd(), {})

    def step(model, optimizer, saved, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            saved["model"] = {k: v.clone() for k, v in model.state_dict().items()}
        dist.barrier()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


RIGHT = {f.__name__: f for f in (
    rows_scattered_from_rank_0, rows_broadcast_from_rank_0, order_drawn_by_rank_0,
    parameter_server, each_rank_updates_its_share, summary_from_rank_0,
    checkpoint_on_rank_0)}
