"""The charts of exercise 7.5: how much of each row is in each rank's step.

    CAUSES    {name: function of k, n and the shards}; "healthy" is right
    WORDS     what each cause is, in words
    chart     the chart of a cause

A chart has two steps on the same n rows. `steps[t][rank][row]` is n times what the row
counts in that rank's step: 1 where all is well. Shards have ceil(n / k) rows, the last
one fewer, and at least one.
"""

from functools import partial

WORDS = {
    "healthy": "healthy",
    "mean of means": "the shards' means, averaged",
    "sum of means": "the shards' means, added up",
    "sum of rows": "the sum over rows, never divided",
    "not synchronised": "every rank alone with the mean of its own rows",
    "rank 0 for all": "every rank has rank 0's step",
    "sum on rank 0": "rank 0 alone has the sum",
    "last rank left out": "the last rank's rows are missing in the sum",
    "rows dropped": "the rows that do not divide evenly are dropped",
    "rows repeated": "the first rows are repeated until shards are equal",
    "old gradients": "the gradients of step 1 are still there in step 2",
    "late by a step": "each step takes the gradient of the step before",
    "divided twice": "the sum is divided by the number of ranks once more",
}


def _alike(count, k, n, shards):
    """Return a chart that is the same on all ranks and in both steps."""
    row = [count(i, k, n, shards) for i in range(n)]
    return [[list(row) for _ in range(k)] for _ in range(2)]


def _size(i, shards):
    return next(len(shard) for shard in shards if i in shard)


def _by_rank(count, k, n, shards):
    """Return a chart that is the same in both steps."""
    one = [[count(rank, i, n, shards) for i in range(n)] for rank in range(k)]
    return [one, [list(row) for row in one]]


def _by_step(first, second, k, n, shards):
    return [[[count] * n for _ in range(k)] for count in (first, second)]


CAUSES = {
    "healthy": partial(_alike, lambda i, k, n, shards: 1),
    "mean of means": partial(_alike, lambda i, k, n, shards: n / k / _size(i, shards)),
    "sum of means": partial(_alike, lambda i, k, n, shards: n / _size(i, shards)),
    "sum of rows": partial(_alike, lambda i, k, n, shards: n),
    "not synchronised": partial(_by_rank, lambda rank, i, n, shards: (
        i in shards[rank]) * n / len(shards[rank])),
    "rank 0 for all": partial(_alike, lambda i, k, n, shards: (
        i in shards[0]) * n / len(shards[0])),
    "sum on rank 0": partial(_by_rank, lambda rank, i, n, shards: float(
        rank == 0 or i in shards[rank])),
    "last rank left out": partial(_alike, lambda i, k, n, shards: float(
        i not in shards[-1])),
    "rows dropped": partial(_alike, lambda i, k, n, shards: (
        i < n // k * k) * n / (n // k * k)),
    "rows repeated": partial(_alike, lambda i, k, n, shards: (
        1 + (i < -n % k)) * n / (n + -n % k)),
    "old gradients": partial(_by_step, 1, 2),
    "late by a step": partial(_by_step, 0, 1),
    "divided twice": partial(_alike, lambda i, k, n, shards: 1 / k),
}


def chart(name, k, n, noise=None):
    """Return the chart of a cause, {"k", "n", "steps"}; `noise()` is added to each."""
    size = -(-n // k)
    shards = [range(n)[rank * size:(rank + 1) * size] for rank in range(k)]
    steps = CAUSES[name](k, n, shards)
    if noise:
        steps = [[[count + noise() for count in row] for row in step] for step in steps]
    return {"k": k, "n": n, "steps": steps}
