"""How the answers of problem set 4 are run: DDP by hand, on real ranks."""

import re
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from manual_dp.ranks import RankError
from manual_dp.school.ps4.network import gradients, network, row_loss, state
from manual_dp.school.tools.plain import tensor
from manual_dp.school.tools.ranks import on_ranks, watched

# what torch imports when it is first used: two seconds in every job
IMPORTS = ["torch._dynamo"]
# what the notebook's first cell defines
START = dict(torch=torch, dist=dist, nn=nn, F=F, contextmanager=contextmanager,
             nullcontext=nullcontext)

SECONDS = 6  # that all ranks have: plenty, unless they wait for one another


def start_equal(case, start_equal):
    """Let ranks that begin differently start equal; each then trains on all rows."""
    return _launch(case, partial(_train, case, _called_on(start_equal), _itself))


def average_gradients(case, average_gradients):
    """Train on every rank's own rows; average after each backward."""
    return _launch(case, partial(_train, case, _itself, average_gradients))


def average_in_buckets(case, average_in_buckets):
    """Train as above, with another size of bucket in each step."""
    return _launch(case, partial(_train, case, _itself, average_in_buckets))


def average_in_hooks(case, average_in_hooks):
    """Train as above; only before the first step is the answer called."""
    return _launch(case, partial(_train, case, _called_on(average_in_hooks), _itself))


def DDP(case, DDP):
    """Wrap differing modules; train with several backwards to a step."""
    return _launch(case, partial(_train, case, DDP, _itself))


def _launch(case, work):
    """Return every rank's result, or what kept the ranks from having one."""
    try:
        return {"ranks": on_ranks(work, case["world_size"], SECONDS)}
    except RankError as error:
        return {"error": str(error), "kind": error.kind,
                "place": _place(getattr(error, "details", ""))}


def _place(traceback):
    """Return the line of the learner's code at which a rank's traceback ends."""
    frames = [(line, name) for path, line, name in
              re.findall(r'File "(.*)", line (\d+), in (\w+)', str(traceback))
              if not re.search("manual_dp|site-packages|torch", path)]
    return f" (in {frames[-1][1]}, line {frames[-1][0]} of its cell)" if frames else ""


def _train(case, wrap, after):
    """Train what `wrap` returns; after a step's last backward call `after`."""
    rank, world_size, steps = dist.get_rank(), case["world_size"], []
    module = network(case["seeds"][rank], case["spare"])
    params = list(module.parameters())
    model = wrap(module)
    start = state(module)
    for step in case["steps"]:
        *alone, last = step["shards"][rank]
        kept = []
        with watched() as quiet:
            if alone:
                with model.no_sync():
                    for X, y in alone:
                        _loss(model, X, y, step, world_size).backward()
                        kept.append(gradients(module))
            if "interrupted" in step:
                with suppress(InterruptedError), model.no_sync():
                    raise InterruptedError  # what ends a block half-way
        loss = _loss(model, *last, step, world_size)
        with watched() as seen:
            loss.backward()
            after(module, *step.get("arguments", []))
        _sgd(params, case["lr"])
        steps.append({"alone": kept, "quiet": _sent(quiet), "messages": _sent(seen),
                      "weights": state(module)})
    return {"start": start, "steps": steps}


def _sent(calls):
    return [call for call in calls if call != "barrier"]  # which sends no numbers


def _loss(model, X, y, step, world_size):
    return row_loss(model, tensor(X), tensor(y), step["rows"], world_size)


@torch.no_grad()
def _sgd(params, lr):
    # torch's own would first import its compiler, in each rank that is forked anew
    for p in params:
        if p.grad is not None:
            p -= lr * p.grad
            p.grad = None


def _called_on(answer):
    def wrap(module):
        answer(module)
        return module
    return wrap


def _itself(module):
    return module
