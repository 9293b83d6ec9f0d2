"""Five programs that train on several ranks: one is right, four are wrong.

    shares       how much each image counts in a step, for each program
    learn        train a small U-Net so; its test IoU after each epoch
    small_unet   this U-Net, in float64
    small_blobs  the images for it

A gradient is a sum over images. So each program is a list of numbers: what each image's
gradient is multiplied by. One process that multiplies the losses by these numbers
stands in for all ranks, and takes the step that every rank, or rank 0, would take.
"""

import torch

from manual_dp.models.blobs import blobs
from manual_dp.models.segment import iou, overlap, pixel_loss
from manual_dp.models.unet import UNet

MINIBATCH = 10


def shares(sizes):
    """Return {program: how much each image counts in rank 0's step}, for these shards.

    sizes: images of each rank. Each rank computes its shard's mean gradient.
    """
    total, ranks = sum(sizes), len(sizes)
    by_rank = {
        "right": [1 / total] * ranks,
        "not synchronised": [1 / sizes[0]] + [0] * (ranks - 1),
        "sum for mean": [1 / size for size in sizes],
        "mean of means": [1 / size / ranks for size in sizes],
        "last left out": [1 / total] * (ranks - 1) + [0],
    }
    return {program: torch.cat([torch.full([size], count, dtype=torch.float64)
                                for size, count in zip(sizes, counts)])
            for program, counts in by_rank.items()}


def learn(share, lr, seed=0, epochs=8):
    """Train a small U-Net with these shares; return its test IoU after each epoch.

    SGD with momentum 0.9; lr falls to 0 in even steps, one an epoch.
    """
    (X, y), (X_test, y_test) = small_blobs(120), small_blobs(60, seed=1)
    net = small_unet(seed=seed)
    order, scores = torch.Generator().manual_seed(100 + seed), []
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = lr * (1 - epoch / epochs)
        for rows in torch.randperm(len(X), generator=order).split(MINIBATCH):
            optimizer.zero_grad()
            (share @ pixel_loss(net(X[rows]), y[rows])).backward()
            optimizer.step()
        with torch.no_grad():
            scores.append(iou(overlap(net(X_test), y_test))[1].item())
    return scores


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
