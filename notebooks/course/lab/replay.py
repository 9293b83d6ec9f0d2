"""Training with workers of different pace, in ticks: the same on any machine.

    together   every worker waits for the slowest, then all begin again
    alone      no worker waits for another
    idle       the part of the time in which workers wait
    replay     train in the order of `alone`: read, compute, write; count staleness
    in_rounds  train in the order of `together`: the mean of each round, written once

A worker reads the weights, computes a gradient for so many ticks, and writes: it
subtracts the gradient, times the rate, from the weights as they are by then. Where
several are due in one tick they come in the order of their numbers, and each reads
again right after its write.
"""

from collections import namedtuple

Turn = namedtuple("Turn", "worker start end")  # reads at start, writes at end


def together(paces, ticks):
    """Return the turns of workers that all wait for the slowest.

    paces: the ticks that each worker needs for a gradient. ticks: how long the clock
    runs; a round that does not fit is left out.
    """
    return [Turn(worker, start, start + pace)
            for start in range(0, ticks - max(paces) + 1, max(paces))
            for worker, pace in enumerate(paces)]


def alone(paces, ticks):
    """Return the turns of workers that never wait, in the order of their writes."""
    turns = [Turn(worker, end - pace, end) for worker, pace in enumerate(paces)
             for end in range(pace, ticks + 1, pace)]
    return sorted(turns, key=lambda turn: (turn.end, turn.worker))


def idle(turns, workers, ticks):
    """Return the part of all workers' time that is spent in no turn."""
    return 1 - sum(turn.end - turn.start for turn in turns) / (workers * ticks)


def replay(turns, gradient, weights, lr):
    """Train `weights`, a tensor, in the order of `turns`; return it and staleness.

    turns: of workers that never wait. gradient(weights, i) is that of turn i, at the
    weights that its worker has read; its result is not changed. staleness: for each
    write, how many writes of others came between its worker's read and itself.
    `weights` is left as it was.
    """
    weights, staleness = weights.clone(), []
    read = {turn.worker: (0, weights) for turn in turns}  # all read at the start
    for i, turn in enumerate(turns):
        writes, seen = read[turn.worker]
        staleness.append(i - writes)
        weights = weights - lr * gradient(seen, i)
        read[turn.worker] = i + 1, weights
    return weights, staleness


def in_rounds(turns, gradient, weights, lr):
    """Train `weights` by the mean gradient of each round; return it and staleness.

    turns: of workers that all wait. The rest is as in `replay`; no gradient is stale.
    """
    rounds = {}
    for i, turn in enumerate(turns):
        rounds.setdefault(turn.start, []).append(i)
    weights = weights.clone()
    for members in rounds.values():
        mean = sum(gradient(weights, i) for i in members) / len(members)
        weights = weights - lr * mean
    return weights, [0] * len(turns)
