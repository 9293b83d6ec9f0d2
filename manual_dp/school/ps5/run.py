"""How the answers of problem set 5 are run: ten clues, ten repaired programs.

The four exercises that need ranks are in ps5_ranks.py; here ranks are lists.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from manual_dp.devices import try_devices
from manual_dp.school.ps5.roll import (
    batches,
    clues,
    double_averaging,
    hook,
    linear,
    no_sync,
    rank_zero_only,
    rows_at_once,
)
from manual_dp.school.tools.plain import numbers, tensor

# what torch imports when it is first used: two seconds in every job
IMPORTS = ["torch._dynamo"]
# what the notebook's first cell defines
START = dict(torch=torch, F=F, dist=dist, DDP=DDP, DataLoader=DataLoader,
             DistributedSampler=DistributedSampler, nullcontext=nullcontext)

__all__ = ["START", "rebinding", "aliasing", "hook", "set_epoch", "mean_of_means",
           "stale_gradients", "double_averaging", "no_sync", "rank_zero_only",
           "adam_hides"]


def rebinding(case, clue_1, repaired_1):
    """Keep hold of the tensors; look at them afterwards, then write into each."""
    said = clues(case, clue_1)
    kept = [tensor(lists) for lists in case["tensors"]]
    handed = list(kept)
    repaired_1(handed)
    result = {"clues": said, "tensors": numbers(kept), "list": numbers(handed)}
    for rank, t in enumerate(kept):
        t += 10 ** (rank + 1)
    return {**result, "written": numbers(kept)}


def aliasing(case, clue_2, repaired_2):
    """Let each replica have a gradient of its own; then write into each."""
    said = clues(case, clue_2)
    source = [tensor(p).requires_grad_(case["trained"]) for p in case["params"]]
    replicas = [repaired_2(source, device)
                for device in try_devices(len(case["pulls"]))]
    made = numbers(replicas)
    for params, pulls in zip(replicas, case["pulls"]):
        for p, pull in zip(params, pulls):
            if p.requires_grad:
                (p * tensor(pull).to(p.device)).sum().backward()
    grads = [[numbers(p.grad) if p.is_leaf else None for p in params]
             for params in replicas]
    for rank, params in enumerate(replicas):
        for p in params:
            p.detach().add_(10 ** (rank + 1))
    return {"clues": said, "made": made, "grads": grads, "written": numbers(replicas),
            "source": numbers(source)}


def set_epoch(case, clue_4, repaired_4):
    """Note the rows that every rank takes a step on, epoch by epoch."""
    said, seen = clues(case, clue_4), []
    for rank in range(case["world_size"]):
        epochs = [[] for _ in range(case["epochs"])]

        def step(epoch, batch, epochs=epochs):
            epochs[epoch] += numbers(batch)
        repaired_4(case["dataset"], rank, case["world_size"], case["epochs"], step)
        seen.append(epochs)
    return {"clues": said, "seen": seen}


def mean_of_means(case, clue_5, repaired_5):
    """Ask for the gradient over all shards."""
    said = clues(case, clue_5)
    X, y, W = tensor(case["X"]), tensor(case["y"], torch.int64), tensor(case["W"])
    grad = repaired_5(X.split(case["sizes"]), y.split(case["sizes"]),
                      W.requires_grad_())
    return {"clues": said, "grad": numbers(grad)}


def stale_gradients(case, clue_6, repaired_6):
    """Train a linear model on microbatches with SGD; return what became of it."""
    said, model = clues(case, clue_6), linear(case["params"])
    optimizer = torch.optim.SGD(model.parameters(), case["lr"])
    rows = rows_at_once(model)
    repaired_6(model, optimizer, batches(case["batches"]), case["accumulate"])
    return {"clues": said, "params": numbers(list(model.parameters())), "rows": rows}


def adam_hides(case, clue_10, repaired_10):
    """Take steps with SGD, not Adam; return the model after each."""
    said, model = clues(case, clue_10), linear(case["params"])
    optimizer = torch.optim.SGD(model.parameters(), case["lr"])
    params = []
    for shards in case["steps"]:
        repaired_10(model, optimizer, *zip(*batches(shards)))
        params.append(numbers(list(model.parameters())))
    return {"clues": said, "params": params}
