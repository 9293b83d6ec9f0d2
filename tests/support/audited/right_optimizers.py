"""Right programs: optimizers, their settings, and updates written by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.support.audited.pieces import block, ddp_mlp, mlp, part, rows, targets


def train_step(model, optimizer, X, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(part(X)), part(y))
    loss.backward()
    optimizer.step()
    return loss


def with_optimizer(make_optimizer, **options):
    def make_model():
        model = ddp_mlp()
        return model, make_optimizer(model.parameters())
    return {"make_model": make_model, "make_batch": rows(12), "step": train_step,
            **options}


def sgd_nesterov():
    return with_optimizer(lambda params: torch.optim.SGD(
        params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4))


def adamw():
    return with_optimizer(lambda params: torch.optim.AdamW(
        params, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1))


def adam_amsgrad_on_four():
    return with_optimizer(lambda params: torch.optim.Adam(
        params, lr=1e-2, amsgrad=True, foreach=False), world_size=4)


def rmsprop_on_three():
    return with_optimizer(lambda params: torch.optim.RMSprop(
        params, lr=1e-2, momentum=0.5, centered=True), world_size=3)


def adagrad():
    return with_optimizer(lambda params: torch.optim.Adagrad(
        params, lr=0.05, lr_decay=0.1))


def nadam_on_four():
    return with_optimizer(lambda params: torch.optim.NAdam(params), world_size=4)


def maximize_the_likelihood():
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        log_p = F.log_softmax(model(part(X)), dim=1)
        log_p.gather(1, part(y)[:, None]).mean().backward()
        optimizer.step()
    return {**with_optimizer(lambda params: torch.optim.SGD(
        params, lr=0.1, maximize=True)), "step": step}


def sgd_with_a_closure():
    def step(model, optimizer, X, y):
        def closure():
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(block(X)), block(y))
            loss.backward()
            return loss
        optimizer.step(closure)
    return {**with_optimizer(lambda params: torch.optim.SGD(params, 0.1)), "step": step}


def lbfgs():
    """The closure returns the mean loss of all ranks: the line search goes by it."""
    def step(model, optimizer, X, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(part(X)).sum(1, keepdim=True), part(y))
            loss.backward()
            total = loss.detach().clone()
            dist.all_reduce(total)
            return total / dist.get_world_size()
        optimizer.step(closure)
    return {**with_optimizer(lambda params: torch.optim.LBFGS(
        params, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")),
        "make_batch": targets(12), "step": step}


def zero_redundancy():
    return with_optimizer(lambda params: ZeroRedundancyOptimizer(
        params, optimizer_class=torch.optim.Adam, lr=0.01))


def zero_redundancy_on_three():
    return with_optimizer(lambda params: ZeroRedundancyOptimizer(
        params, optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9,
        parameters_as_bucket_view=True), world_size=3)


def no_decay_on_biases():
    def make_model():
        net = mlp(nn.LayerNorm(16))
        decay = [p for p in net.parameters() if p.ndim > 1]
        rest = [p for p in net.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.05},
                  {"params": rest, "weight_decay": 0.0}]
        return DDP(net), torch.optim.AdamW(groups, lr=2e-3)
    return {"make_model": make_model, "make_batch": rows(8), "step": train_step}


def two_learning_rates():
    def make_model():
        net = mlp()
        optimizer = torch.optim.SGD([{"params": net[0].parameters(), "lr": 0.01},
                                     {"params": net[-1].parameters()}],
                                    lr=0.1, momentum=0.9)
        return DDP(net), optimizer
    return {"make_model": make_model, "make_batch": rows(8), "step": train_step}


def two_optimizers_for_parts():
    def make_model():
        torch.manual_seed(5)
        net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(6, 12), nn.ReLU()),
                             "head": nn.Linear(12, 3)})

        class Classifier(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = net

            def forward(self, x):
                return self.parts["head"](self.parts["body"](x))
        model = DDP(Classifier())
        return (model, torch.optim.Adam(net["body"].parameters(), lr=1e-2),
                torch.optim.SGD(net["head"].parameters(), lr=0.2))

    def step(model, body_optimizer, head_optimizer, X, y):
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        body_optimizer.step()
        head_optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def update_by_hand():
    def make_model():
        return mlp()

    def step(model, X, y):
        model.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
                p -= 0.1 * p.grad / dist.get_world_size()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def momentum_by_hand():
    """The velocity lives in a dict beside the model, the same on all ranks."""
    def make_model():
        model = ddp_mlp()
        return model, {name: torch.zeros_like(p)
                       for name, p in model.named_parameters()}

    def step(model, velocity, X, y):
        model.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                velocity[name].mul_(0.9).add_(p.grad)
                p.sub_(velocity[name], alpha=0.05)
    return {"make_model": make_model, "make_batch": rows(12), "step": step}


def autograd_grad():
    def make_model():
        model = mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, X, y):
        loss = nn.CrossEntropyLoss()(model(part(X)), part(y))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for p, g in zip(model.parameters(), grads):
            g = g.contiguous()
            dist.all_reduce(g)
            p.grad = g / dist.get_world_size()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def sharpness_aware():
    """Two forwards and two updates of the weights a step; both gradients are means."""
    def step(model, optimizer, X, y):
        X, y = block(X), block(y)
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        norm = torch.linalg.vector_norm(torch.stack(
            [p.grad.norm() for p in model.parameters()]))
        moved = [0.05 * p.grad / (norm + 1e-12) for p in model.parameters()]
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved):
                p.add_(e)
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved):
                p.sub_(e)
        optimizer.step()
    return {**with_optimizer(lambda params: torch.optim.SGD(params, lr=0.1)),
            "step": step}


def large_decay_and_dead_relu():
    """Half of the units never get a gradient but zero; decay alone moves them."""
    def make_model():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        with torch.no_grad():
            net[0].bias[:4] = -100
        model = DDP(net)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    return {"make_model": make_model, "make_batch": rows(8), "step": train_step}


RIGHT = {f.__name__: f for f in (
    sgd_nesterov, adamw, adam_amsgrad_on_four, rmsprop_on_three, adagrad, nadam_on_four,
    maximize_the_likelihood, sgd_with_a_closure, lbfgs, zero_redundancy,
    zero_redundancy_on_three, no_decay_on_biases, two_learning_rates,
    two_optimizers_for_parts, update_by_hand, momentum_by_hand, autograd_grad,
    sharpness_aware, large_decay_and_dead_relu)}
