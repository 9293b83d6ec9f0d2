"""Five programs that train on several ranks: one is right, four are wrong.

    step         a rank's part of a step: right, or with one mistake
    train        train a small U-Net by such steps; its test IoU after each epoch
    shares       how much each image counts in rank 0's step, for each program
    counted      one process's step with these shares
    small_unet   this U-Net, in float64
    small_blobs  the images for it

    python programs/wrong_programs.py --out results/wrong-programs.json

A gradient is a sum over images. So each program is a list of numbers, too: what each
image's gradient is multiplied by. One process that multiplies the losses by them takes
rank 0's step. So were the stored runs made: on one core, in about four minutes.
"""

import argparse
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from manual_dp.files import write_json
from manual_dp.models.blobs import blobs
from manual_dp.models.segment import iou, overlap, pixel_loss
from manual_dp.models.unet import UNet

MINIBATCH = 10
RATES, SEEDS = (2.5e-4, 5e-4, 1e-3), range(8)


def step(net, optimizer, X, y, program="right"):
    """Take this rank's part of a step; return its part of the loss.

    X, y: the whole minibatch, on all ranks alike.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(len(X)).chunk(n)[rank]
    if program == "same rows":
        rows = rows - rows[0]
    losses = pixel_loss(net(X[rows]), y[rows])
    loss = losses.sum() * n / len(X)
    if program == "mean of means":
        loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    if program != "not synchronised":
        grads = [p.grad for p in net.parameters()]
        flat = parameters_to_vector(grads)
        dist.all_reduce(flat)
        vector_to_parameters(
            flat if program == "sum for mean" else flat / n, grads
        )
    optimizer.step()
    return losses.detach().sum().item() / len(X)


def train(take, lr, seed=0, epochs=8):
    """Train a small U-Net by `take(net, optimizer, X, y)`; return its test IoUs.

    take: called for each minibatch. SGD with momentum 0.9; lr falls to 0 in even steps,
    one an epoch. A score an epoch is returned.
    """
    (X, y), (X_test, y_test) = small_blobs(120), small_blobs(60, seed=1)
    net = small_unet(seed=seed)
    order, scores = torch.Generator().manual_seed(100 + seed), []
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = lr * (1 - epoch / epochs)
        for rows in torch.randperm(len(X), generator=order).split(MINIBATCH):
            take(net, optimizer, X[rows], y[rows])
        with torch.no_grad():
            scores.append(iou(overlap(net(X_test), y_test))[1].item())
    return scores


def shares(sizes):
    """Return {program: how much each image counts in rank 0's step}, for these shards.

    sizes: images of each rank, neighbours in the minibatch.
    """
    total, ranks, places = sum(sizes), len(sizes), torch.arange(sum(sizes))

    def each(counts):
        return torch.cat(
            [
                torch.full([size], count, dtype=torch.float64)
                for size, count in zip(sizes, counts)
            ]
        )

    right = each([1 / total] * ranks)
    return {
        "right": right,
        "same rows": right * sum((places < size).double() for size in sizes),
        "mean of means": each([1 / size / ranks for size in sizes]),
        "not synchronised": each([ranks / total] + [0] * (ranks - 1)),
        "sum for mean": right * ranks,
    }


def counted(share, net, optimizer, X, y):
    """Take a step in which image i counts share[i]."""
    optimizer.zero_grad()
    (share @ pixel_loss(net(X), y)).backward()
    optimizer.step()


def small_blobs(rows, seed=0):
    """Generate images of 16 x 16 pixels, in a network's range, and their masks."""
    X, y = blobs(rows, seed, size=16)
    return 4 * (X.unsqueeze(1) - 0.4), y


def small_unet(norm=None, seed=0, start=None):
    """Make a U-Net of 4 channels, in float64; with the weights `start`, if given."""
    generator = torch.Generator().manual_seed(seed)
    net = UNet(width=4, norm=norm, generator=generator).double()
    for p, value in zip(net.parameters(), start or ()):
        p.data = value.clone()
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    runs = [
        {
            "program": program,
            "rate": lr,
            "ends": [
                round(train(partial(counted, share), lr, seed)[-1], 3)
                for seed in SEEDS
            ],
        }
        for program, share in shares([4, 4, 2]).items()
        for lr in RATES
    ]
    write_json(
        out,
        {
            "machine": f"one CPU core, torch {torch.__version__}",
            "seeds": [*SEEDS],
            "runs": runs,
        },
    )
