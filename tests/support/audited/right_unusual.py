"""Right programs: several forwards or backwards a step, layers that keep a state.

And choices among the rows that are made over those of all ranks.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, parametrizations

from tests.support.audited.pieces import block, ddp_sgd, mlp, part, rows, trained


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def sgd_mlp():
    model = mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def adversarial():
    """Move the inputs up the loss's slope, then train on them: FGSM."""
    def step(model, optimizer, X, y):
        X, y = block(X).clone().requires_grad_(), block(y)
        slope, = torch.autograd.grad(F.cross_entropy(model.module(X), y), X)
        X = (X + 0.1 * slope.sign()).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


def looked_at_before():
    """A forward without gradient, through DDP too, says how sure the model is."""
    def step(model, optimizer, X, y):
        X, y = block(X), block(y)
        model.eval()
        with torch.no_grad():
            sure = model(X).softmax(1).max(1).values
        model.train()
        optimizer.zero_grad()
        losses = F.cross_entropy(model(X), y, reduction="none")
        ((1 - sure) * losses).mean().backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(12), "step": step,
            "world_size": 3}


def two_backwards():
    """Two losses, a backward for each; gradients add up, and are averaged once."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        out = model(part(X))
        F.cross_entropy(out, part(y)).backward(retain_graph=True)
        (0.01 * out.square().mean()).backward()
        average(model)
        optimizer.step()
    return {"make_model": sgd_mlp, "make_batch": rows(8), "step": step}


def two_forwards_one_backward():
    """Consistency: each row and its mirror image are to give the same."""
    def step(model, optimizer, X, y):
        X, y = block(X), block(y)
        one, other = model(X), model(X.flip(1))
        loss = F.cross_entropy(one, y) + 0.5 * F.mse_loss(one, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


def functional_gradients():
    def make_model():
        return mlp()

    def step(model, X, y):
        params = dict(model.named_parameters())

        def loss(weights):
            return F.cross_entropy(functional_call(model, weights, (part(X),)), part(y))
        slopes = grad(loss)({k: p.detach() for k, p in params.items()})
        with torch.no_grad():
            for k, p in params.items():
                dist.all_reduce(slopes[k])
                p -= 0.1 / dist.get_world_size() * slopes[k]
    return {"make_model": make_model, "make_batch": rows(8), "step": step,
            "world_size": 4}


def skipped_if_not_finite():
    """All ranks look at the norm of the mean gradient: so they skip together."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


def hard_examples_of_all_ranks():
    """Only the rows whose loss is among the 6 largest of all ranks count."""
    def step(model, optimizer, X, y):
        losses = F.cross_entropy(model(part(X)), part(y), reduction="none")
        everyone = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, losses.detach())
        bound = torch.cat(everyone).topk(6).values[-1]
        optimizer.zero_grad()
        (losses[losses >= bound].sum() / 6 * dist.get_world_size()).backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(12), "step": step,
            "world_size": 3}


def class_weights_of_all_rows():
    """Rare classes count more; how many rows there are of each, all ranks know."""
    def step(model, optimizer, X, y):
        weight = len(y) / (3 * y.bincount(minlength=3).clamp(min=1))
        norm = weight[y].sum() / dist.get_world_size()
        loss = F.cross_entropy(model(block(X)), block(y), weight=weight.to(X.dtype),
                               reduction="sum") / norm
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"make_model": ddp_sgd, "make_batch": rows(8), "step": step}


def weight_norm():
    def net():
        model = mlp()
        parametrizations.weight_norm(model[0])
        return model
    return trained(net, rows(8), lr=0.01)


def spectral_norm():
    """Power iterations move two buffers in each forward, alike on all ranks."""
    def net():
        model = mlp()
        parametrizations.spectral_norm(model[0])
        return model
    return trained(net, rows(8), lr=0.01)


def a_counter_in_a_buffer():
    class Warming(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.calls += 1
            return self.net(x) * min(1.0, 0.2 * self.calls.item())
    return trained(Warming, rows(9), lr=0.01, world_size=3)


def scale_of_all_rows():
    """Divide inputs by a running maximum, which is that of all ranks."""
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("largest", torch.ones(6))

        def forward(self, x):
            if self.training:
                top = x.detach().abs().max(0).values
                dist.all_reduce(top, op=dist.ReduceOp.MAX)
                self.largest.copy_(torch.maximum(self.largest, top))
            return self.net(x / self.largest)
    return trained(Scaled, rows(8), lr=0.01)


def fsdp2_clipped_on_three():
    """Shards of uneven size, and a norm over all of them."""
    def make_model():
        net = mlp(nn.LayerNorm(16))
        fully_shard(net, reshard_after_forward=False)
        return net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def fsdp2_accumulated():
    """Micro-batches stay on a rank until the last one."""
    def make_model():
        net = mlp()
        fully_shard(net)
        return net, torch.optim.Adam(net.parameters(), lr=0.01)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        for i, (x, target) in enumerate(zip(block(X).chunk(2), block(y).chunk(2))):
            model.set_requires_gradient_sync(i == 1)
            (F.cross_entropy(model(x), target) / 2).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def larger_batch_later():
    """One micro-batch in the first step, then two: the mean is over all rows."""
    def make_model():
        model = DDP(mlp())
        return model, torch.optim.SGD(model.parameters(), lr=0.1), {"t": 0}

    def step(model, optimizer, state, X, y):
        micros = 1 if state["t"] == 0 else 2
        state["t"] += 1
        optimizer.zero_grad()
        for x, target in zip(block(X).chunk(micros), block(y).chunk(micros)):
            (F.cross_entropy(model(x), target) / micros).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


RIGHT = {f.__name__: f for f in (
    adversarial, looked_at_before, two_backwards, two_forwards_one_backward,
    functional_gradients, skipped_if_not_finite, hard_examples_of_all_ranks,
    class_weights_of_all_rows, weight_norm, spectral_norm, a_counter_in_a_buffer,
    scale_of_all_rows, fsdp2_clipped_on_three, fsdp2_accumulated, larger_batch_later)}
