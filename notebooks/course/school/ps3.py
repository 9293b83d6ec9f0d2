"""Problem set 3, what more devices change: batch, learning rate, rows, accuracy."""

import math
import operator
import random as python
from collections import Counter
from contextlib import ExitStack
from itertools import accumulate, combinations
from statistics import fmean

import numpy as np
import torch

from course.school.checks import exercise
from course.school.compare import about, close, flat, numbers, so_many
from course.school.draws import (
    generator,
    images,
    rows_seen,
    together,
    watched,
)
from course.school.ranks import Afresh
from manual_dp import init_params, lenet, try_devices

WORDS = {"words": 6}  # points that a person gives, by grade id
HASHED = ("hash() of a text is another one in each process: Python salts it. Make a "
          "seed of whole numbers")
MANY = 50  # rows: with fewer, two random orders may look alike by chance
SHARED = {  # generators that everybody shares: how they are seeded, read, and named
    "torch's": (torch.manual_seed,
                lambda: float(torch.rand((), dtype=torch.float64)),
                "torch.manual_seed, and randperm without a generator, change what "
                "everybody else draws: make a torch.Generator of your own"),
    "Python's": (python.seed, python.random,
                 "random.seed changes what everybody else draws: make a random.Random "
                 "of your own"),
    "numpy's": (np.random.seed, np.random.random,
                "np.random.seed changes what everybody else draws: make one of your "
                "own by np.random.default_rng")}


@exercise("ps3/plan", points=3)
def plan(random, plan):
    """Ask for both ways: with minibatches that are all full, and that are not."""
    sizes = [(3, 64), (2, 2 * random.randint(4, 20) + 1), (1, random.randint(8, 40)),
             (4, 4 * random.randint(2, 10) + 1), (4, 5), (4, 3)]
    for k, b in sizes:
        for keep in ("batch", "shard"):
            # all minibatches are full, or one device's would be, or there is a rest
            rest = {3: 0, 64: b}.get(b, random.randint(1, b * k - 1))
            n = b * k * random.randint(3, 30) + rest
            lr = round(random.uniform(0.01, 0.5), 4)
            got = numbers(plan(n, b, k, lr, keep))
            say = about(f"{n} examples, batch_size {b} and lr {lr} on one device; "
                        f"{so_many(k, 'device')}, keep={keep!r}")
            if not isinstance(got, dict) or sorted(got) != [
                    "batch_size", "lr", "rows", "steps"]:
                yield say("the plan", got, "a dict with the keys batch_size, lr, rows, "
                          "steps", {
                    "nothing is returned": got is None,
                    "numbers without names: write them into a dict":
                        isinstance(got, list)})
            stays = keep == "batch"
            yield say("rows", got["rows"], _cut(b, k) if stays else [b] * k,
                      _other_rows(got["rows"], b, k, stays))
            yield from _other_plan(say, got, n, b, k, lr, stays)


