"""A network for problem set 4, with all that makes it hard to share.

    Network    a few layers: two tied, one frozen, one that only some rows pass
    network    its numbers drawn from a seed, float64
    row_loss   what one row of a minibatch of so many rows adds to a rank's loss
    state      its parameters and buffers as plain lists, by name
    gradients  those that it has, by name
"""

import torch
from torch import nn

from manual_dp.school.tools.plain import numbers


class Network(nn.Module):
    """Map 5 numbers to 2. No two parameters have equally many numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.first = nn.Linear(5, 6)
        self.middle = nn.Linear(6, 6, bias=False)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.middle.weight  # tied
        self.frozen = nn.Linear(6, 7)
        self.frozen.weight.requires_grad = False
        self.side = nn.Linear(7, 7, bias=False)
        self.spare = nn.Linear(3, 1, bias=False)  # no row passes it
        self.last = nn.Linear(7, 2)

    def forward(self, X):
        """Send all rows through, and those that begin above 0 through `side`."""
        h = torch.tanh(self.first(X - self.shift))
        h = torch.tanh(self.again(torch.tanh(self.middle(h))))
        h = torch.tanh(self.frozen(h))
        few = X[:, :1] > 0
        if few.any():
            h = h + few * self.side(h)
        return self.last(h)


def network(seed, spare=True):
    """Draw a network; without `spare`, some row above 0 uses every parameter."""
    generator = torch.Generator().manual_seed(seed)
    module = Network().double()
    for p in [*module.parameters(), module.shift]:
        p.data.copy_(torch.rand(p.shape, dtype=p.dtype, generator=generator) - 0.5)
    module.count.fill_(seed % 1000)
    if not spare:
        module.spare = None
    return module


def row_loss(model, X, y, rows, world_size):
    """Return the loss for a shard of a minibatch of `rows` rows over all ranks.

    The sum of the shard's own losses, times world_size / rows: then the mean over
    ranks of its gradient is the gradient of the minibatch's mean loss.
    """
    return ((model(X) - y) ** 2).sum() * world_size / rows


def state(module):
    """Return all parameters and buffers by name, tied ones under both names."""
    return {name: numbers(tensor.flatten())
            for name, tensor in module.state_dict().items()}


def gradients(module):
    """Return the gradients of what wants one, by name; None where there is none."""
    return {name: None if p.grad is None else numbers(p.grad.flatten())
            for name, p in module.named_parameters() if p.requires_grad}
