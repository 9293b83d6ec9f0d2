"""Programs with an update of their own: SAM, lookahead, means of weights."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import SWALR, AveragedModel

from tests.support.heldout.parts import (
    add_up,
    average,
    draw,
    mine,
    mlp,
    picked,
    regression,
)


def sam(bug=None):
    """Climb by the mean gradient, go down by the gradient up there."""
    def make_model():
        model = mlp(5, 8, 2)
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def steps_up(model):
        grads = [p.grad for p in model.parameters()]
        length = torch.stack([g.norm() for g in grads]).norm()
        return [0.05 * g / length for g in grads]

    def step(model, optimizer, X, y):
        X, y = mine(X), mine(y)
        optimizer.zero_grad()
        F.mse_loss(model(X), y).backward()
        if bug == "climbs_by_own_and_returns_by_the_mean":
            up = steps_up(model)
            average(model.parameters())
            down = steps_up(model)
        else:
            average(model.parameters())
            up = down = steps_up(model)
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), up)
        optimizer.zero_grad()
        F.mse_loss(model(X), y).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), down)
        if bug != "second_pass_not_averaged":
            average(model.parameters())
        optimizer.step()

    return {"make_model": make_model, "make_batch": regression, "step": step}


def sam_of_own_rows(bug=None):
    """Climb by each rank's own gradient without a message, average the second pass."""
    def make_model():
        model = DDP(mlp(5, 8, 3))
        return model, torch.optim.SGD(model.parameters(), 0.1)

    def step(model, optimizer, X, y):
        X, y = mine(X), mine(y)
        parameters = list(model.parameters())
        before = [p.detach().clone() for p in parameters]
        with model.no_sync():
            F.cross_entropy(model(X), y).backward()
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in parameters]).norm()
            for p in parameters:
                p += 0.05 * p.grad / length
        optimizer.zero_grad()
        if bug == "second_pass_not_averaged_either":
            with model.no_sync():
                F.cross_entropy(model(X), y).backward()
        else:
            F.cross_entropy(model(X), y).backward()
        with torch.no_grad():
            if bug != "not_returned_on_rank_1" or dist.get_rank() != 1:
                torch._foreach_copy_(parameters, before)
        optimizer.step()
        optimizer.zero_grad()

    return {"make_model": make_model, "make_batch": picked, "step": step}


class Lookahead:
    """Hold an optimizer and slow weights that follow every second step."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0
        self.fast = [p for group in optimizer.param_groups for p in group["params"]]
        self.slow = [p.detach().clone() for p in self.fast]

    @torch.no_grad()
    def step(self, follow=True):
        self.optimizer.step()
        self.steps += 1
        if self.steps % 2 == 0 and follow:
            for slow, p in zip(self.slow, self.fast):
                p.copy_(slow.lerp_(p, 0.5))


def lookahead(bug=None):
    """Wrap an optimizer that takes fast steps, sent weights from rank 0 first."""
    def make_model():
        model = mlp(5, 7, 2, seed=dist.get_rank())
        if bug == "slow_weights_kept_before_the_broadcast":
            ahead = Lookahead(torch.optim.SGD(model.parameters(), 0.1))
        for p in model.parameters():
            dist.broadcast(p.data, 0)
        if bug != "slow_weights_kept_before_the_broadcast":
            ahead = Lookahead(torch.optim.SGD(model.parameters(), 0.1))
        return model, ahead

    def step(model, ahead, X, y):
        ahead.optimizer.zero_grad()
        F.mse_loss(model(mine(X)), mine(y)).backward()
        average(model.parameters())
        ahead.step(bug != "follows_on_rank_0" or dist.get_rank() == 0)

    return {"make_model": make_model, "make_batch": regression, "step": step,
            "world_size": 3}


def swa(bug=None):
    """Average weights over the steps, with a rate that goes to a constant."""
    def make_model():
        model = mlp(5, 6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
        goal = 0.05 * (dist.get_world_size() if bug == "rate_times_world_size" else 1)
        scheduler = SWALR(optimizer, goal, anneal_epochs=2)
        return model, optimizer, scheduler, AveragedModel(model)

    def step(model, optimizer, scheduler, mean, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(mine(X)), mine(y)).backward()
        average(model.parameters())
        optimizer.step()
        scheduler.step()
        if bug != "averaged_on_rank_0" or dist.get_rank() == 0:
            mean.update_parameters(model)

    return {"make_model": make_model, "make_batch": picked, "step": step}


class Centralised(torch.optim.SGD):
    """Take the mean out of each row of a matrix's gradient, then step."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.grad -= p.grad.mean(1, keepdim=True)
        return super().step(closure)


def gradient_centralisation(bug=None):
    """Average gradients in a hook of each parameter, centralise them in the update."""
    def make_model():
        model = mlp(5, 8, 2)
        world = dist.get_world_size()
        momentum = 0.9 ** world if bug == "momentum_by_world_size" else 0.9
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(average_one)
        return model, Centralised(model.parameters(), 0.1, momentum, nesterov=True)

    def average_one(p):
        dist.all_reduce(p.grad)
        if bug != "added_not_averaged":
            p.grad /= dist.get_world_size()

    def step(model, optimizer, X, y):
        F.mse_loss(model(mine(X)), mine(y)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"make_model": make_model, "make_batch": regression, "step": step,
            "world_size": 3}


def local_sgd(bug=None):
    """Step by own gradients and average the weights after each step."""
    def make_model():
        model = mlp(5, 8, 3)
        kind = torch.optim.Adam if bug == "own_moments_of_adam" else torch.optim.SGD
        return model, kind(model.parameters(), 0.05)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(mine(X)), mine(y)).backward()
        optimizer.step()
        weights = list(model.parameters())
        if bug == "last_layer_never_averaged":
            weights = weights[:-2]
        for p in weights:
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()

    return {"make_model": make_model, "make_batch": picked, "step": step,
            "world_size": 3}


def weighted_losses(bug=None):
    """Learn two tasks' weights; the first task's rows are labelled in part."""
    def make_model():
        model = mlp(5, 8, 3)
        doubt = nn.Parameter(torch.zeros(2))
        model.register_parameter("doubt", doubt)
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def make_batch(t):
        return (*regression(t), draw(t, 12, seed=4) > 0)

    def step(model, optimizer, X, y, known):
        X, y, known = mine(X), mine(y), mine(known)
        out = model(X)
        rows = add_up(known.sum()) / dist.get_world_size()
        if bug == "labelled_rows_of_own_rank":
            rows = known.sum()
        first = ((out[:, 0] - y[:, 0]).square() * known).sum() / rows
        second = (out[:, 1:] - y[:, 1:]).square().mean()
        losses = torch.stack([first, second])
        optimizer.zero_grad()
        ((-model.doubt).exp() * losses + model.doubt).sum().backward()
        wanted = list(model.parameters())
        average([p for p in wanted if p is not model.doubt]
                if bug == "doubt_not_averaged" else wanted)
        optimizer.step()

    return {"make_model": make_model, "make_batch": make_batch, "step": step}
