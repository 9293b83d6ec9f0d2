"""How the patients of problem set 5 are trained, each with its own program.

    train   return a patient's weights, and what was seen on the way
    deal    the rows of every shard of every step of every epoch

The model is linear: W of shape (features, classes), from zeros. A job is (batches, lr);
a batch is a list of shards, a shard is rows and labels.
"""

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
    if name not in IN_RANKS:
        run = HERE.get(name, partial(_by_hand, name))
        return [{**run(program, *job), "messages": 1, "absent": 0} for job in jobs]
    ranks = run_ranks(partial(_rank, IN_RANKS[name], program, jobs),
                      2 if name == "no_sync" else k)
    return [{**results[0], "replicas": [W for one in results for W in one["replicas"]]}
            for results in zip(*ranks)]


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


def _one_model(steps, *args):
    """Let `steps` train a model; return W, and the gradient last stepped with."""
    model = nn.Linear(49, 10, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    handed = model.weight.detach().clone()

    def note(optimizer, *_):
        handed.copy_(optimizer.param_groups[0]["params"][0].grad)
    handle = register_optimizer_step_pre_hook(note)
    try:
        steps(model, *args)
    finally:
        handle.remove()
    return {"replicas": [model.weight.detach().t()], "handed": handed.t()}


def _by_hand(name, program, batches, lr):
    get_params = program if name == "aliasing" else _copies
    allreduce = program if name == "rebinding" else _star
    start = torch.zeros(49, 10, dtype=torch.float64)
    replicas = [get_params([start], start.device)[0] for _ in batches[0]]
    for shards in batches:
        for (X, y), W in zip(shards, replicas):
            (F.cross_entropy(X @ W, y, reduction="sum")
             / sum(len(y) for _, y in shards)).backward()
        allreduce([W.grad for W in replicas])
        handed = replicas[0].grad.clone()
        for W in replicas:
            W.data -= lr * W.grad
            W.grad.zero_()
    return {"replicas": [W.detach() for W in replicas], "handed": handed}


def _copies(params, device):
    return [p.clone().requires_grad_() for p in params]


def _star(grads):
    # not ours, which refuses ranks that share memory
    for grad in grads[1:]:
        grads[0] += grad
    for grad in grads[1:]:
        grad.copy_(grads[0])


def _means(model, program, batches, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    W = model.weight.detach().t().requires_grad_()
    for shards in batches:
        model.weight.grad = program(*zip(*shards), W).t()
        optimizer.step()


def _accumulating(model, program, batches, lr):
    program(model, torch.optim.SGD(model.parameters(), lr), sum(batches, []),
            len(batches[0]))


def _adam(model, program, batches, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr * 0.015)
    for shards in batches:
        program(model, optimizer, *zip(*shards))


HERE = {"mean_of_means": partial(_one_model, _means),
        "stale_gradients": partial(_one_model, _accumulating),
        "adam_hides": partial(_one_model, _adam)}


def _rank(steps, program, jobs):
    """Train in a rank; return a dict for each of `jobs`."""
    with Roll() as roll:
        return [{**_one_model(partial(roll.call, steps), program, *job),
                 "messages": roll.sizes().count(490) / len(job[0]),
                 "absent": roll.absent} for job in jobs]


def _hooked(model, program, batches, lr):
    program(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for shards in batches:
        X, y = shards[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return X, y


def _averaged(model, program, batches, lr):
    program(model, [shards[dist.get_rank()] for shards in batches], lr)


def _accumulated(model, program, batches, lr):
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for shards in batches:
        program(model, optimizer, shards[dist.get_rank()::dist.get_world_size()])


def _evaluated(model, program, batches, lr):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    model.weight.register_post_accumulate_grad_hook(average)
    program(model, *_hooked(model, lambda model: None, batches, lr))


IN_RANKS = {"hook": _hooked, "double_averaging": _averaged, "no_sync": _accumulated,
            "rank_zero_only": _evaluated}
