"""How the patients of problem set 5 are trained, each with its own program.

    train   return a patient's weights, and what was seen on the way
    deal    the rows of every shard of every step of every epoch

The model is linear: W of shape (features, classes), from zeros. A job is (batches, lr);
a batch is a list of shards, a shard is rows and labels.
"""

from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_pre_hook

from manual_dp.ranks import run_ranks
from manual_dp.school.ps5.roll import Roll


def train(name, program, k, jobs):
    """Train patient `name` with each of `jobs`; return a dict for each.

    replicas: W on each rank. handed: the last gradient that rank 0 stepped with.
    messages: all-reduces of each gradient in a step. absent: ranks that were missing.
    """
    if name in IN_RANKS:
        ranks = run_ranks(partial(_rank, name, program, jobs),
                          2 if name == "no_sync" else k)
        return [{**results[0], "replicas": [result["W"] for result in results]}
                for results in zip(*ranks)]
    steps = HERE.get(name, _by_hand)
    return [dict(zip(("replicas", "handed", "messages"), steps(program, *job)),
                 absent=0) for job in jobs]


def deal(name, program, rows, parts, epochs, batch_size):
    """Return [epoch][step][part], each the numbers of the rows in it."""
    if name != "set_epoch":
        orders = [torch.randperm(rows, generator=torch.Generator().manual_seed(epoch))
                  for epoch in range(epochs)]
        return [[batch.tensor_split(parts) for batch in order.split(batch_size)]
                for order in orders]
    seen = [[[] for _ in range(epochs)] for _ in range(parts)]
    for rank in range(parts):
        program(range(rows), rank, parts, epochs,
                lambda epoch, batch, mine=seen[rank]: mine[epoch].append(batch))
    return [list(zip(*epoch)) for epoch in zip(*seen)]


def _start():
    return torch.zeros(49, 10, dtype=torch.float64)


def _model():
    model = nn.Linear(49, 10, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    return model


@contextmanager
def _noting():
    """Yield a list; while the block runs, it ends in the gradient last stepped with."""
    handed = []

    def note(optimizer, *_):
        handed[:] = [optimizer.param_groups[0]["params"][0].grad.clone().t()]
    handle = register_optimizer_step_pre_hook(note)
    try:
        yield handed
    finally:
        handle.remove()


def _by_hand(program, batches, lr, get_params=None, allreduce=None):
    start = _start()
    replicas = [(get_params or _copies)([start], start.device)[0] for _ in batches[0]]
    for shards in batches:
        for (X, y), W in zip(shards, replicas):
            (F.cross_entropy(X @ W, y, reduction="sum")
             / sum(len(y) for _, y in shards)).backward()
        (allreduce or _star)([W.grad for W in replicas])
        handed = replicas[0].grad.clone()
        for W in replicas:
            W.data -= lr * W.grad
            W.grad.zero_()
    return [W.detach() for W in replicas], handed, 1


def _copies(params, device):
    return [p.clone().requires_grad_() for p in params]


def _star(grads):
    # not ours, which refuses ranks that share memory
    for grad in grads[1:]:
        grads[0] += grad
    for grad in grads[1:]:
        grad.copy_(grads[0])


def _means(program, batches, lr):
    W = _start().requires_grad_()
    for shards in batches:
        handed = program(*zip(*shards), W)
        W.data -= lr * handed
    return [W.detach()], handed, 1


def _accumulating(program, batches, lr):
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    with _noting() as handed:
        program(model, optimizer, sum(batches, []), len(batches[0]))
    return [model.weight.detach().t()], handed[-1], 1


def _adam(program, batches, lr):
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr * 0.015)
    with _noting() as handed:
        for shards in batches:
            program(model, optimizer, *zip(*shards))
    return [model.weight.detach().t()], handed[-1], 1


HERE = {"rebinding": lambda program, *job: _by_hand(program, *job, allreduce=program),
        "aliasing": lambda program, *job: _by_hand(program, *job, get_params=program),
        "mean_of_means": _means, "stale_gradients": _accumulating, "adam_hides": _adam}


def _rank(name, program, jobs):
    """Train in a rank; return a dict for each of `jobs`."""
    results = []
    with Roll() as roll:
        for number, (batches, lr) in enumerate(jobs):
            model = _model()
            with _noting() as handed:
                if number == 0:
                    roll.call(IN_RANKS[name], program, model, batches, lr)
                elif not roll.absent or name == "rank_zero_only":
                    # all ranks come, as we know by now: no need for the roll
                    IN_RANKS[name](None if name == "rank_zero_only" else program,
                                   model, batches, lr)
            W = model.weight.detach().t()
            results.append({"W": W, "handed": handed[-1] if handed else W * 0,
                            "messages": roll.sizes().count(W.numel()) / len(batches),
                            "absent": roll.absent})
    return results


def _hooked(program, model, batches, lr):
    program(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for shards in batches:
        X, y = shards[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()


def _averaged(program, model, batches, lr):
    program(model, [shards[dist.get_rank()] for shards in batches], lr)


def _accumulated(program, model, batches, lr):
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for shards in batches:
        program(model, optimizer, shards[dist.get_rank()::dist.get_world_size()])


def _evaluated(program, model, batches, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for shards in batches:
        X, y = shards[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        dist.all_reduce(model.weight.grad)
        model.weight.grad /= dist.get_world_size()
        optimizer.step()
    if program:
        program(model, X, y)


IN_RANKS = {"hook": _hooked, "double_averaging": _averaged, "no_sync": _accumulated,
            "rank_zero_only": _evaluated}
