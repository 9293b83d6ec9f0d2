"""Problem set 3, what more devices change: batch, learning rate, rows, accuracy."""

import random as python
from collections import Counter
from itertools import accumulate, combinations
from statistics import fmean

import numpy as np
import torch

from course.school.checks import about, close, exercise, flat, numbers, so_many
from course.school.draws import (
    calls_of_lenet,
    generator,
    images,
    replica,
    rows_seen,
    together,
)
from manual_dp import init_params, lenet, try_devices

MANY = 50  # rows: with fewer, two random orders may look alike by chance
KEYS = ["batch_size", "lr", "rows", "steps"]


@exercise("ps3/plan", points=3)
def plan(random, plan):
    """Ask for both ways: with minibatches that are all full, and that are not."""
    sizes = [
        (3, 64),
        (2, 2 * random.randint(4, 20) + 1),
        (1, random.randint(8, 40)),
        (4, 4 * random.randint(2, 10) + 1),
        (4, 5),
        (4, 3),
    ]
    for k, b in sizes:
        for keep in ("batch", "shard"):
            # all minibatches are full, or one device's would be, or there is a rest
            rest = {3: 0, 64: b}.get(b, random.randint(1, b * k - 1))
            n = b * k * random.randint(3, 30) + rest
            lr = round(random.uniform(0.01, 0.5), 4)
            got = numbers(plan(n, b, k, lr, keep))
            say = about(
                f"{n} examples, batch_size {b} and lr {lr} on one device; "
                f"{so_many(k, 'device')}, keep={keep!r}"
            )
            if not isinstance(got, dict) or sorted(got) != KEYS:
                yield say("the plan", got, f"a dict with the keys {', '.join(KEYS)}")
            stays, size = keep == "batch", -(-b // k)
            cut = [max(0, min(size, b - rank * size)) for rank in range(k)]
            right, other = (cut, [b] * k) if stays else ([b] * k, cut)
            floor = stays and [b // k] * k
            yield say(
                "rows",
                got["rows"],
                right,
                {
                    "batch_size // world_size loses rows: 64 over 3 would be 63": floor,
                    "keep='batch' shares batch_size out, keep='shard' gives each so "
                    "many": other,
                    "cut them as split_batch does: shards of ceil(batch_size / "
                    "world_size) rows until they run out, then empty ones": stays,
                },
            )
            whole = b if stays else k * b
            yield say("batch_size", got["batch_size"], whole)
            yield say(
                "lr",
                got["lr"],
                lr if stays else k * lr,
                {
                    "the minibatch is the one of a single device, so is its mean "
                    "gradient: leave the rate": stays,
                    "one step takes the place of world_size steps: the linear rule "
                    "multiplies the rate": lr,
                    "the square root is a rule for Adam; this is SGD": lr * k**0.5,
                },
                1e-6,  # it may be a float32
            )
            as_alone = not stays and -(-n // b)
            yield say(
                "steps",
                got["steps"],
                -(-n // whole),
                {
                    "the minibatch is larger now: fewer steps": as_alone,
                    "the last minibatch may be short, and is a step too": n // whole,
                },
            )


@exercise("ps3/learning_rate", "train/learning_rate", points=3)
def learning_rate(random, learning_rate):
    """Ask for the rate at some steps."""
    for k, w in [
        (3, 10),
        (2, 7),
        (1, 12),
        (4, random.randint(5, 20)),
        (8, random.randint(21, 90)),
        (4, 0),
        (3, 1),
        (2, 2),
    ]:
        yield from _warm_up(random, learning_rate, k, w)


def _warm_up(random, learning_rate, k, w):
    """Ask for the rates of k devices, of which w steps are a warm-up."""
    steps = sorted(
        {0, 1, w // 2, w - 1, w, w + 1, random.randint(2, w + 2), 5 * w + 3} - {-1}
    )
    b = round(random.uniform(0.01, 0.2), 4)

    def ramp(start, early=0, end=k * b):
        if not w:
            return [end] * len(steps)
        return [start + (end - start) * min(1, (s + early) / w) for s in steps]

    say = about(f"base_lr {b}, world_size {k}, warmup_steps {w}")
    yield say(
        f"the rates at steps {', '.join(map(str, steps))}",
        [learning_rate(step, b, k, w) for step in steps],
        ramp(b),
        {
            "step 0 takes base_lr, the rate that one device had; this starts at "
            "0": ramp(0),
            "this is one step ahead: the full rate is reached at warmup_steps, and "
            "step 0 takes base_lr": ramp(b, early=1),
            "there is no warm-up: this is k * base_lr at once": ramp(k * b),
            "it goes on growing after warmup_steps": w
            and [b + (k * b - b) * step / w for step in steps],
        },
        1e-6,  # torch.linspace gives float32
    )


@exercise("ps3/shard_indices", points=4)
def shard_indices(random, shard_indices):
    """Ask every rank for its rows, with the shared generators in another state."""
    many = 12 * random.randint(5, 8)
    for k, n in [
        (3, many + 2),
        (2, many + 3),
        (1, many + 1),
        (4, many + 2),
        (4, many),
        (4, 10),
        (4, 3),
        (2, 5),
    ]:
        yield from _deal_rows(random, shard_indices, k, n)


def _deal_rows(random, shard_indices, k, n):
    """Ask k ranks for their rows, of n."""
    seed, epochs = random.randint(1, 10**6), [0, 1, random.randint(2, 99)]
    moved = set()

    def ask(rank, seed, epoch):
        torch.rand(1)
        python.random()
        np.random.rand()
        before = _states()
        rows = numbers(shard_indices(n, k, rank, seed, epoch))
        moved.update(name for name, state in _states().items() if state != before[name])
        return rows

    def ask_all(seed, epoch):
        return [ask(rank, seed, epoch) for rank in range(k)]

    mine = [ask_all(seed, epoch) for epoch in epochs]
    others = [ask_all(seed + 1, epoch) for epoch in epochs]
    for number, shards in (seed, mine), (seed + 1, others):
        for epoch, rows in zip(epochs, shards):
            yield from _each_row_once(
                about(f"n {n}, world_size {k}, seed {number}, epoch {epoch}"),
                n,
                k,
                rows,
            )
    say = about(f"n {n}, world_size {k}, seed {seed}")
    if n > MANY:
        yield from _other_orders(say, seed, epochs, mine, others)
    yield say(
        "shared generators that a call has changed",
        sorted(moved),
        [],
        {
            "torch.manual_seed, random.seed and np.random.seed change what "
            "everybody else draws, and so does randperm alone: make a generator of "
            "your own": True
        },
    )


def _other_orders(say, seed, epochs, mine, others):
    """Compare the orders of two seeds, `mine` and `others`, and of two epochs."""
    for epoch, rows, other in zip(epochs, mine, others):
        if rows == other:
            yield say(
                f"seed {seed + 1}, too; in epoch {epoch} the ranks begin with",
                _first(other),
                "another order for another seed",
                {
                    "the seed is not used": mine == others,
                    "seed * epoch is 0 in epoch 0, for every seed": True,
                },
            )
    for (old, before), (new, now) in combinations(zip(epochs, mine), 2):
        shards, shards_before = (set(map(frozenset, part)) for part in (now, before))
        stays = len(now) > 1 and bool(shards & shards_before)
        if now == before or stays:
            yield say(
                f"epochs {old} and {new}; the ranks begin with",
                _first(now),
                "all rows shuffled anew",
                {
                    "epoch is not used: this is a sampler without set_epoch": now
                    == before,
                    "rows stay together: first shuffle all rows, then deal them "
                    "out": stays,
                },
            )


def _states():
    """Return the states of the generators that everybody shares."""
    _, keys, *rest = np.random.get_state()
    return {
        "torch's": torch.get_rng_state().tolist(),
        "Python's": python.getstate(),
        "numpy's": [keys.tolist(), rest],
    }


def _first(shards):
    return [rows[:8] for rows in shards]


def _tally(shards, n):
    """Return which of n rows are in shards more than once, and never; what is none."""
    counts = Counter(flat(shards))
    return {
        "more than once": [row for row in counts if counts[row] > 1],
        "never": [row for row in range(n) if row not in counts],
        "no row": [row for row in counts if row not in range(n)],
    }


def _each_row_once(say, n, k, shards):
    for rank, rows in enumerate(shards):
        if not isinstance(rows, list) or any(type(row) is not int for row in rows):
            yield say(f"rank {rank}", rows, "a list of whole numbers")
    sizes, total = [len(rows) for rows in shards], sum(map(len, shards))
    yield say(
        "rows of the ranks, largest first",
        sorted(sizes, reverse=True),
        [len(range(rank, n, k)) for rank in range(k)],
        {
            "rows are repeated so that all ranks have as many: torch's sampler does "
            "that, and a test with it counts them twice": total > n,
            "n // world_size rows a rank loses the rest": [n // k] * k,
            "sizes may differ by one: deal the rows out like cards": total == n,
        },
    )
    tally = _tally(shards, n)
    yield say(
        "over all ranks",
        tally,
        dict.fromkeys(tally, []),
        {
            "ranks shuffle differently: the permutation must come from seed and epoch "
            "alone, not from the rank, nor from torch's shared generator": True
        },
    )
    rising = sum(a < b for rows in shards for a, b in zip(rows, rows[1:]))
    if n > MANY and not 0.2 <= rising / (n - k) <= 0.8:  # half, in a random order
        yield say(
            "rank 0 begins with",
            shards[0][:8],
            "a random order",
            {"the rows are in order: shuffle, and do not sort": True},
        )


@exercise("ps3/evaluate_accuracy", "train/evaluate_accuracy", points=5, seconds=60)
def evaluate_accuracy(random, evaluate_accuracy):
    """Ask for the accuracy; see which rows went through which replica's lenet."""
    full = random.randint(2, 3)
    for k, sizes in [
        (4, (full + 8, full + 8, 2)),
        (2, (7, 7, 3)),
        (4, (9, 3)),
        (1, (8, 8, 3)),
        (3, (8, 8, 1)),
        (3, (4, 7, 5)),
    ]:
        params, devices = _network(random), try_devices(k)
        data = [
            _labelled(random, params, rows, number == len(sizes) - 1)
            for number, rows in enumerate(sizes)
        ]
        replicas = [replica(params, device) for device in devices]
        handed = iter([(X.clone(), y.clone()) for X, y in data])
        with calls_of_lenet() as calls:
            accuracy = numbers(evaluate_accuracy(replicas, handed, devices))
        hits = [(lenet(X, params).argmax(1) == y).tolist() for X, y in data]
        say = about(f"minibatches of {sizes} rows, {so_many(k, 'device')}")
        seen = rows_seen(calls, replicas, torch.cat([X for X, _ in data]))
        looked = {**_tally(seen[:k], sum(sizes)), "with other weights": seen[k]}
        yield _accuracy(say, accuracy, hits, looked, k)
        yield from _work(say, seen[:k], looked, sizes)

        def work(X, y, replicas, devices):
            evaluate_accuracy(replicas, iter([(X, y)]), devices)

        yield together(work, params, random)


def _network(random):
    """Draw weights with which images of noise are taken for all sorts of digits."""
    params = init_params("he", generator(random), torch.float64)
    params[-1] = -lenet(images(random, 20)[0], params).mean(dim=0)
    return params


def _labelled(random, params, rows, last):
    """Draw a minibatch: a third of it, or all of the last, is classified right."""
    X, _ = images(random, rows)
    right = random.sample(range(rows), rows if last else rows // 3)
    y = lenet(X, params).argmax(dim=1)
    for row in range(rows):
        if row not in right:
            y[row] = (y[row] + random.randint(1, 9)) % 10
    return X, y


def _accuracy(say, got, hits, looked, k):
    rows = flat(hits)
    shards = [p.tolist() for part in hits for p in torch.tensor(part).tensor_split(k)]
    of_means = []  # over minibatches; over shards
    for parts in hits, shards:
        of_means.append(fmean(fmean(part) for part in parts if part))
    return say(
        f"{sum(rows)} of {len(rows)} rows are right",
        got,
        fmean(rows),
        {
            "the accuracy of no rows is 0 / 0: add counts": got != got,
            "rows are counted more than once": bool(looked["more than once"]),
            "rows are left out": bool(looked["never"]),
            "this is a mean of accuracies: rows of small parts count more. Add counts, "
            "and divide once": any(close(got, mean, 1e-6) for mean in of_means),
        },
        1e-6,
    )


def _work(say, seen, looked, sizes):
    """Compare who worked on which rows."""
    others = bool(looked["with other weights"])
    everywhere = all(len(rows) == sum(sizes) for rows in seen)
    yield say(
        "rows that went through lenet",
        looked,
        dict.fromkeys(looked, []),
        {
            "other weights than device_params were used": others,
            "every device works on the whole minibatch": everywhere,
        },
    )
    shares = []  # [minibatch][device]
    for size, end in zip(sizes, accumulate(sizes)):
        begin = end - size
        shares.append([sum(begin <= row < end for row in rows) for rows in seen])
    most = [-(-size // len(seen)) for size in sizes]
    if any(max(share) > limit for share, limit in zip(shares, most)):
        yield say(
            "rows of each minibatch that each device worked on",
            shares,
            f"at most {most} on a device",
            {"each minibatch is to be cut": True},
        )
