"""The chart of problem set 5: nine numbers of a patient, whatever is wrong with it.

    chart      print them, healthy and at two sizes
    measure    return them, at one size

A patient trains twice, each with its own program. One step on a few rows, with a tiny
learning rate, tells what each row has contributed; three epochs on the digits tell the
accuracy. The model is linear: W of shape (features, classes), from zeros. A job is
(batches, lr); a batch is a list of shards, a shard is rows and labels.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_pre_hook

from manual_dp.data import load_data
from manual_dp.params import get_params
from manual_dp.ranks import run_ranks
from manual_dp.school.ps5.judge import PATIENTS, ROWS
from manual_dp.school.ps5.roll import Roll

TINY, LR, EPOCHS, BATCH, USED = 1e-6, 2, 3, 48, 1392


def chart(patient, program, sizes=(2, 4)):
    """Print the chart of patient number `patient`: a program, broken or repaired.

    sizes: what k is to be: ranks, or for patients 6 and 8 microbatches.
    """
    healthy = measure(5, _alone, 1)  # one device
    if patient == 10:  # it trains with Adam, even where it is healthy
        healthy["accuracy"] = measure(10, program, 1)["accuracy"]
    columns = [healthy, *(measure(patient, program, k) for k in sizes)]
    heads = ["healthy", *(f"k = {k}" for k in sizes)]
    print(f"{'':57}" + "".join(f"{head:>9}" for head in heads))
    for row, words in ROWS.items():
        form = "9.1%" if row == "accuracy" else "9.4g"
        print(f"{row:10}{words:47}" + "".join(f"{c[row]:{form}}" for c in columns))


def measure(patient, program, k):
    """Return {row: number} of patient number `patient`, a program, at k."""
    name = PATIENTS[patient - 1]
    X, y, X_test, y_test = _digits()
    parts = 2 * k if name == "no_sync" else k  # 2 ranks with k microbatches each
    rows = torch.arange(10 if name == "mean_of_means" else 3 * parts)
    first = rows.split(-(-len(rows) // parts))
    epochs = _deal(name, program, len(X), parts)
    steps = [step for epoch in epochs for step in epoch]
    one, long = _train(name, program, k, [
        ([[(X[part], y[part]) for part in step] for step in batches], lr)
        for batches, lr in (([first], TINY), (steps, LR))])
    own = _row_gradients(X[rows], y[rows])
    counts, moved = _counts(one["handed"], own), _counts(-one["replicas"][0], own)
    usual = TINY
    if name == "adam_hides":  # Adam's step is as long as Adam likes
        alone, = _train(name, program, 1, [([[(X[rows], y[rows])]], TINY)])
        usual = _counts(-alone["replicas"][0], own).sum()
    orders = [[row for step in epoch for part in step for row in part.tolist()]
              for epoch in epochs]
    right = (X_test @ long["replicas"][0]).argmax(1) == y_test
    numbers = {"replicas": _different(one["replicas"]), "gradient": counts.sum(),
               "step": moved.sum() / usual, "messages": one["messages"],
               "weight": counts[first[-1]].mean() / counts[first[0]].mean(),
               "absent": one["absent"], "orders": len(set(map(tuple, orders))),
               "lost": max(len(X) - len(set(order)) for order in orders),
               "accuracy": right.double().mean()}
    return {row: round(float(number), 4) + 0.0 for row, number in numbers.items()}


def _alone(X_shards, y_shards, W):
    loss = F.cross_entropy(X_shards[0] @ W, y_shards[0])
    return torch.autograd.grad(loss, W)[0]


def _digits():
    """Return the digits as rows of 49 numbers: X, y, X_test, y_test."""
    return [part for data in load_data("digits", dtype=torch.float64) for part in
            (F.avg_pool2d(data.X[:USED], 4).flatten(1), data.y[:USED])]


def _row_gradients(X, y):
    """Return the gradient of each row's loss at weights of zero, as a column."""
    errors = 0.1 - F.one_hot(y, 10)  # softmax of ten zeros
    return torch.einsum("np,nc->pcn", X, errors).flatten(0, 1)


def _counts(change, own):
    """Return how often `change` holds each row's own gradient."""
    return torch.linalg.lstsq(own, change.reshape(-1, 1)).solution[:, 0]


def _different(replicas):
    """Return how many of the replicas are not equal to one before them, to 1e-12."""
    return sum(all((replica - other).abs().max() > 1e-12 for other in replicas[:i])
               for i, replica in enumerate(replicas))


def _train(name, program, k, jobs):
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


def _deal(name, program, rows, parts):
    """Return [epoch][step][part], each the numbers of the rows in it."""
    if name != "set_epoch":
        orders = [torch.randperm(rows, generator=torch.Generator().manual_seed(epoch))
                  for epoch in range(EPOCHS)]
        return [[batch.tensor_split(parts) for batch in order.split(BATCH)]
                for order in orders]
    seen = [[[] for _ in range(EPOCHS)] for _ in range(parts)]
    for rank in range(parts):
        program(range(rows), rank, parts, EPOCHS,
                lambda epoch, batch, mine=seen[rank]: mine[epoch].append(batch))
    return [list(zip(*epoch)) for epoch in zip(*seen)]


def _one_model(steps, program, batches, lr):
    """Let `steps` train a model; return W, and the gradient last stepped with."""
    model = nn.Linear(49, 10, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    handed = model.weight.detach().clone()

    def note(optimizer, *_):
        handed.copy_(optimizer.param_groups[0]["params"][0].grad)
    handle = register_optimizer_step_pre_hook(note)  # also of one that a program makes
    try:
        steps(model, torch.optim.SGD(model.parameters(), lr), program, batches)
    finally:
        handle.remove()
    return {"replicas": [model.weight.detach().t()], "handed": handed.t()}


def _by_hand(name, program, batches, lr):
    copy = program if name == "aliasing" else get_params
    allreduce = program if name == "rebinding" else _star
    start = torch.zeros(49, 10, dtype=torch.float64)
    replicas = [copy([start], start.device)[0] for _ in batches[0]]
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


def _star(grads):
    # not ours, which refuses ranks that share memory
    for grad in grads[1:]:
        grads[0] += grad
    for grad in grads[1:]:
        grad.copy_(grads[0])


def _means(model, optimizer, program, batches):
    W = model.weight.detach().t().requires_grad_()
    for shards in batches:
        model.weight.grad = program(*zip(*shards), W).t()
        optimizer.step()


def _accumulating(model, optimizer, program, batches):
    program(model, optimizer, sum(batches, []), len(batches[0]))


def _adam(model, optimizer, program, batches):
    optimizer = torch.optim.Adam(model.parameters(), optimizer.defaults["lr"] * 0.015)
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


def _hooked(model, optimizer, program, batches):
    program(model)
    for shards in batches:
        X, y = shards[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return X, y


def _averaged(model, optimizer, program, batches):
    program(model, [shards[dist.get_rank()] for shards in batches],
            optimizer.defaults["lr"])


def _accumulated(model, optimizer, program, batches):
    model = DDP(model)
    for shards in batches:
        program(model, optimizer, shards[dist.get_rank()::dist.get_world_size()])


def _evaluated(model, optimizer, program, batches):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    model.weight.register_post_accumulate_grad_hook(average)
    program(model, *_hooked(model, optimizer, lambda model: None, batches))


IN_RANKS = {"hook": _hooked, "double_averaging": _averaged, "no_sync": _accumulated,
            "rank_zero_only": _evaluated}
