"""What it costs if ranks average their weights only after every H steps.

digits      the digits as 64 numbers each, for training and for the test
batches     which rows a rank draws: from a part of them, shuffled or sorted by digit
train       ranks step alone, and average their weights after every H steps
steps_to    after how many steps the networks are good enough
times       how long each gradient of a worker takes
race        workers that do not wait: each writes when its gradient is ready

python programs/how_often.py --out results/how-often.json   ten seeds, for lesson 17
python programs/how_often.py    the race, Adam's moments, DiLoCo, 2 and 8 ranks

The network has two layers, 32 hidden units and 2,410 weights, in float64. One process
plays all ranks of all seeds: dimension 0 of each tensor counts them. SGD and Adam work
on each number by itself, so it is as if each rank had an optimizer of its own.
"""

import argparse
import random
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush
from statistics import mean

import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.data import load_data
from manual_dp.files import write_json

RANKS, ROWS, SEEDS = 4, 16, range(10)
HS, RATES = (1, 4, 16, 64, None), (0.1, 0.25, 0.5, 1.0)
TARGETS, LIMIT = (
    (0.1, 0.05),
    768,
)  # wrong test digits; steps, after which a run ends
LOOK = 16  # steps; the test digits are looked at when ranks meet then


@lru_cache
def digits():
    """Return images and labels for training, and for the test, at 8x8 pixels."""
    return [
        tensor
        for part in load_data("digits", dtype=torch.float64)
        for tensor in (part.X[:, 0, 3:-2:3, 3:-2:3].flatten(1), part.y)
    ]


def network(seed):
    """Return the same network on each rank."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    ).double()


def batches(order, rank, ranks=RANKS, seed=0, foreign=0):
    """Yield the numbers of 16 rows a step, drawn from this rank's part of all.

    order: "shuffled" or "sorted", how the rows lay when they were dealt out. foreign:
    so many of the 16 are drawn from all rows instead.
    """
    y = digits()[1]
    places = y.argsort(stable=True)
    if order == "shuffled":
        places = torch.randperm(
            len(y), generator=torch.Generator().manual_seed(seed)
        )
    mine = places.chunk(ranks)[rank]
    draw = torch.Generator().manual_seed(100 * seed + rank)
    while True:
        rows = mine[torch.randint(len(mine), (ROWS,), generator=draw)]
        rows[:foreign] = torch.randint(len(y), (foreign,), generator=draw)
        yield rows


def outputs(weights, X):
    """Return what a network answers; several do if dimension 0 of all counts them."""
    W1, b1, W2, b2 = weights
    hidden = F.relu(X @ W1.mT + b1.unsqueeze(-2))
    return hidden @ W2.mT + b2.unsqueeze(-2)


@torch.no_grad()
def test(weights):
    """Return the test loss and the share of wrong answers of each network."""
    X, y = digits()[2:]
    found = outputs(weights, X)
    labels = y.expand(len(found), -1)
    losses = F.cross_entropy(found.mT, labels, reduction="none").mean(1)
    wrong = (found.argmax(-1) != y).double().mean(1)
    return losses.nan_to_num(9.99).clamp(max=9.99), wrong


@torch.no_grad()
def average(tensors, ranks=RANKS):
    """Set each rank's part to the mean over the ranks of its seed."""
    for tensor in tensors:
        parts = tensor.view(-1, ranks, *tensor.shape[1:])
        parts.copy_(parts.mean(1, keepdim=True))


def weights_only(params, optimizer, ranks):
    """Return what happens when ranks meet: local SGD."""
    return partial(average, params, ranks)


def moments_too(params, optimizer, ranks):
    """Return what happens when ranks meet, if they average Adam's moments, too."""

    def meet():
        states = optimizer.state.values()
        both = [s[name] for s in states for name in ("exp_avg", "exp_avg_sq")]
        average([*params, *both], ranks)

    return meet


def diloco(params, optimizer, ranks):
    """Return what happens when ranks meet: DiLoCo, with OpenDiLoCo's outer options."""
    common = [p.detach().clone() for p in params]
    outer = torch.optim.SGD(common, lr=0.7, momentum=0.9, nesterov=True)

    def meet():
        average(params, ranks)
        for old, p in zip(common, params):
            old.grad = old - p.detach()
        outer.step()
        with torch.no_grad():
            for old, p in zip(common, params):
                p.copy_(old)

    return meet


def train(
    order,
    every,
    make,
    steps=256,
    *,
    seeds=SEEDS,
    ranks=RANKS,
    kind=weights_only,
    target=None,
    foreign=0,
):
    """Return [(step, losses, shares of wrong answers)] of the seeds, at each look.

    every: H; None, if the ranks never meet: then a number is the mean of the ranks'.
    make: an optimizer, of parameters. target: stop, after step 256, when all seeds have seen it.
    """
    X, y, *_ = digits()
    nets = [network(seed) for seed in seeds for _ in range(ranks)]
    params = [
        torch.stack([p.detach() for p in same]).requires_grad_()
        for same in zip(*(net.parameters() for net in nets))
    ]
    optimizer = make(params)
    meet = kind(params, optimizer, ranks)
    draws = [
        batches(order, rank, ranks, seed, foreign)
        for seed in seeds
        for rank in range(ranks)
    ]
    found = []
    for step in range(1, steps + 1):
        rows = torch.stack([next(draw) for draw in draws])
        optimizer.zero_grad()
        scores = outputs(params, X[rows]).flatten(0, 1)
        total = F.cross_entropy(scores, y[rows].flatten(), reduction="sum")
        (
            total / ROWS
        ).backward()  # the sum over ranks of each one's mean loss
        optimizer.step()
        if every and step % every == 0:
            meet()
        if step % max(every or LOOK, LOOK) == 0:
            both = (each.view(-1, ranks).mean(1) for each in test(params))
            found.append((step, *(each.tolist() for each in both)))
            if target and step >= 256 and all(steps_to(target, found)):
                break
    return found


