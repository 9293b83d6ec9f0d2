"""Programs that change gradients or optimizers: clipping, Adafactor, ZeRO, scaling."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.support.heldout.parts import (
    average,
    mine,
    mlp,
    picked,
    regression,
)


def clip_each_layer(bug=None):
    """Bound the norm of each parameter's mean gradient."""
    bound = 0.05

    def make_model():
        model = mlp(5, 8, 2)
        return model, torch.optim.SGD(model.parameters(), 0.5)

    def step(model, optimizer, X, y):
        most = bound / dist.get_world_size() if bug == "bound_by_world_size" else bound
        optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        if bug != "bounded_before_the_mean":
            average(model.parameters())
        for p in model.parameters():
            torch.nn.utils.clip_grad_norm_([p], most)
        if bug == "bounded_before_the_mean":
            average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step}


def adaptive_clip(bug=None):
    """Bound each unit's gradient by its weights, as NFNets do."""
    def make_model():
        model = mlp(5, 8, 3)
        return model, torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)

    def clip(parameters):
        for p in parameters:
            if p.dim() > 1:
                most = 0.05 * p.detach().norm(dim=1, keepdim=True).clamp(min=1e-3)
                p.grad *= (most / p.grad.norm(dim=1, keepdim=True)).clamp(max=1)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(mine(X)), mine(y)).backward()
        if bug == "clipped_before_the_mean":
            clip(model.parameters())
        average(model.parameters())
        if bug != "clipped_before_the_mean":
            clip(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": picked, "step": step,
            "world_size": 4}


class Factored(torch.optim.Optimizer):
    """Scale by row and column means of squares, as Adafactor does."""

    def __init__(self, parameters, lr, decay):
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, send=None):
        for group in self.param_groups:
            for p in group["params"]:
                state, square = self.state[p], p.grad.square() + 1e-6
                if not state:
                    state["row"] = torch.zeros_like(square.mean(-1, keepdim=True))
                    state["column"] = torch.zeros_like(square.mean(0, keepdim=True))
                state["row"].lerp_(square.mean(-1, keepdim=True), 1 - group["decay"])
                state["column"].lerp_(square.mean(0, keepdim=True), 1 - group["decay"])
                scale = state["row"] * state["column"] / state["row"].mean()
                update = p.grad / (scale.sqrt() + 1e-3)
                if send:
                    send(update)
                p -= group["lr"] * update


def adafactor(bug=None):
    """Update by an optimizer of one's own with factored squares."""
    def make_model():
        model = mlp(5, 8, 2)
        decay = 1 - 0.2 / (1 + dist.get_rank()) if bug == "decay_by_rank" else 0.8
        return model, Factored(model.parameters(), 0.01, decay)

    def send(update):
        dist.all_reduce(update)
        update /= dist.get_world_size()

    def step(model, optimizer, X, y):
        model.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        if bug == "squares_of_own_gradients":
            optimizer.step(send)
        else:
            average(model.parameters())
            optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step}


def manual_zero(bug=None):
    """Own some parameters on each rank: step those alone, send them to the others."""
    def owner(i):
        world = dist.get_world_size()
        if bug == "rest_of_the_parameters_unowned":
            return i // (4 // world)
        return i % world

    def make_model():
        model, rank = mlp(5, 8, 2), dist.get_rank()
        own = [p for i, p in enumerate(model.parameters()) if owner(i) == rank]
        return model, torch.optim.Adam(own, 0.02)

    def step(model, optimizer, X, y):
        model.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        last = dist.get_world_size() - 1
        for i, p in enumerate(model.parameters()):
            dist.reduce(p.grad, min(owner(i), last))
            p.grad /= dist.get_world_size()
        optimizer.step()
        if bug != "never_sent_back":
            for i, p in enumerate(model.parameters()):
                dist.broadcast(p.data, min(owner(i), last))

    return {"make_model": make_model, "make_batch": regression, "step": step,
            "world_size": 3}


class Scaler:
    """Scale a loss, take the scale out again, leave out a step that overflowed."""

    def __init__(self, bug):
        self.scale, self.bug = 1024.0, bug

    def overflowed(self, parameters):
        bad = torch.tensor(float(any(not p.grad.isfinite().all() for p in parameters)))
        if self.bug != "overflow_of_own_rows":
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        return bool(bad)

    def step(self, optimizer, parameters):
        if self.bug == "overflow_on_any_rank_stops_it_alone" \
                and any(not p.grad.isfinite().all() for p in parameters):
            return
        skip = self.overflowed(parameters)
        average(parameters)
        if skip:
            self.scale /= 2
            return
        scale = self.scale
        if self.bug == "scale_taken_out_for_each_rank":
            scale *= dist.get_world_size()
        for p in parameters:
            p.grad /= scale
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()


def loss_scaling(bug=None):
    """Scale the loss by hand; the second batch overflows on the last rank alone."""
    def make_model():
        model = mlp(5, 8, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return model, optimizer, Scaler(bug)

    def make_batch(t):
        X, y = picked(t)
        if t == 1:
            X[-1, 0] = float("inf")
        return X, y

    def step(model, optimizer, scaler, X, y):
        optimizer.zero_grad()
        (F.cross_entropy(model(mine(X)), mine(y)) * scaler.scale).backward()
        scaler.step(optimizer, list(model.parameters()))

    return {"make_model": make_model, "make_batch": make_batch, "step": step}
