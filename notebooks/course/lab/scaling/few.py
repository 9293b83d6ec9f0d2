"""What few rows a rank do to accuracy, where a layer looks at all rows of its rank.

    accuracy    of a small network with a normalisation, whose ranks have so many rows
    network     this network

The gradients are those of DDP: the mean over the whole minibatch. Each rank normalises
its own rows. Running statistics, which the test uses, are those of rank 0, as in DDP.
Here one process does this for one rank after the other, with the same result.
"""

import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.data import load_data


def accuracy(norm, rows, seed=0, batch_size=32, steps=40, lr=0.1):
    """Return the test accuracy on the digits after `steps` steps of `batch_size` rows.

    norm: such as `nn.BatchNorm1d`, called with the number of channels. rows: of a rank.
    """
    if not 1 <= rows <= batch_size:
        raise ValueError(f"rows must be from 1 to batch_size {batch_size}, got {rows}")
    train, test = load_data("digits", dtype=torch.float64)
    torch.manual_seed(seed)
    net = network(norm)
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        for rank, mine in enumerate(
                torch.randint(len(train.X), (batch_size,)).split(rows)):
            kept = [buffer.clone() for buffer in net.buffers()]
            losses = F.cross_entropy(net(train.X[mine]), train.y[mine], reduction="sum")
            (losses / batch_size).backward()
            if rank > 0:
                for buffer, before in zip(net.buffers(), kept):
                    buffer.copy_(before)
        optimizer.step()
    right = net.eval()(test.X).argmax(1) == test.y
    return right.double().mean().item()


def network(norm):
    """Return a small network for the digits, in float64, with `norm` in its middle."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), norm(32), nn.ReLU(),
                         nn.Linear(32, 10)).double()
