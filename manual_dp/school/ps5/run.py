"""How the answers of problem set 5 are run: ten clues, ten repaired programs.

Six of the programs run right here, where ranks are lists; four run on ranks.
"""

import weakref
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from manual_dp.devices import try_devices
from manual_dp.school.ps5.roll import Roll
from manual_dp.school.tools.devices import META, homes
from manual_dp.school.tools.optimizers import optimizer as optimizer_of
from manual_dp.school.tools.plain import batches, memory, numbers, params_of, tensor
from manual_dp.school.tools.ranks import on_ranks

# what torch imports when it is first used: two seconds in every job
IMPORTS = ["torch._dynamo"]
# what the notebook's first cell defines
START = dict(torch=torch, F=F, dist=dist, DDP=DDP, DataLoader=DataLoader,
             DistributedSampler=DistributedSampler, nullcontext=nullcontext)
# and what else it imports, for trying things out
TRIED = ("chart", "check", "measure")

SECONDS = 40  # that a whole launch has
KS = [2, 4, 3, 5, 1]  # for which a clue is asked


def rebinding(case, clue_1, repaired_1):
    """Keep hold of the tensors; look at them afterwards, then write into each."""
    kept = [tensor(lists) for lists in case["tensors"]]
    handed, places = list(kept), memory(kept)
    repaired_1(handed)
    result = {"tensors": numbers(kept), "list": numbers(handed),
              "memory": numbers(places)}
    for rank, t in enumerate(kept):
        t += 10 ** (rank + 1)
    return {**result, "written": kept, "clues": _clues(clue_1)}


def aliasing(case, clue_2, repaired_2):
    """Let each replica have a gradient of its own; then write into each."""
    source = params_of(case)
    replicas = [repaired_2(source, device)
                for device in try_devices(len(case["pulls"]))]
    made = numbers(replicas)
    for params, pulls in zip(replicas, case["pulls"]):
        for p, pull in zip(params, pulls):
            if p.requires_grad:
                (p * tensor(pull).to(p.device)).sum().backward()
    grads = [[p.grad if p.is_leaf else None for p in params] for params in replicas]
    for rank, params in enumerate(replicas):
        for p in params:
            p.detach().add_(10 ** (rank + 1))
    return {"clues": _clues(clue_2), "made": made, "grads": grads,
            "written": replicas, "source": source,
            "source's gradients": [p.grad for p in source],
            "source wants gradients": [p.requires_grad for p in source],
            "homes": homes(repaired_2, params_of(case), META)}


def hook(case, clue_3, repaired_3):
    """Look at the gradients after a backward, and after a second one on top."""
    def work(problem, rank):
        model = nn.Sequential(_linear(problem["params"][:2]), nn.Tanh(),
                              _linear(problem["params"][2:]))
        model[0].bias.requires_grad_(False)
        repaired_3(model)
        grads = []
        for X, y in batches(problem["batches"][rank]):
            F.cross_entropy(model(X), y).backward()
            grads.append(numbers([p.grad for p in model.parameters()]))
        return {"grads": grads, "params": list(model.parameters())}
    return _on_ranks(case, clue_3, work)


def set_epoch(case, clue_4, repaired_4):
    """Note the rows that every rank takes a step on, epoch by epoch."""
    seen = [[[] for _ in range(case["epochs"])] for _ in range(case["world_size"])]
    for rank, epochs in enumerate(seen):
        def step(epoch, batch, epochs=epochs):
            epochs[epoch] += numbers(batch)
        repaired_4(case["dataset"], rank, case["world_size"], case["epochs"], step)
    return {"clues": _clues(clue_4), "seen": seen}


def mean_of_means(case, clue_5, repaired_5):
    """Ask for the gradient over all shards, twice at the same weights."""
    W = tensor(case["W"]).requires_grad_()
    grad, again = (numbers(repaired_5(*_shards(case), W)) for _ in range(2))
    return {"clues": _clues(clue_5), "grad": grad, "again": again}


