"""How far one step on three ranks is off, in thirty draws of images and weights.

    off_by    of each program, the parts of a step by which each draw is off
    misfit    the part of one device's gradient that no mixture of the ranks' explains
    tokens    the same as off_by, of a bug in a language model

In notebooks/, in half a minute on two cores (--draws 3 is faster):

    python -m programs.thirty_draws

The programs, the images and the network are those of wrong_programs.py. The lesson
draws with seed 0; seeds here begin at 1000.
"""

import argparse
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from manual_dp.ranks import run_ranks
from programs import wrong_programs as programs
from programs.segmentation import pixel_loss

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
FIRST = 1000


def drawn(draw, norm=None):
    """Return a network, images and masks that no other draw has."""
    seed = FIRST + draw
    return programs.small_unet(norm, seed), *programs.small_blobs(10, seed)


def off_by(names, draws, optim=SGD, dtype=torch.float64, norm=None):
    """Return {program: how far it is off in each draw, as a part of a step}."""

    def moves():
        found = {}
        for name in names:
            for draw in range(draws):
                net, X, y = drawn(draw, norm)
                net.to(dtype)
                before = parameters_to_vector(net.parameters()).detach()
                optimizer = optim(net.parameters(), 5e-4)
                programs.step(net, optimizer, X.to(dtype), y, program=name)
                after = parameters_to_vector(net.parameters()).detach()
                found[name, draw] = before, after
        return found

    ranks = run_ranks(moves, 3, timeout=280)
    [one] = run_ranks(moves, 1, timeout=280)

    def off(key):
        before, right = one[key]
        most = max((rank[key][1] - right).abs().max() for rank in ranks)
        return (most / (right - before).abs().max()).item()

    return {
        name: [off((name, draw)) for draw in range(draws)] for name in names
    }


def misfit(draws, same_rows=False, norm=None):
    """Return each draw's misfit of one device, of three ranks with 4, 4, 2 rows."""
    found = []
    for draw in range(draws):
        net, X, y = drawn(draw, norm)

        def gradient(rows, net=net, X=X, y=y):
            losses = pixel_loss(net(X[rows]), y[rows])
            grads = torch.autograd.grad(losses.sum(), list(net.parameters()))
            return parameters_to_vector(grads)

        shards = torch.arange(10).chunk(3)
        if same_rows:
            shards = [rows - rows[0] for rows in shards]
        came = torch.stack([gradient(rows) for rows in shards]).T
        one = gradient(torch.arange(10))[:, None]
        fit = torch.linalg.lstsq(came, one, driver="gelsd").solution
        found.append(((one - came @ fit).norm() / one.norm()).item())
    return found


def tokens(seed, words):
    """Return how far a step is off if each rank divides by its own tokens.

    Two ranks have a text each, of 10 and of 100 tokens; the net is an embedding
    of 8 numbers and a linear layer.
    """
    torch.manual_seed(FIRST + seed)
    net = nn.Sequential(nn.Embedding(words, 8), nn.Linear(8, words)).double()
    X, y = torch.randint(words, (2, 2, 100))
    y[0, 10:] = -100  # no target

    def gradient(share):
        scores = net(X).transpose(1, 2)
        losses = F.cross_entropy(scores, y, reduction="none").sum(1)
        grads = torch.autograd.grad(losses @ share, list(net.parameters()))
        return parameters_to_vector(grads)

    # what one token of each text counts for: alike, and as each rank's mean
    right = gradient(torch.tensor([1 / 110, 1 / 110]).double())
    wrong = gradient(torch.tensor([1 / 10, 1 / 100]).double() / 2)
    return ((wrong - right).abs().max() / right.abs().max()).item()


def least_to_most(numbers, form=".2g"):
    """Return the range of some numbers as text."""
    return f"{min(numbers):{form}} to {max(numbers):{form}}"


def main(draws):
    """Print a table of programs, and the ranges that the lesson names."""
    names = list(programs.shares(programs.SIZES))
    kinds = {
        "float64, SGD": (SGD, torch.float64),
        "float64, Adam": (ADAM, torch.float64),
        "float32, Adam": (ADAM, torch.float32),
    }
    print(f"{draws} draws of ten images and of weights; three ranks")
    print("off by, in steps ", *(f"{kind:>19}" for kind in kinds))
    columns = [off_by(names, draws, *kind) for kind in kinds.values()]
    for name in names:
        ranges = (f"{least_to_most(column[name]):>19}" for column in columns)
        print(f"{name:17}", *ranges)
    batch = off_by(["right"], draws, norm="batch")["right"]
    print(f"{'batch norm':17} {least_to_most(batch):>19}")
    print("misfit of one device")
    for name, of in [
        ("same rows", partial(misfit, same_rows=True)),
        ("batch norm", partial(misfit, norm="batch")),
    ]:
        print(f"{name:17} {least_to_most(of(draws), '.1%'):>19}")
    print("each rank divides by its own tokens: off by, in steps")
    for words in 5, 12, 50:
        numbers = [tokens(seed, words) for seed in range(draws)]
        print(f"{words:2} words          {least_to_most(numbers):>19}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=30)
    main(parser.parse_args().draws)