def _cut(rows, k):
    """Return the rows of each shard, as `split_batch` cuts them."""
    size = -(-rows // k)
    return [max(0, min(size, rows - rank * size)) for rank in range(k)]


def _other_rows(got, b, k, stays):
    return {
        "batch_size // world_size loses rows: 64 over 3 would be 63":
            stays and [b // k] * k,
        "this is keep='shard': each device takes batch_size rows": stays and [b] * k,
        "this is keep='batch': the devices share batch_size rows":
            not stays and _cut(b, k),
        "all rows are there; cut them as split_batch does, shards of "
        "ceil(batch_size / world_size) rows until they run out, then empty ones":
            stays and isinstance(got, list) and sum(
                row for row in flat(got) if isinstance(row, int)) == b,
        "one number a device, in a list": not isinstance(got, list)}


def _other_plan(say, got, n, b, k, lr, stays):
    """Compare minibatch, rate and steps."""
    whole, rows = b if stays else k * b, -(-b // k) if stays else b
    yield say("batch_size", got["batch_size"], whole, {
        "each device's rows count": not stays and b,
        "the devices share one device's minibatch": stays and k * b})
    yield say("lr", got["lr"], lr if stays else k * lr, {
        "the minibatch is the one of a single device, so is its mean gradient: leave "
        "the rate": stays,
        "one step takes the place of world_size steps: the linear rule multiplies the "
        "rate": lr,
        "the square root is a rule for Adam; this is SGD": lr * k ** 0.5,
        "the rate is not shared out: a larger minibatch gets a larger rate": lr / k},
        1e-6)  # it may be a float32
    yield say("steps", got["steps"], -(-n // whole), {
        "the minibatch is larger now: fewer steps": not stays and -(-n // b),
        "the last minibatch may be short, and is a step too": n // whole,
        "there is no step without rows: no rest, no short minibatch": n // whole + 1,
        "rows go by minibatches, whoever works on them: do not divide again":
            -(-n // (whole * k)),
        "rows go by minibatches, not by shards": -(-n // rows)})


@exercise("ps3/learning_rate", "train/learning_rate", points=3)
def learning_rate(random, learning_rate):
    """Ask for the rate at some steps; a division by zero is an answer too."""
    for k, w in [(3, 10), (2, 7), (1, 12), (4, random.randint(5, 20)),
                 (8, random.randint(21, 90)), (4, 0), (3, 1), (2, 2)]:
        steps = sorted({0, 1, w // 2, w - 1, w, w + 1, random.randint(2, w + 2),
                        5 * w + 3} - {-1})
        b = round(random.uniform(0.01, 0.2), 4)

        def rate(step, b=b, k=k, w=w):
            try:
                return learning_rate(step, b, k, w)
            except ZeroDivisionError:
                return "ZeroDivisionError"
        got = [rate(step) for step in steps]
        say = about(f"base_lr {b}, world_size {k}, warmup_steps {w}")
        yield say(f"the rates at steps {', '.join(map(str, steps))}", got,
                  _ramp(steps, w, b, k * b), _other_rates(got, steps, b, k, w),
                  1e-6)  # torch.linspace gives float32


def _ramp(steps, w, start, end, early=0):
    return [start + (end - start) * min(1, (step + early) / w) if w > 0 else end
            for step in steps]


def _other_rates(got, steps, b, k, w):
    def ramp(start, end, w=w, early=0):
        return _ramp(steps, w, start, end, early)

    def jump(before):
        return w > 0 and [before(step / w) if step < w else k * b for step in steps]
    return {
        "nothing is returned": [None] * len(steps),
        "warmup_steps=0 is no warm-up: k * base_lr from the first step on":
            "ZeroDivisionError" in map(str, got),
        "step 0 takes base_lr, the rate that one device had; this starts at 0":
            ramp(0, k * b),
        "step 0 takes base_lr; this starts at 0 and is one step ahead":
            ramp(0, k * b, early=1),
        "this is one step ahead: the full rate is reached at warmup_steps, and "
        "step 0 takes base_lr": ramp(b, k * b, early=1),
        "this is one step early: the full rate is reached at step warmup_steps, not "
        "before": ramp(b, k * b, w - 1),
        "this is one step late: step warmup_steps has the full rate":
            ramp(b, k * b, w + 1),
        "there is no warm-up: this is k * base_lr at once": ramp(k * b, k * b),
        "this waits until the end of the warm-up; the rate rises at every step":
            jump(lambda part: b),
        "nothing is scaled: this is base_lr for ever": ramp(b, b),
        "base_lr is what one device had: multiply by world_size, divide by nothing":
            ramp(b, b / k),
        "step 0 takes base_lr, the rate that one device had, and not a share of it":
            ramp(b / k, b),
        "this ends at the square root, a rule for Adam; k * base_lr is wanted":
            ramp(b, b * math.sqrt(k)),
        "this ends at base_lr + k * base_lr": ramp(b, b + k * b),
        "from base_lr to k * base_lr it is k - 1 times base_lr; this overshoots":
            jump(lambda part: b + k * b * part),
        "it goes on growing after warmup_steps":
            w > 0 and [b + (k * b - b) * step / w for step in steps],
        "each step multiplies the rate; a straight line adds the same at each step":
            [b * k ** (min(1, step / w) if w else 1) for step in steps],
        "the warm-up ramps to base_lr, then jumps": jump(lambda part: b * part)}


@exercise("ps3/shard_indices", points=4)
def shard_indices(random, shard_indices):
    """Ask every rank for its rows, in some epochs; nothing is remembered.

    Before each call the shared generators are in another state, as on ranks.
    """
    many = 12 * random.randint(5, 8)
    for k, n in [(3, many + 2), (2, many + 3), (1, many + 1), (4, many + 2), (4, many),
                 (4, 10), (4, 3), (2, 5)]:
        seed, epochs = random.randint(1, 10**6), [0, 1, random.randint(2, 99)]
        noise, answer, left = random.randint(1, 10**6), Afresh(shard_indices), []

        def ask(rank, seed, epoch, n=n, k=k, noise=noise, answer=answer, left=left):
            for put, *_ in SHARED.values():
                put(noise + len(left))
            rows = _rows(answer(n, k, rank, seed, epoch))
            left.append([draw() for _, draw, _ in SHARED.values()])
            return rows
        ranks = range(k)
        with _generators_kept():
            mine, others = ([[ask(rank, number, epoch) for rank in ranks]
                             for epoch in epochs] for number in (seed, seed + 1))
            again = [ask(rank, seed, epochs[0]) for rank in ranks[::-1]][::-1]
            untouched = _untouched(noise, len(left))
        for number, shards in (seed, mine), (seed + 1, others):
            for epoch, rows in zip(epochs, shards):
                yield from _each_row_once(about(
                    f"n {n}, world_size {k}, seed {number}, epoch {epoch}"), n, k,
                    rows, answer.hashed)
        say = about(f"n {n}, world_size {k}, seed {seed}")
        for epoch, rows, other in zip(epochs, mine, others):
            yield say(f"seed {seed + 1}, epoch {epoch}; is its order another one?",
                      n <= MANY or rows != other, True, {
                "the seed is not used": mine == others,
                "seed * epoch is 0 in epoch 0, for every seed": True})
        yield say("epoch 0, asked for a second time; the ranks begin with",
                  _first(again), _first(mine[0]), {HASHED: answer.hashed})
        for one, two in combinations(range(3) if n > MANY else (), 2):
            yield from _another_order(say, epochs[one], mine[one], epochs[two],
                                      mine[two])
        for whose, got, wanted in zip(SHARED, zip(*left), zip(*untouched)):
            yield say(f"{whose} next random numbers, after each call", got, wanted, {
                SHARED[whose][-1]: True})


def _rows(value):
    rows = numbers(value)
    try:
        return [operator.index(row) for row in rows]
    except TypeError:
        return repr(rows)[:60]


def _generators_kept():
    """Return a block after which the shared generators are as they were."""
    stack = ExitStack()
    stack.callback(python.setstate, python.getstate())
    stack.callback(np.random.set_state, np.random.get_state())
    stack.enter_context(torch.random.fork_rng(devices=[]))
    return stack


def _untouched(noise, calls):
    """Return what the shared generators draw first with each seed, for all calls."""
    drawn = []
    for number in range(noise, noise + calls):
        for put, *_ in SHARED.values():
            put(number)
        drawn.append([draw() for _, draw, _ in SHARED.values()])
    return drawn


def _first(shards):
    return [rows[:8] for rows in shards]


def _tally(shards, n):
    """Return which of n rows are in shards more than once, and which never."""
    counts = Counter(flat(shards))
    return {"more than once": [row for row in counts if counts[row] > 1],
            "never": [row for row in range(n) if row not in counts]}


def _each_row_once(say, n, k, shards, hashed):
    for rank, rows in enumerate(shards):
        if isinstance(rows, str):
            yield say(f"rank {rank}", rows, "a list of whole numbers", {
                "nothing is returned": rows == "None",
                "these are fractions, which cannot index rows": True})
    sizes, total = [len(rows) for rows in shards], sum(map(len, shards))
    yield say("rows of the ranks, largest first", sorted(sizes, reverse=True),
              [len(range(rank, n, k)) for rank in range(k)], {
        "every rank takes all rows": k > 1 and [n] * k,
        "no rank has any row": total == 0,
        "rows are repeated so that all ranks have as many: torch's sampler does that, "
        "and a test with it counts them twice": total > n,
        "n // world_size rows a rank loses the rest": [n // k] * k,
        "sizes may differ by one: deal the rows out like cards": total == n})
    strange = [row for row in flat(shards) if row not in range(n)]
    yield say("over all ranks", {**_tally(shards, n), "no row": strange},
              {"more than once": [], "never": [], "no row": []}, {
        "rows are numbered from 0 to n - 1": bool(strange),
        "rows are drawn one by one, with repeats: draw a permutation":
            any(len(set(rows)) < len(rows) for rows in shards),
        HASHED: hashed,
        "ranks shuffle differently: the permutation must come from seed and epoch "
        "alone, not from the rank, nor from torch's shared generator": True})
    rising = sum(a < b for rows in shards for a, b in zip(rows, rows[1:]))
    if n > MANY and not 0.2 <= rising / (n - k) <= 0.8:  # half, in a random order
        yield say("rank 0 begins with", shards[0][:8], "a random order", {
            "the rows are in order: shuffle, and do not sort": True})


def _another_order(say, old, before, new, now):
    pairs = [{frozenset(two) for rows in part for two in zip(rows, rows[1:])}
             for part in (before, now)]
    sets = [set(map(frozenset, part)) for part in (before, now)]
    for wanted, hint, fits in [
            ("another order", "epoch is not used: this is a sampler without set_epoch",
             now == before),
            ("an order shuffled anew", "the old order is turned or moved, not shuffled",
             len(pairs[0] & pairs[1]) > len(pairs[0]) / 3),
            ("other rows", "rows stay together: first shuffle all rows, then deal them "
             "out", len(now) > 1 and bool(sets[0] & sets[1]))]:
        if fits:
            yield say(f"epochs {old} and {new}; rank 0 begins with",
                      _first([before[0], now[0]]), f"{wanted} in another epoch",
                      {hint: True})


@exercise("ps3/evaluate_accuracy", "train/evaluate_accuracy", points=5)
def evaluate_accuracy(random, evaluate_accuracy):
    """Ask for the accuracy; see which rows went through which replica's lenet."""
    full = random.randint(2, 3)
    for k, sizes in [(4, (full + 8, full + 8, 2)), (2, (7, 7, 3)), (4, (9, 3)),
                     (1, (8, 8, 3)), (3, (8, 8, 1)), (3, (4, 7, 5))]:
        params, devices = _network(random), try_devices(k)
        data = [_labelled(random, params, rows, number == len(sizes) - 1)
                for number, rows in enumerate(sizes)]
        replicas = [[p.to(device, copy=True).requires_grad_() for p in params]
                    for device in devices]
        handed = [(X.clone(), y.clone()) for X, y in data]
        with watched() as calls:
            accuracy = numbers(evaluate_accuracy(replicas, iter(handed), devices))
        scores = [lenet(X, params) for X, _ in data]
        hits, least = ([(best == y).tolist() for best, (_, y) in zip(bests, data)]
                       for bests in ([part.argmax(1) for part in scores],
                                     [part.argmin(1) for part in scores]))
        say = about(f"minibatches of {', '.join(map(str, sizes))} rows, "
                    f"{so_many(k, 'device')}")
        seen = rows_seen(calls, replicas, torch.cat([X for X, _ in data]))
        yield _accuracy(say, accuracy, hits, least, _tally(seen[:k], sum(sizes)), k)
        yield from _work(say, seen, sizes, k)

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
    return X, torch.tensor([
        label if row in right else (label + random.randint(1, 9)) % 10
        for row, label in enumerate(lenet(X, params).argmax(dim=1).tolist())])


def _accuracy(say, got, hits, least, looked, k):
    sizes, total, right = [len(part) for part in hits], len(flat(hits)), sum(flat(hits))
    return say(f"{right} of {total} rows are right", got, right / total, {
        "the accuracy of no rows is 0 / 0: add counts, and divide once":
            isinstance(got, float) and got != got,
        "this is the count: divide by all rows": right,
        "these are percent": 100 * right / total,
        "this is the share of wrong rows": 1 - right / total,
        "the last minibatch is left out": sum(flat(hits[:-1])) / sum(sizes[:-1]),
        "rows are counted more than once": bool(looked["more than once"]),
        "rows are left out": bool(looked["never"]),
        "this is the last minibatch's accuracy: count over all of them":
            fmean(hits[-1]),
        **_of_parts(got, hits, k, total),
        "this takes the digit with the lowest score; argmax finds the highest":
            sum(flat(least)) / total,
        "nothing is returned": got is None,
        "this is rounded": close(got, right / total, 0.005)}, 1e-6)


def _of_parts(got, hits, k, total):
    """Return hints: which shares may have been averaged instead, or taken alone?"""
    def mean(parts):
        return fmean(fmean(part) for part in parts if part)
    found = {}
    for cut in (torch.tensor_split, torch.chunk):
        minibatches = [[part.tolist() for part in cut(torch.tensor(rows), k)]
                       for rows in hits]
        shards = [part for parts in minibatches for part in parts]
        ranks = [flat([parts[rank:rank + 1] for parts in minibatches])
                 for rank in range(k)]
        for of, value in [
                ("minibatches' accuracies", mean(hits)),
                ("shards' accuracies", mean(shards)),
                ("shards' accuracies", fmean(map(mean, minibatches))),
                ("shards' accuracies, empty ones taken for 0",
                 sum(fmean(part or [0]) for part in shards) / k / len(hits)),
                ("devices' accuracies", mean(ranks))]:
            hint = (f"this is the mean of the {of}: rows of small ones count more. Add "
                    "counts, and divide once")
            found[hint] = found.get(hint) or close(got, value, 1e-6)
        for what, rows in [("hits are counted, over all rows", total),
                           ("accuracy", len(ranks[0]))]:
            hint = f"only device 0's {what}: add the counts of all devices"
            found[hint] = found.get(hint) or close(got, sum(ranks[0]) / rows, 1e-6)
    return found


def _work(say, seen, sizes, k):
    """Compare who worked on which rows; the last of `seen` are other weights'."""
    *seen, others = seen
    looked = _tally(seen, sum(sizes))
    yield say("rows that went through lenet with the replicas", looked,
              {"more than once": [], "never": []}, {
        "other weights than device_params were used": bool(others),
        "every device works on the whole minibatch":
            sum(map(len, [*seen, others])) == k * sum(sizes),
        "rows are left out": bool(looked["never"]),
        "rows are counted more than once": bool(looked["more than once"])})
    yield say("rows that went through other weights", others, [])
    shares = [[sum(end - size <= row < end for row in rows) for rows in seen]
              for size, end in zip(sizes, accumulate(sizes))]
    most = [-(-size // k) for size in sizes]
    if any(max(share) > limit for share, limit in zip(shares, most)):
        yield say("rows of each minibatch that each device worked on", shares,
                  f"at most {', '.join(map(str, most))} on one device", {
            "one device does all the work": sum(map(bool, seen)) == 1,
            "each minibatch is to be cut over the devices": True})