def steps_to(target, found):
    """Return for each seed the first step with so few wrong answers, or None."""
    shares = zip(*(wrong for *_, wrong in found))
    return [
        next((look[0] for look, w in zip(found, own) if w <= target), None)
        for own in shares
    ]


def grid(steps=256):
    """Yield a row for each order, H and rate, with lists over ten seeds."""
    for order in ("shuffled", "sorted"):
        for lr in RATES:
            for every in HS:
                limit = LIMIT if every else steps
                make = partial(torch.optim.SGD, lr=lr)
                found = train(order, every, make, limit, target=TARGETS[-1])
                wrong = next(wrong for n, _, wrong in found if n >= steps)
                yield {
                    "order": order,
                    "rate": lr,
                    "H": every,
                    "wrong": [round(share, 4) for share in wrong],
                    "steps": {t: steps_to(t, found) for t in TARGETS},
                }


def times(kind, seed):
    """Yield how long each gradient takes: "equal", "similar" or "any"; the mean is 1."""
    draw = random.Random(seed)
    while True:
        if kind == "equal":
            yield 1.0
        elif kind == "similar":
            yield draw.uniform(0.8, 1.2)
        else:
            yield draw.expovariate(1)


def race(rate, durations, workers=4, writes=400):
    """Return |w| after each write, and how old each gradient was, in writes of others.

    The loss is w*w/2, so the gradient is w as the worker read it. A worker reads w,
    takes the next of `durations`, writes w - rate * gradient, and reads again.
    """
    w, sizes, ages = 1.0, [], []
    busy = [(next(durations), worker, w, 0) for worker in range(workers)]
    heapify(busy)  # who is ready first comes first
    for n in range(writes):
        now, worker, gradient, read_at = heappop(busy)
        w -= rate * gradient
        sizes.append(abs(w))
        ages.append(n - read_at)
        heappush(busy, (now + next(durations), worker, w, n + 1))
    return sizes, ages


def races():
    """Print what the glossary says of gradients that are old."""
    for kind in ("equal", "similar", "any"):
        seeds = SEEDS[:1] if kind == "equal" else SEEDS  # nothing is drawn
        for rate in (0.4, 0.5, 0.6, 0.8, 1.2):
            runs = [race(rate, times(kind, seed)) for seed in seeds]
            grown = sum(sizes[-1] > 1000 for sizes, _ in runs)
            at_40 = [sizes[39] for sizes, _ in runs]
            print(
                f"{kind} times, rate {rate}: w grew in {grown} of {len(runs)},",
                f"{min(at_40):.2g} to {max(at_40):.2g} after 40 writes,",
                f"mean age {mean(mean(ages) for _, ages in runs):.2f}",
            )


def tell(label, found):
    """Print the mean loss, its range and the share of wrong answers at the end."""
    step, losses, wrong = found[-1]
    print(
        f"{mean(losses):.2f} ({min(losses):.2f} to {max(losses):.2f}),",
        f"{mean(wrong):.1%} wrong after {step} steps, {label}",
    )


def more():
    """Print what the folded answers of lesson 17 and the glossary say."""
    races()
    sgd = partial(torch.optim.SGD, lr=0.25)
    for ranks in (2, 8):
        for order in ("shuffled", "sorted"):
            for every in (1, 64, None):
                found = train(order, every, sgd, ranks=ranks)
                tell(f"{order}, H = {every}, {ranks} ranks", found)
    for foreign in range(5):
        for every in (1, 64):
            found = train("sorted", every, sgd, foreign=foreign)
            tell(f"sorted, H = {every}, {foreign} rows from all", found)
    for order in ("shuffled", "sorted"):
        for every in (1, 16):
            for kind in (weights_only, moments_too):
                adam = partial(torch.optim.Adam, lr=0.005)
                tell(
                    f"Adam, {order}, H = {every}, {kind.__name__}",
                    train(order, every, adam, kind=kind),
                )
        for lr in (0.002, 0.005, 0.02):
            for kind in (weights_only, diloco):
                adam = partial(torch.optim.AdamW, lr=lr)
                tell(
                    f"AdamW {lr}, {order}, H = 64, {kind.__name__}",
                    train(order, 64, adam, 512, kind=kind),
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", metavar="FILE")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    if out:
        settings = {
            "ranks": RANKS,
            "rows": ROWS,
            "targets": TARGETS,
            "limit": LIMIT,
        }
        write_json(out, {"settings": settings, "runs": [*grid()]})
    else:
        more()
