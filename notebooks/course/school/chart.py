"""The chart of problem set 5: seven numbers of a patient, whatever is wrong with it.

    chart, measure    print them, healthy and at two sizes; return them, at one size

A patient trains a linear model twice: one tiny step tells what each row has given to
it, three epochs tell the accuracy. A job is (batches, lr); a batch is a list of shards.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from course.school.ranks import Roll
from manual_dp.data import load_data
from manual_dp.params import get_params
from manual_dp.ranks import run_ranks

ROWS = {
    "replicas": "different replicas after a step",
    "step": "shares of all rows in rank 0's step, summed",
    "weight": "share of a row: last shard's / first's",
    "messages": "rank 0's all-reduces of a gradient a step",
    "absent": "ranks that rank 0 waits for in vain",
    "orders": "different orders of all rows in 3 epochs",
    "accuracy": "rank 0's, on the test set",
}
TINY, LR, EPOCHS, BATCH, USED = 1e-6, 2, 3, 48, 1392


def chart(patient, program, sizes=(2, 4)):
    """Print the chart of patient number `patient`, a program, with k in `sizes`."""
    columns = {
        "healthy": measure(1, _star, 1),  # one device
        **{f"k = {k}": measure(patient, program, k) for k in sizes},
    }
    print(f"{'':54}" + "".join(f"{head:>8}" for head in columns))
    for row, words in ROWS.items():
        form = "8.1%" if row == "accuracy" else "8.4g"
        print(
            f"{row:9}{words:45}"
            + "".join(f"{column[row]:{form}}" for column in columns.values())
        )


def measure(patient, program, k):
    """Return {row: number} of patient number `patient`, a program, at k."""
    X, y, X_test, y_test = _digits()
    parts = 2 * k if patient == 8 else k  # 2 ranks with k microbatches each
    rows = torch.arange(3 * parts)
    first, epochs = rows.split(3), _deal(patient, program, len(X), parts)

    def of_rows(steps):
        batches = []
        for step in steps:
            batches.append([(X[part], y[part]) for part in step])
        return batches

    jobs = (of_rows([first]), TINY), (of_rows(sum(epochs, [])), LR)
    one, long = _train(patient, program, k, jobs)
    shares = _shares(one["replicas"][0], X[rows], y[rows])
    orders = {tuple(torch.cat(sum(map(list, epoch), [])).tolist()) for epoch in epochs}
    right = (X_test @ long["replicas"][0]).argmax(1) == y_test
    values = {
        "replicas": _different(one["replicas"]),
        "step": shares.sum(),
        "weight": shares[first[-1]].mean() / shares[first[0]].mean(),
        "messages": one["messages"],
        "absent": one["absent"],
        "orders": len(orders),
        "accuracy": right.double().mean(),
    }
    return {row: round(float(value), 4) + 0.0 for row, value in values.items()}


def _digits():
    """Return the digits as rows of 49 numbers: X, y, X_test, y_test."""
    return [
        part
        for data in load_data("digits", dtype=torch.float64)
        for part in (F.avg_pool2d(data.X[:USED], 4).flatten(1), data.y[:USED])
    ]


def _shares(W, X, y):
    """Return how often a step from 0 to W holds each row's own gradient."""
    errors = 0.1 - F.one_hot(y, 10)  # softmax of ten zeros
    own = torch.einsum("np,nc->pcn", X, errors).flatten(0, 1)
    return torch.linalg.lstsq(own, W.reshape(-1, 1) / -TINY).solution[:, 0]


def _different(replicas):
    """Return how many of the replicas are not equal to one before them, to 1e-12."""
    count = 0
    for i, replica in enumerate(replicas):
        if all((replica - other).abs().max() > 1e-12 for other in replicas[:i]):
            count += 1
    return count


def _train(patient, program, k, jobs):
    """Train a patient with each of `jobs`; return for each what rank 0 has seen."""
    if patient not in IN_RANKS:
        run = _accumulating if patient == 6 else partial(_by_hand, patient)
        return [
            {"replicas": run(program, *job), "messages": 1, "absent": 0} for job in jobs
        ]
    ranks = run_ranks(
        partial(_rank, IN_RANKS[patient], program, jobs), 2 if patient == 8 else k
    )
    seen = []
    for results in zip(*ranks):
        replicas = [one["replicas"][0] for one in results]
        seen.append({**results[0], "replicas": replicas})
    return seen


def _deal(patient, program, rows, parts):
    """Return [epoch][step][part], each the numbers of the rows in it."""
    if patient != 4:
        epochs = []
        for epoch in range(EPOCHS):
            generator = torch.Generator().manual_seed(epoch)
            batches = torch.randperm(rows, generator=generator).split(BATCH)
            epochs.append([batch.tensor_split(parts) for batch in batches])
        return epochs
    seen = [[[] for _ in range(EPOCHS)] for _ in range(parts)]
    for rank in range(parts):
        program(range(rows), rank, parts, EPOCHS, partial(_note_batch, seen[rank]))
    return [list(zip(*epoch)) for epoch in zip(*seen)]


def _note_batch(seen, epoch, batch):
    """Stand for a step of one rank: note on which rows it is taken."""
    seen[epoch].append(batch)


def _model(lr):
    model = nn.Linear(49, 10, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr)


def _accumulating(program, batches, lr):
    model, optimizer = _model(lr)
    program(model, optimizer, sum(batches, []), len(batches[0]))
    return [model.weight.detach().t()]


def _by_hand(patient, program, batches, lr):
    copy = program if patient == 2 else get_params
    allreduce = program if patient == 1 else _star
    start = torch.zeros(49, 10, dtype=torch.float64)
    replicas = [copy([start], start.device)[0] for _ in batches[0]]
    for shards in batches:
        for (X, y), W in zip(shards, replicas):
            (
                F.cross_entropy(X @ W, y, reduction="sum")
                / sum(len(y) for _, y in shards)
            ).backward()
        allreduce([W.grad for W in replicas])
        for W in replicas:
            W.data -= lr * W.grad
            W.grad.zero_()
    return [W.detach() for W in replicas]


def _star(grads):
    for grad in grads[1:]:  # the course's own refuses ranks that share memory
        grads[0] += grad
    for grad in grads[1:]:
        grad.copy_(grads[0])


def _rank(steps, program, jobs):
    results = []
    with Roll() as roll:
        for batches, lr in jobs:
            model, optimizer = _model(lr)
            roll.call(steps, model, optimizer, program, batches)
            results.append(
                {
                    "replicas": [model.weight.detach().t()],
                    "messages": roll.sizes().count(490) / len(batches),
                    "absent": roll.absent,
                }
            )
    return results


def _hooked(model, optimizer, program, batches):
    program(model)
    _steps(model, optimizer, batches)


def _steps(model, optimizer, batches):
    for shards in batches:
        X, y = shards[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()


def _averaged(model, optimizer, program, batches):
    program(
        model, [shards[dist.get_rank()] for shards in batches], optimizer.defaults["lr"]
    )


def _accumulated(model, optimizer, program, batches):
    model = DDP(model)
    for shards in batches:
        program(model, optimizer, shards[dist.get_rank() :: dist.get_world_size()])


def _evaluated(model, optimizer, program, batches):
    _steps(DDP(model), optimizer, batches)
    program(model, *batches[-1][dist.get_rank()])


IN_RANKS = {3: _hooked, 7: _averaged, 8: _accumulated, 9: _evaluated}
