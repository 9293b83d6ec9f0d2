"""Programs that train a part of a network: low-rank updates, adapters."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.heldout.parts import average, draw, draw_ids, mine, mlp


class LowRank(nn.Module):
    """Add a product of two thin matrices to a linear layer that stays as it is."""

    def __init__(self, base, rank, generator):
        super().__init__()
        self.base = base.requires_grad_(False)
        down = torch.randn(rank, base.in_features, generator=generator)
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def lora(bug=None):
    """Train low-rank updates of a frozen network."""
    def make_model():
        model = mlp(5, 8, 3)
        seed = dist.get_rank() if bug == "thin_matrix_by_rank" else 0
        generator = torch.Generator().manual_seed(seed)
        model[0], model[2] = (LowRank(model[i], 2, generator) for i in (0, 2))
        if bug == "base_trained_on_rank_0" and dist.get_rank() == 0:
            model.requires_grad_(True)
        wanted = [p for p in model.parameters() if p.requires_grad]
        return model, torch.optim.AdamW(wanted, 0.02)

    def make_batch(t):
        return draw(t, 8, 5), draw_ids(t, 3, 8)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(mine(X)), mine(y)).backward()
        average(p for name, p in model.named_parameters() if "base" not in name)
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class Adapted(nn.Module):
    """Put an adapter between a frozen body and a head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(5, 8).requires_grad_(False), mlp(8, 3, seed=1)
        self.adapter = nn.Identity()

    def forward(self, x):
        return self.head(self.adapter(self.body(x).tanh()))


def adapters(bug=None):
    """Put an adapter behind a frozen layer and train it with the head."""
    def make_model():
        model = Adapted()
        if bug == "adapter_after_wrapping":
            wrapped = DDP(model)
            model.adapter = mlp(8, 2, 8, seed=2)
        else:
            model.adapter = mlp(8, 2, 8, seed=2)
            wrapped = DDP(model)
        groups = [{"params": model.adapter.parameters(), "lr": 0.1},
                  {"params": model.head.parameters(), "weight_decay": 0.01}]
        return wrapped, torch.optim.SGD(groups, 0.2)

    def make_batch(t):
        return draw(t, 8, 5), draw_ids(t, 3, 8)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(mine(X)), mine(y)).backward()
        if bug == "head_averaged_again":
            for p in model.module.head.parameters():
                p.grad /= dist.get_world_size()
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}
