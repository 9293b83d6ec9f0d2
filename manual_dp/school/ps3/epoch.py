"""Problem set 3, the shards of an epoch: every row once, shuffled anew.

    draw, judge   of the exercise shard_indices
"""

from collections import Counter
from itertools import combinations
from random import Random

import torch

from manual_dp.school.exercise import differ

MANY = 50  # rows: with fewer, two random orders may look alike by chance


def draw(random):
    """Draw as many rows as do and do not divide, and fewer than ranks."""
    many = 12 * random.randint(5, 8)
    for world_size, n in [(3, many + 2), (2, many + 3), (1, many + 1), (4, many + 2),
                          (4, many), (4, 10), (4, 3), (2, 5)]:
        yield {"n": n, "world_size": world_size, "seed": random.randint(1, 10**6),
               "epochs": [0, 1, random.randint(2, 99)],
               "noise": random.randint(1, 10**6)}


def judge(case, got):
    """Judge the shards of three epochs, of another seed, and what came after."""
    n, k, seed, epochs = (case[key] for key in ("n", "world_size", "seed", "epochs"))
    who = f"n {n}, world_size {k}, seed {seed}"
    for epoch, shards, others in zip(epochs, got["shards"], got["other seed"],
                                     strict=True):
        for word, rows in ((f"{who}, epoch {epoch}", shards),
                           (f"n {n}, world_size {k}, seed {seed + 1}, epoch {epoch}",
                            others)):
            problem = _judge_rows(word, n, k, rows)
            if problem:
                return problem
        if n > MANY and shards == others:
            return differ(f"{who} and {seed + 1}, epoch {epoch}; rank 0 begins with",
                          _first([shards[0], others[0]]),
                          "another order for another seed",
                          [("the seed is not used", got["shards"] == got["other seed"]),
                           ("seed * epoch is 0 in epoch 0, for every seed", True)])
    return (_judge_again(who, got["shards"][0], got["again"])
            or n > MANY and _judge_epochs(who, epochs, got["shards"])
            or _judge_after(who, case["noise"], got["after"]))


def _judge_rows(who, n, k, shards):
    for rank, rows in enumerate(shards):
        if not isinstance(rows, list) or any(type(row) is not int for row in rows):
            return differ(f"{who}, rank {rank}", rows, "a list of whole numbers", [
                ("nothing is returned", rows == "None"),
                ("these are fractions, which cannot index rows", True)])
    sizes, total = [len(rows) for rows in shards], sum(map(len, shards))
    problem = differ(
        f"{who}; rows of the ranks, largest first", sorted(sizes, reverse=True),
        sorted([len(range(rank, n, k)) for rank in range(k)], reverse=True),
        [("every rank takes all rows", k > 1 and [n] * k),
         ("no rank has any row", total == 0),
         ("rows are repeated so that all ranks have as many: torch's sampler does "
          "that, and a test with it counts them twice", total > n),
         ("n // world_size rows a rank loses the rest", [n // k] * k),
         ("sizes may differ by one: deal the rows out like cards", total == n)])
    counts = Counter(row for rows in shards for row in rows)
    strange = [row for row in counts if row not in range(n)]
    return problem or differ(
        f"{who}; over all ranks",
        {"more than once": [row for row in counts if counts[row] > 1],
         "never": [row for row in range(n) if row not in counts],
         "no row": strange},
        {"more than once": [], "never": [], "no row": []},
        [("rows are numbered from 0 to n - 1", bool(strange)),
         ("rows are drawn one by one, with repeats: draw a permutation",
          any(len(set(rows)) < len(rows) for rows in shards)),
         ("ranks shuffle differently: the permutation must come from seed and epoch "
          "alone, not from the rank, nor from torch's shared generator", True)]
    ) or _judge_order(who, n, k, shards)


def _first(shards):
    return [rows[:8] for rows in shards]


def _judge_order(who, n, k, shards):
    if n <= MANY:
        return None
    rising = sum(a < b for rows in shards for a, b in zip(rows, rows[1:]))
    if 0.2 <= rising / (n - k) <= 0.8:  # half, in a random order
        return None
    return differ(f"{who}; rank 0 begins with", shards[0][:8], "a random order",
                  [("the rows are in order: shuffle, and do not sort", True)])


def _judge_again(who, first, again):
    if again == first:
        return None
    return differ(f"{who}, epoch 0, asked for a second time; the ranks begin with",
                  _first(again), f"as the first time, {_first(first)}")


def _judge_epochs(who, epochs, shards):
    for (old, before), (new, now) in combinations(zip(epochs, shards), 2):
        both = f"{who}, epochs {old} and {new}; rank 0 begins with"
        shown = _first([before[0], now[0]])
        if now == before:
            return differ(both, shown, "another order in another epoch",
                          [("epoch is not used: this is a sampler without "
                            "set_epoch", True)])
        pairs = [{frozenset(two) for rows in part for two in zip(rows, rows[1:])}
                 for part in (before, now)]
        if len(pairs[0] & pairs[1]) > len(pairs[0]) / 3:
            return differ(both, shown, "an order shuffled anew in another epoch",
                          [("the old order is turned or moved, not shuffled", True)])
        sets = [set(map(frozenset, part)) for part in (before, now)]
        if len(now) > 1 and sets[0] & sets[1]:
            return differ(both, shown, "other rows in another epoch",
                          [("rows stay together: first shuffle all rows, then deal "
                            "them out", True)])
    return None


def _judge_after(who, noise, after):
    # a generator of the same seed goes on as the shared one would have, untouched
    seeds = range(noise, noise + len(after))
    torchs = [float(torch.rand((), dtype=torch.float64,
                               generator=torch.Generator().manual_seed(seed)))
              for seed in seeds]
    return (differ(f"{who}; torch's next random numbers, after each call",
                   [numbers[0] for numbers in after], torchs,
                   [("torch.manual_seed, and randperm without a generator, change "
                     "what everybody else draws: make a torch.Generator of your own",
                     True)])
            or differ(f"{who}; Python's next random numbers, after each call",
                      [numbers[1] for numbers in after],
                      [Random(seed).random() for seed in seeds],
                      [("random.seed changes what everybody else draws: make a "
                        "random.Random of your own", True)]))
