"""The chart of problem set 5: nine numbers of a patient, whatever is wrong with it.

    chart      print them, healthy and at two sizes
    measure    return them, at one size

A patient trains twice. One step on a few rows, with a tiny learning rate, tells what
each row has contributed; three epochs on the digits tell the accuracy.
"""

import torch
from torch.nn import functional as F

from manual_dp.data import load_data
from manual_dp.school.ps5.clues import PATIENTS, ROWS
from manual_dp.school.ps5.patients import deal, train

TINY, LR, EPOCHS, BATCH, USED = 1e-6, 2, 3, 48, 1392
HEALTHY = {"replicas": 1, "gradient": 1, "step": 1, "weight": 1, "messages": 1,
           "absent": 0, "orders": EPOCHS, "lost": 0}


def chart(patient, program, sizes=(2, 4)):
    """Print the chart of patient number `patient`: a program, broken or repaired.

    sizes: what k is to be: ranks, or for patients 6 and 8 microbatches.
    """
    one = measure(*((10, program) if patient == 10 else (5, _alone)), 1)  # one device
    healthy = {**HEALTHY, "accuracy": one["accuracy"]}
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
    epochs = deal(name, program, len(X), parts, EPOCHS, BATCH)
    steps = [step for epoch in epochs for step in epoch]
    one, long = train(name, program, k, [
        ([[(X[part], y[part]) for part in step] for step in batches], lr)
        for batches, lr in (([first], TINY), (steps, LR))])
    own = _row_gradients(X[rows], y[rows])
    counts, moved = _counts(one["handed"], own), _counts(-one["replicas"][0], own)
    usual = TINY
    if name == "adam_hides":  # Adam's step is as long as Adam likes
        alone, = train(name, program, 1, [([[(X[rows], y[rows])]], TINY)])
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
