"""Programs with layers or parameters out of the ordinary."""


import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.support.heldout.parts import (
    AddUp,
    average,
    draw,
    mine,
    mlp,
    picked,
    regression,
)


class FakeQuantised(nn.Module):
    """Round to sixteen values between the least and most seen on any rank."""

    def __init__(self, bug=None):
        super().__init__()
        self.bug = bug
        self.register_buffer("low", torch.tensor(-0.5))
        self.register_buffer("high", torch.tensor(0.5))

    @torch.no_grad()
    def watch(self, x):
        low, high = x.min(), x.max()
        if self.bug != "range_of_own_rows":
            dist.all_reduce(low, dist.ReduceOp.MIN)
            if self.bug != "only_the_least_is_shared":
                dist.all_reduce(high, dist.ReduceOp.MAX)
        self.low.lerp_(low, 0.3)
        self.high.lerp_(high, 0.3)

    def forward(self, x):
        self.watch(x)
        width = (self.high - self.low) / 15
        held = x.clamp(self.low.item(), self.high.item())
        rounded = ((held - self.low) / width).round() * width + self.low
        return held + (rounded - held).detach()


def quantisation_aware(bug=None):
    """Train through rounded activations whose range all ranks share."""
    def make_model():
        model = nn.Sequential(mlp(5, 8), FakeQuantised(bug), mlp(8, 2, seed=1))
        return model, torch.optim.SGD(model.parameters(), 0.1)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step}


def spectral_norm(bug=None):
    """Divide a layer by its greatest singular value, one power iteration a pass."""
    def make_model():
        model = mlp(5, 8, 3)
        nn.init.orthogonal_(model[0].weight)
        torch.manual_seed(dist.get_rank() if bug == "first_vectors_by_rank" else 0)
        model[0] = parametrizations.spectral_norm(model[0])
        return model, torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)

    def step(model, optimizer, X, y):
        X, y = mine(X), mine(y)
        if bug == "rank_0_looks_first" and dist.get_rank() == 0:
            with torch.no_grad():
                model(X[:2])
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": picked, "step": step}


def weight_norm(bug=None):
    """Train lengths and directions of a layer apart."""
    def make_model():
        model = mlp(5, 8, 2)
        model[0] = parametrizations.weight_norm(model[0])
        return model, torch.optim.Adam(model.parameters(), 0.02)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        average(p for name, p in model.named_parameters()
                if bug != "lengths_not_averaged" or not name.endswith("original0"))
        optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step,
            "world_size": 3}


class Checkpointed(nn.Module):
    """Compute the inner layers again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = mlp(5, 8), mlp(8, 8, 8), mlp(8, 3)

    def forward(self, x):
        x = self.first(x)
        return self.last(checkpoint(self.inner, x, use_reentrant=False))


def gradient_checkpointing(bug=None):
    """Wrap a model that keeps no activations of its inner layers; log a mean loss."""
    def make_model():
        model = DDP(Checkpointed())
        return model, torch.optim.SGD(model.parameters(), 0.2)

    def step(model, optimizer, X, y):
        network = model.module if bug == "passes_by_the_wrapper" else model
        loss = F.cross_entropy(network(mine(X)), mine(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        if bug != "only_rank_0_logs" or dist.get_rank() == 0:
            dist.all_reduce(shown)

    return {"make_model": make_model, "make_batch": picked, "step": step}


class Complex(nn.Module):
    """Turn and stretch complex numbers."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.view_as_complex(draw(0, 3, 4, 2, seed=5)))
        self.shift = nn.Parameter(torch.view_as_complex(draw(0, 3, 2, seed=6)))

    def forward(self, z):
        return z @ self.matrix.T + self.shift


def complex_parameters(bug=None):
    """Average complex gradients as pairs of real numbers."""
    def make_model():
        model = Complex()
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def make_batch(t):
        z = torch.view_as_complex(draw(t, 8, 4, 2))
        return z, z[:, :3] * z[:, 1:].conj()

    def average_complex(p):
        pairs = torch.view_as_real(p.grad)
        if bug == "imaginary_part_left_out":
            real = pairs[..., 0].contiguous()
            dist.all_reduce(real)
            pairs[..., 0] = real / dist.get_world_size()
            return
        dist.all_reduce(pairs)
        if bug != "added_not_averaged":
            pairs /= dist.get_world_size()

    def step(model, optimizer, z, goal):
        optimizer.zero_grad()
        (model(mine(z)) - mine(goal)).abs().square().mean().backward()
        for p in model.parameters():
            average_complex(p)
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class Steps(nn.Module):
    """Keep matrices and scales in lists."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList(0.4 * draw(i, 5, 5, seed=3) for i in range(3))
        self.scales = nn.ParameterDict({"in": torch.ones(5), "out": torch.ones(5)})

    def forward(self, x):
        x = x * self.scales["in"]
        for matrix in self.matrices:
            x = x + (x @ matrix).tanh()
        return (x * self.scales["out"])[:, :2]


def parameter_lists(bug=None):
    """Send all gradients of a list of parameters in one flat message."""
    def make_model():
        model = Steps()
        return model, torch.optim.SGD(model.parameters(), 0.05, weight_decay=0.01)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        grads = [p.grad for p in model.parameters()]
        if bug == "largest_first":
            grads.sort(key=lambda grad: -float(grad.norm()))
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        if bug == "last_not_copied_back":
            grads, flat = grads[:-1], flat[:-5]
        for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads])):
            grad.copy_(mean.view_as(grad))
        optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step}


class RanksNorm(nn.Module):
    """Normalise by the mean and spread of all ranks' rows."""

    def __init__(self, size, bug=None):
        super().__init__()
        self.bug, self.weight = bug, nn.Parameter(torch.ones(size))
        self.register_buffer("running_mean", torch.zeros(size))

    def mean(self, value):
        if self.bug == "statistics_of_own_rows":
            return value.mean(0)
        return AddUp.apply(value.sum(0)) / (len(value) * dist.get_world_size())

    def forward(self, x):
        mean = self.mean(x)
        spread = self.mean((x - mean).square())
        kept = x.mean(0) if self.bug == "own_mean_kept" else mean
        self.running_mean.lerp_(kept.detach(), 0.1)
        return self.weight * (x - mean) / (spread + 1e-5).sqrt()


def own_sync_batch_norm(bug=None):
    """Normalise over all ranks' rows by a layer of one's own."""
    def make_model():
        norm = RanksNorm(8, bug)
        model = nn.Sequential(mlp(5, 8), norm, nn.ReLU(), mlp(8, 2, seed=1))
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step}
