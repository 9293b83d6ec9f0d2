"""Problem set 3, the shards of an epoch: every row once, shuffled anew."""

from collections import Counter
from itertools import combinations
from operator import itemgetter
from random import Random

import numpy as np
import torch

from manual_dp.school.exercise import differ, flat

HASHED = ("hash() of a text is another one in each process: Python salts it. Make a "
          "seed of whole numbers")
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
    n, k, seed, epochs = itemgetter("n", "world_size", "seed", "epochs")(case)
    sizes = f"n {n}, world_size {k}"
    who = f"{sizes}, seed {seed}"
    for epoch, shards, others in zip(epochs, got["shards"], got["other seed"],
                                     strict=True):
        for given, rows in ((who, shards), (f"{sizes}, seed {seed + 1}", others)):
            yield from _judge_rows(f"{given}, epoch {epoch}", n, k, rows, got["hashed"])
        if n > MANY and shards == others:
            yield differ(f"{who} and {seed + 1}, epoch {epoch}; rank 0 begins with",
                         _first([shards[0], others[0]]),
                         "another order for another seed",
                         [("the seed is not used", got["shards"] == got["other seed"]),
                          ("seed * epoch is 0 in epoch 0, for every seed", True)])
    if got["again"] != got["shards"][0]:
        yield differ(f"{who}, epoch 0, asked for a second time; the ranks begin with",
                     _first(got["again"]),
                     f"as the first time, {_first(got['shards'][0])}",
                    [(HASHED, got["hashed"] is True)])
    if n > MANY:
        for old, now in combinations(zip(epochs, got["shards"]), 2):
            yield from _judge_epochs(who, *old, *now)
    yield from _judge_after(who, case["noise"], got["after"])


def tally(shards, n):
    """Return which of n rows are in shards more than once, and which never."""
    counts = Counter(flat(shards))
    return {"more than once": [row for row in counts if counts[row] > 1],
            "never": [row for row in range(n) if row not in counts]}


def _judge_rows(who, n, k, shards, hashed):
    for rank, rows in enumerate(shards):
        if not isinstance(rows, list) or any(type(row) is not int for row in rows):
            yield differ(f"{who}, rank {rank}", rows, "a list of whole numbers", [
                ("nothing is returned", rows == "None"),
                ("these are fractions, which cannot index rows", True)])
    sizes, total = [len(rows) for rows in shards], sum(map(len, shards))
    yield differ(f"{who}; rows of the ranks, largest first",
                 sorted(sizes, reverse=True), [len(range(r, n, k)) for r in range(k)], [
        ("every rank takes all rows", k > 1 and [n] * k),
        ("no rank has any row", total == 0),
        ("rows are repeated so that all ranks have as many: torch's sampler does that, "
         "and a test with it counts them twice", total > n),
        ("n // world_size rows a rank loses the rest", [n // k] * k),
        ("sizes may differ by one: deal the rows out like cards", total == n)])
    strange = [row for row in flat(shards) if row not in range(n)]
    yield differ(f"{who}; over all ranks", {**tally(shards, n), "no row": strange},
                 {"more than once": [], "never": [], "no row": []}, [
        ("rows are numbered from 0 to n - 1", bool(strange)),
        ("rows are drawn one by one, with repeats: draw a permutation",
         any(len(set(rows)) < len(rows) for rows in shards)),
        (HASHED, hashed is True),
        ("ranks shuffle differently: the permutation must come from seed and epoch "
         "alone, not from the rank, nor from torch's shared generator", True)])
    rising = sum(a < b for rows in shards for a, b in zip(rows, rows[1:]))
    if n > MANY and not 0.2 <= rising / (n - k) <= 0.8:  # half, in a random order
        yield differ(f"{who}; rank 0 begins with", shards[0][:8], "a random order",
                     [("the rows are in order: shuffle, and do not sort", True)])


def _first(shards):
    return [rows[:8] for rows in shards]


def _judge_epochs(who, old, before, new, now):
    pairs = [{frozenset(two) for rows in part for two in zip(rows, rows[1:])}
             for part in (before, now)]
    sets = [set(map(frozenset, part)) for part in (before, now)]
    for wanted, hint, fits in [
            ("another order", "epoch is not used: this is a sampler without set_epoch",
             now == before),
            ("an order shuffled anew", "the old order is turned or moved, not shuffled",
             len(pairs[0] & pairs[1]) > len(pairs[0]) / 3),
            ("other rows", "rows stay together: first shuffle all rows, then deal them "
             "out", len(now) > 1 and sets[0] & sets[1])]:
        if fits:
            yield differ(f"{who}, epochs {old} and {new}; rank 0 begins with",
                         _first([before[0], now[0]]), f"{wanted} in another epoch",
                         [(hint, True)])


def _judge_after(who, noise, after):
    # a generator of the same seed goes on as the shared one would have, untouched
    seeds = range(noise, noise + len(after))
    torchs = [float(torch.rand((), dtype=torch.float64,
                               generator=torch.Generator().manual_seed(seed)))
              for seed in seeds]
    yield differ(f"{who}; torch's next random numbers, after each call",
                 [numbers[0] for numbers in after], torchs, [
        ("torch.manual_seed, and randperm without a generator, change what everybody "
         "else draws: make a torch.Generator of your own", True)])
    yield differ(f"{who}; Python's next random numbers, after each call",
                 [numbers[1] for numbers in after],
                 [Random(seed).random() for seed in seeds], [
        ("random.seed changes what everybody else draws: make a random.Random of your "
         "own", True)])
    yield differ(f"{who}; numpy's next random numbers, after each call",
                 [numbers[2] for numbers in after],
                 [np.random.RandomState(seed).random_sample() for seed in seeds], [
        ("np.random.seed changes what everybody else draws: make one of your own by "
         "np.random.default_rng", True)])
