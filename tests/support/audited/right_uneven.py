"""Right programs: gradients of several backwards a step, and ranks of uneven inputs."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F

from tests.support.audited.pieces import block, ddp_sgd, mlp, part, rows, targets


def sgd_mlp():
    model = mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def accumulation_with_no_sync():
    def step(model, optimizer, X, y):
        micros = list(zip(block(X).chunk(4), block(y).chunk(4)))
        optimizer.zero_grad()
        for i, (x, target) in enumerate(micros):
            last = i == len(micros) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.cross_entropy(model(x), target) / len(micros)
                loss.backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(16), "step": step}


def accumulation_without_no_sync():
    """Every micro-batch is averaged over the ranks: slower, and as right."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        for x, target in zip(part(X).chunk(2), part(y).chunk(2)):
            (F.cross_entropy(model(x), target) / 2).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(12), "step": step,
            "world_size": 3}


def accumulation_of_uneven_micro_batches():
    """5 rows a rank in micro-batches of 2, 2, 1: each counts as its rows."""
    def step(model, optimizer, X, y):
        X, y = block(X), block(y)
        optimizer.zero_grad()
        with model.no_sync():
            for x, target in zip(X[:4].split(2), y[:4].split(2)):
                (F.cross_entropy(model(x), target) * len(x) / len(X)).backward()
        (F.cross_entropy(model(X[4:]), y[4:]) * len(X[4:]) / len(X)).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(10), "step": step}


def accumulation_over_steps():
    """The optimizer moves in every second call; between, gradients wait."""
    def make_model():
        return (*ddp_sgd(), {"micro": 0})

    def step(model, optimizer, state, X, y):
        state["micro"] += 1
        update = state["micro"] % 2 == 0
        with contextlib.ExitStack() as stack:
            if not update:
                stack.enter_context(model.no_sync())
            (F.cross_entropy(model(block(X)), block(y)) / 2).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
    return {"make_model": make_model, "make_batch": rows(8), "step": step, "steps": 4}


def accumulation_by_hand():
    """Sum over micro-batches, all-reduce once, divide by all there are."""
    def make_model():
        model = mlp()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        micros = list(zip(part(X).split(2), part(y).split(2)))
        for x, target in micros:
            F.cross_entropy(model(x), target).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size() * len(micros)
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def uneven_inputs_joined():
    """3 micro-batches on rank 0, 2 on rank 1, a mean each; Join shadows the last one.

    An update follows every micro-batch, and counts the ranks that still had one.
    """
    def step(model, optimizer, X, y):
        rank, size = dist.get_rank(), dist.get_world_size()
        mine = list(zip(X.split(2), y.split(2)))[rank::size]
        with Join([model], divide_by_initial_world_size=False):
            for x, target in mine:
                optimizer.zero_grad()
                F.cross_entropy(model(x), target).backward()
                optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(10), "step": step}


def a_rank_joins_at_once():
    """4 rows on 3 ranks in chunks of 2: the last has none, and shadows the others.

    Each row counts 1 / (all rows) in the sum that DDP divides by the world size.
    """
    def step(model, optimizer, X, y):
        rank, size = dist.get_rank(), dist.get_world_size()
        mine = list(zip(X.chunk(size), y.chunk(size)))[rank:rank + 1]
        with model.join():
            for x, target in mine:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), target, reduction="sum")
                (loss * size / len(X)).backward()
                optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(4), "step": step, "world_size": 3}


def summed_loss_over_global_rows():
    """The loss is a sum over the global number of rows; gradients are added up."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        (F.mse_loss(model(part(X)), part(y).expand(-1, 3), reduction="sum")
         / (3 * len(y))).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return {"make_model": sgd_mlp, "make_batch": targets(10), "step": step,
            "world_size": 3}


def weighted_by_rows():
    """10 rows on 3 ranks: each gradient counts as its rows do."""
    def step(model, optimizer, X, y):
        rank, size = dist.get_rank(), dist.get_world_size()
        mine, labels = X.tensor_split(size)[rank], y.tensor_split(size)[rank]
        n = torch.tensor(float(len(mine)))
        dist.all_reduce(n)
        optimizer.zero_grad()
        F.cross_entropy(model(mine), labels).backward()
        for p in model.parameters():
            p.grad *= len(mine) / n
            dist.all_reduce(p.grad)
        optimizer.step()
    return {"make_model": sgd_mlp, "make_batch": rows(10), "step": step,
            "world_size": 3}


def a_rank_without_rows():
    """2 rows on 3 ranks: the last has none, and adds zeros to every sum."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        X_mine, y_mine = part(X), part(y)
        if len(X_mine):
            loss = F.cross_entropy(model(X_mine), y_mine, reduction="sum")
            (loss / len(y)).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
        optimizer.step()
    return {"make_model": sgd_mlp, "make_batch": rows(2), "step": step, "world_size": 3}


RIGHT = {f.__name__: f for f in (
    accumulation_with_no_sync, accumulation_without_no_sync,
    accumulation_of_uneven_micro_batches, accumulation_over_steps, accumulation_by_hand,
    uneven_inputs_joined, a_rank_joins_at_once,
    summed_loss_over_global_rows, weighted_by_rows, a_rank_without_rows)}
REPLICAS_ONLY = {
    # the rows of an update are those of 2 micro-batches; one device takes one
    "uneven_inputs_joined": "fixed rows a rank: one device makes other updates",
}
