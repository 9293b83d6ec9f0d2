"""Exercises of lessons: the rate of a step, and a test on all devices."""

from collections import Counter
from itertools import accumulate
from statistics import fmean

import torch

from course.school.checks import (
    about,
    close,
    exercise,
    flat,
    numbers,
    remember,
    so_many,
)
from course.school.draws import (
    calls_of_lenet,
    generator,
    images,
    replica,
    rows_seen,
    together,
)
from manual_dp import init_params, lenet, try_devices


@exercise("train/learning_rate")
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

    rates = numbers([learning_rate(step, b, k, w) for step in steps])
    behind = [max(b, rate) for rate in ramp(b, early=-1)]  # at step 0, too
    lagging = [k * b if step >= w else rate for step, rate in zip(steps, behind)]
    ends = [place for place, s in enumerate(steps) if s == 0 or s >= w]
    ends_right = close([rates[i] for i in ends], [ramp(b)[i] for i in ends], 1e-6)
    say = about(f"base_lr {b}, world_size {k}, warmup_steps {w}")
    yield say(
        f"the rates at steps {', '.join(map(str, steps))}",
        rates,
        ramp(b),
        {
            "step 0 takes base_lr, the rate that one device had; this starts at "
            "0": ramp(0),
            "this is one step ahead: the full rate is reached at warmup_steps, and "
            "step 0 takes base_lr": any(
                close(rates, ramp(start, early=1), 1e-6) for start in (b, 0)
            ),
            "this is one step late: steps count from 0": w
            and any(close(rates, late, 1e-6) for late in (lagging, behind)),
            "the full rate comes a step too early: cut the growth into warmup_steps "
            "parts, not into warmup_steps - 1": w > 1
            and [b + (k * b - b) * min(1, step / (w - 1)) for step in steps],
            "this multiplies by the same factor at each step; add the same amount": w
            and [b * k ** min(1, step / w) for step in steps],
            "there is no warm-up: this is k * base_lr at once": ramp(k * b),
            "it goes on growing after warmup_steps": w
            and [b + (k * b - b) * step / w for step in steps],
            "with warmup_steps=0 there is no warm-up: the full rate holds from step 0 "
            "on": w == 0,
            "step 0 is right, and so is the end. Between them the rate grows by the "
            "same amount each step, until warmup_steps": ends_right,
        },
        1e-6,  # torch.linspace gives float32
    )


@exercise("train/evaluate_accuracy", seconds=60)
def evaluate_accuracy(random, evaluate_accuracy):
    """Ask for the accuracy; see which rows went through which replica's lenet."""
    full, params = random.randint(2, 3), _network(random)
    for k, sizes in [
        (4, (full + 8, full + 8, 2)),
        (2, (7, 7, 3)),
        (4, (9, 3)),
        (1, (8, 8, 3)),
        (3, (8, 8, 1)),
        (3, (4, 7, 5)),
    ]:
        devices = try_devices(k)
        data = [
            _labelled(random, params, rows, number == len(sizes) - 1)
            for number, rows in enumerate(sizes)
        ]
        replicas = [replica(params, device) for device in devices]
        handed = [(X.clone(), y.clone()) for X, y, _ in data]
        same = remember(device_params=replicas, data=handed)
        with calls_of_lenet() as calls:
            accuracy = numbers(evaluate_accuracy(replicas, handed, devices))
        say = about(f"minibatches of {sizes} rows, {so_many(k, 'device')}")
        seen = rows_seen(calls, replicas, torch.cat([X for X, _, _ in data]))
        looked = {}
        if seen is not None:  # else nobody can tell
            looked = {**_tally(seen[:k], sum(sizes)), "with other weights": seen[k]}
        yield _accuracy(say, accuracy, [hits for _, _, hits in data], looked, k)
        if looked:
            yield from _work(say, seen[:k], looked, sizes)
        yield from same(say)

    def work(X, y, replicas, devices):
        evaluate_accuracy(replicas, [(X, y)], devices)

    yield together(work, params, random)


def _tally(shards, n):
    """Return which of n rows are in shards more than once, and never; what is none."""
    counts = Counter(flat(shards))
    return {
        "more than once": [row for row in counts if counts[row] > 1],
        "never": [row for row in range(n) if row not in counts],
        "no row": [row for row in counts if row not in range(n)],
    }


def _network(random):
    """Draw weights with which images of noise are taken for all sorts of digits."""
    params = init_params("he", generator(random), torch.float64)
    params[-1] = -lenet(images(random, 20)[0], params).mean(dim=0)
    return params


def _labelled(random, params, rows, last):
    """Draw a minibatch, and tell which rows are classified right.

    These are a third of it, or all of the last.
    """
    X, _ = images(random, rows)
    right = random.sample(range(rows), rows if last else rows // 3)
    y = lenet(X, params).argmax(dim=1)
    for row in range(rows):
        if row not in right:
            y[row] = (y[row] + random.randint(1, 9)) % 10
    return X, y, [row in right for row in range(rows)]


def _accuracy(say, got, hits, looked, k):
    rows = flat(hits)
    parts = [torch.tensor(part) for part in hits]
    of_means = [fmean(map(fmean, hits))]
    for cut in (
        lambda part: part.tensor_split(k),
        lambda part: part.split(-(-len(part) // k)),
    ):
        shards = [[_mean(shard) for shard in cut(part) if len(shard)] for part in parts]
        of_means += [fmean(flat(shards)), fmean(map(fmean, shards))]
    divisor = sum(rows) / got if isinstance(got, float) and got > 0 else 0
    return say(
        f"{sum(rows)} of {len(rows)} rows are right",
        got,
        fmean(rows),
        {
            "the accuracy of no rows is 0 / 0: add counts": got != got,
            "rows are counted more than once": bool(looked.get("more than once")),
            "rows are left out": bool(looked.get("never")),
            "this is a mean of accuracies: rows of small parts count more. Add counts, "
            "and divide once": any(close(got, mean, 1e-6) for mean in of_means),
            f"the right rows are divided by {divisor:.0f}: divide by the number of all "
            "rows": divisor > 0.5 and close(divisor, float(round(divisor)), 1e-6),
        },
        1e-6,
    )


def _mean(hits):
    return hits.double().mean().item()


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
