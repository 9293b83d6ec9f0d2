"""How answers to problem set 3 are run: plans, rates, rows, a test on all devices."""

import operator
import random
from contextlib import ExitStack

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet
from manual_dp.school.tools.afresh import Afresh
from manual_dp.school.tools.images import images, rows_seen, together, watched
from manual_dp.school.tools.plain import numbers, tensor

# what torch imports when images go through weights that have no numbers: two seconds
IMPORTS = ["torch._dynamo"]
# what the notebook's first cell defines, less the course's own answers
START = dict(torch=torch, DistributedSampler=DistributedSampler,
             try_devices=try_devices, init_params=init_params, lenet=lenet)
# and what else it imports, for trying things out
TRIED = ("check", "get_params", "largest_difference", "load_data",
         "train_batch")


def plan(case, plan):
    """Ask for the plan of one case."""
    return plan(case["examples"], case["batch_size"], case["world_size"], case["lr"],
                case["keep"])


def learning_rate(case, learning_rate):
    """Ask for the rate at some steps; a division by zero is an answer too."""
    def rate(step):
        try:
            return learning_rate(step, case["base_lr"], case["world_size"],
                                 case["warmup_steps"])
        except ZeroDivisionError:
            return "ZeroDivisionError"
    return [rate(step) for step in case["steps"]]


def shard_indices(case, shard_indices):
    """Ask every rank for its rows, in some epochs; then what random draws come next.

    The shared generators are in another state at each call, as they are on ranks, and
    nothing is remembered.
    """
    epochs, ranks, after = case["epochs"], range(case["world_size"]), []
    answer = Afresh(shard_indices)

    def ask(rank, seed, epoch):
        torch.manual_seed(case["noise"] + len(after))
        random.seed(case["noise"] + len(after))
        np.random.seed(case["noise"] + len(after))
        rows = _rows(answer(case["n"], case["world_size"], rank, seed, epoch))
        after.append([float(torch.rand((), dtype=torch.float64)), random.random(),
                      np.random.random()])
        return rows
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        shards = [[ask(rank, case["seed"], epoch) for rank in ranks]
                  for epoch in epochs]
        again = [ask(rank, case["seed"], epochs[0]) for rank in reversed(ranks)]
        other = [[ask(rank, case["seed"] + 1, epoch) for rank in ranks]
                 for epoch in epochs]
    return {"shards": shards, "again": again[::-1], "other seed": other, "after": after,
            "hashed": answer.hashed}


def _rows(value):
    rows = numbers(value)
    try:
        return [operator.index(row) for row in rows]
    except TypeError:
        return repr(rows)[:60]


def evaluate_accuracy(case, evaluate_accuracy):
    """Ask for the accuracy; see which rows went through which replica's lenet."""
    devices, params = try_devices(case["world_size"]), network(case["seed"])
    replicas = [[p.to(device, copy=True).requires_grad_() for p in params]
                for device in devices]
    data = [(images(seed, len(y))[0], tensor(y, torch.int64))
            for seed, y in case["data"]]
    X = torch.cat([X for X, _ in data])
    with watched() as calls:
        accuracy = evaluate_accuracy(replicas, iter(data), devices)

    def work(X, y, replicas, devices):
        evaluate_accuracy(replicas, iter([(X, y)]), devices)
    return {"accuracy": accuracy, "seen": rows_seen(calls, replicas, X),
            "together": together(work, params)}


def network(seed):
    """Draw weights with which images of noise are taken for all sorts of digits."""
    params = init_params("he", torch.Generator().manual_seed(seed), torch.float64)
    params[-1] = -lenet(images(seed + 1, 20)[0], params).mean(dim=0)
    return params
