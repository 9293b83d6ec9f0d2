"""Right programs: networks of many kinds."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.audited.pieces import (
    block,
    convnet,
    images,
    mlp,
    part,
    rows,
    trained,
)


def gru_cell_by_cell():
    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.cell, self.out = nn.GRUCell(2, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = x.new_zeros(len(x), 8)
            for t in range(3):
                h = self.cell(x[:, 2 * t:2 * t + 2], h)
            return self.out(h)
    return trained(Cells, rows(9), world_size=3)


class HuggingStyle(nn.Module):
    """Return a dict with the loss and the logits, as libraries of transformers do."""

    def __init__(self):
        super().__init__()
        self.net = mlp(nn.Dropout(0.1))

    def forward(self, input_values, labels=None, **_):
        logits = self.net(input_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def loss_inside_the_model():
    def make_model():
        model = DDP(HuggingStyle())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def make_batch(t):
        X, y = rows(8)(t)
        return {"input_values": X, "labels": y}

    def step(model, optimizer, batch):
        out = model(**{k: block(v) for k, v in batch.items()})
        out["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4),
                                  nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1),
                                    nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2))
        self.up = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        high = self.down(x)
        return self.up(torch.cat([high, self.middle(high)], dim=1))


def unet_segmentation():
    def make_batch(t):
        X, _ = images(8)(t)
        return X, (X[:, 0] > 0).long()
    return trained(UNet, make_batch, lr=0.01)


def batch_norm():
    return trained(lambda: convnet(nn.BatchNorm2d(4)), images(8))


def batch_norm_without_running_means():
    return trained(lambda: mlp(nn.BatchNorm1d(16, track_running_stats=False)), rows(8))


def frozen_batch_norm():
    """Batch norm in eval mode uses its running means: a rank's rows do not matter."""
    case = trained(lambda: convnet(nn.BatchNorm2d(4)), images(8))

    def step(model, optimizer, X, y):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        optimizer.step()
    return {**case, "step": step}


def instance_norm():
    return trained(lambda: convnet(nn.InstanceNorm2d(4, affine=True)), images(9),
                   world_size=3)


def frozen_backbone():
    def make_model():
        net = mlp()
        for p in net[0].parameters():
            p.requires_grad = False
        model = DDP(net)
        wanted = [p for p in model.parameters() if p.requires_grad]
        return model, torch.optim.SGD(wanted, lr=0.1)
    return {**trained(None, rows(8)), "make_model": make_model}


def frozen_but_in_the_optimizer():
    """All parameters are handed over; those without a gradient are passed by."""
    def make_model():
        net = mlp()
        net[0].requires_grad_(False)
        model = DDP(net)
        return model, torch.optim.Adam(model.parameters(), lr=0.01)
    return {**trained(None, rows(8)), "make_model": make_model}


def low_rank_adapter():
    """Only two thin matrices learn; the first step leaves one of them as it was."""
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = mlp().requires_grad_(False)
            self.a = nn.Parameter(torch.randn(6, 2))
            self.b = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x):
            return self.base(x) + x @ self.a @ self.b

    def make_model():
        model = DDP(Adapted())
        return model, torch.optim.SGD([model.module.a, model.module.b], lr=0.1)
    return {**trained(None, rows(8)), "make_model": make_model}


def tied_autoencoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.encode = nn.Linear(6, 4)
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            return F.linear(torch.tanh(self.encode(x)), self.encode.weight.t(),
                            self.bias)

    def make_model():
        model = Tied()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, X):
        optimizer.zero_grad()
        F.mse_loss(model(block(X)), block(X)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
    return {"make_model": make_model, "make_batch": lambda t: rows(12)(t)[0],
            "step": step, "world_size": 4}


RIGHT = {f.__name__: f for f in (
    gru_cell_by_cell, loss_inside_the_model, unet_segmentation, batch_norm,
    batch_norm_without_running_means, frozen_batch_norm, instance_norm, frozen_backbone,
    frozen_but_in_the_optimizer, low_rank_adapter, tied_autoencoder)}
REPLICAS_ONLY = {
    "batch_norm": "batch norm over a rank's own rows",
    "batch_norm_without_running_means": "batch norm over a rank's own rows",
}
# The bias before the norm has a gradient of nothing but rounding, which Adam scales up.
TOLERANCE = {"instance_norm": 1e-8}
