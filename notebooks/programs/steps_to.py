"""How many steps a size of minibatch needs until a network is good enough.

    steps_to    train until the test accuracy is reached; how many steps that took
    fewest      of each size, the rate that needed the fewest steps

    python programs/steps_to.py --out results/digits-steps.json    the grid

The network has two layers and 32 hidden units, in float64, on the digits. It always
starts alike. A seed draws the rows. One device does the work: what counts here is the
size of the minibatch, on however many ranks.
"""

import argparse
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.data import load_data
from manual_dp.files import write_json

SIZES = tuple(2**k for k in range(2, 11))
RATES = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
TARGET, LIMIT = 0.9, 400  # accuracy; steps, after which a run is given up


def steps_to(target, batch_size, lr, seed, limit=LIMIT):
    """Return the first step after which the test accuracy is `target`, or None.

    None: it is not reached within `limit` steps. The accuracy is looked at after each.
    """
    train_iter, test_iter = load_data("digits", dtype=torch.float64)
    train, y = train_iter.X.flatten(1), train_iter.y
    test, y_test = test_iter.X.flatten(1), test_iter.y
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)
    ).double()
    optimizer = torch.optim.SGD(net.parameters(), lr)
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, limit + 1):
        rows = torch.randperm(len(train), generator=generator)[:batch_size]
        optimizer.zero_grad()
        F.cross_entropy(net(train[rows]), y[rows]).backward()
        optimizer.step()
        with torch.no_grad():
            right = (net(test).argmax(1) == y_test).sum().item()
        if right >= target * len(y_test):
            return step
    return None


def fewest(runs):
    """Return {batch_size: (steps, lr)}: the lowest median of the seeds' steps.

    A run that was given up counts as endless. Of equal medians the lower rate is named.
    """
    found = {}
    for run in runs:
        steps = float("inf") if run["steps"] is None else run["steps"]
        rates = found.setdefault(run["batch_size"], {})
        rates.setdefault(run["lr"], []).append(steps)
    return {
        size: min((median(steps), lr) for lr, steps in rates.items())
        for size, rates in found.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, metavar="FILE")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    runs = [
        {
            "batch_size": size,
            "lr": lr,
            "seed": seed,
            "steps": steps_to(TARGET, size, lr, seed),
        }
        for size in SIZES
        for lr in RATES
        for seed in range(3)
    ]
    write_json(
        out, {"settings": {"target": TARGET, "limit": LIMIT}, "runs": runs}
    )