def stale_gradients(case, clue_6, repaired_6):
    """Train a linear model on microbatches with SGD; return what became of it."""
    model = _linear(case["params"])
    optimizer, rows = _optimizer(model, case), _rows_at_once(model)
    repaired_6(model, optimizer, batches(case["batches"]), case["accumulate"])
    return {"clues": _clues(clue_6), "params": list(model.parameters()),
            "rows": rows}


def double_averaging(case, clue_7, repaired_7):
    """Train a model that each rank has drawn for itself."""
    def work(problem, rank):
        model = _linear(problem["params"][rank])
        repaired_7(model, batches(problem["batches"][rank]), problem["lr"])
        return {"params": list(model.parameters())}
    return _on_ranks(case, clue_7, work)


def no_sync(case, clue_8, repaired_8):
    """Take steps of several microbatches each with a model in DDP."""
    def work(problem, rank):
        model = DDP(_linear(problem["params"]))
        optimizer, rows = _optimizer(model, problem), _rows_at_once(model)
        for microbatches in problem["steps"][rank]:
            repaired_8(model, optimizer, batches(microbatches))
        return {"params": list(model.parameters()), "rows": rows}
    return _on_ranks(case, clue_8, work)


def rank_zero_only(case, clue_9, repaired_9):
    """Ask every rank for the accuracy; keep what each of them returns."""
    def work(problem, rank):
        X_shards, y_shards = _shards(problem)
        return {"accuracy": repaired_9(_linear(problem["params"]), X_shards[rank],
                                       y_shards[rank])}
    return _on_ranks(case, clue_9, work)


def adam_hides(case, clue_10, repaired_10):
    """Take steps, with SGD and others; return the model after each."""
    model, params = _linear(case["params"]), []
    optimizer = _optimizer(model, case)
    for shards in case["steps"]:
        repaired_10(model, optimizer, *zip(*batches(shards)))
        params.append(numbers(list(model.parameters())))
    return {"clues": _clues(clue_10), "params": params}


def _on_ranks(case, clue, work):
    """Return the clues, and what `work(problem, rank)` returns, [rank][problem].

    Every problem's result is a dict; it gets the entries "absent" and "sent".
    """
    def all_problems():
        with Roll() as roll:
            return [{**(roll.call(work, problem, dist.get_rank()) or {}),
                     "absent": roll.absent, "sent": sum(roll.sizes())}
                    for problem in case["problems"]]
    return {"clues": _clues(clue),
            "ranks": on_ranks(all_problems, case["world_size"], SECONDS)}


def _linear(params):
    """Return a linear model whose weight and bias hold the numbers of `params`."""
    weight, bias = map(tensor, params)
    model = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    model.load_state_dict({"weight": weight, "bias": bias})
    return model


def _optimizer(model, case):
    return optimizer_of(case["optimizer"], model.parameters(), case["lr"])


def _shards(case):
    return [part.split(case["sizes"]) for part in batches([case["batch"]])[0]]


def _rows_at_once(model):
    """Return a list; each forward of `model` adds how many rows are under way then.

    These are its own, and those of earlier forwards whose graph still waits for its
    backward.
    """
    rows, waiting = [], {}

    def note(_, args, y_hat):
        number, graph = len(rows), set()
        rows.append(len(args[0]) + sum(waiting.values()))

        def done(gradient, held=graph):
            waiting.pop(number, None)
        if y_hat.requires_grad:
            waiting[number] = len(args[0])
            y_hat.register_hook(done)  # the graph has it, and it has `held`
            weakref.finalize(graph, waiting.pop, number, None)  # let go, no backward
    model.register_forward_hook(note)
    return rows


def _clues(clue):
    """Return [row, number] for each of KS."""
    said = [clue(k) for k in KS]
    for answer in said:
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(f"a clue is two things, row and number; got {answer!r}")
    return said
