"""Right programs: gradients or weights brought together by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, ring_allreduce
from tests.support.audited.pieces import block, mlp, part, rows


def sgd_mlp():
    model = mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_hand(synchronise, **options):
    """Return a program that calls `synchronise(model)` between backward and update."""
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        synchronise(model)
        optimizer.step()
    return {"make_model": sgd_mlp, "make_batch": rows(12), "step": step, **options}


def each_gradient():
    def average_gradients(model):
        size = float(dist.get_world_size())
        for param in model.parameters():
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
            param.grad.data /= size
    return by_hand(average_gradients, world_size=4)


def divided_first():
    def average(model):
        for p in model.parameters():
            p.grad.div_(dist.get_world_size())
            dist.all_reduce(p.grad)
    return by_hand(average, world_size=3)


def one_flat_bucket():
    def average(model):
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for p in model.parameters():
            p.grad = flat[start:start + p.numel()].view_as(p)
            start += p.numel()
    return by_hand(average, world_size=3)


def flattened_by_torch():
    def average(model):
        grads = [p.grad for p in model.parameters()]
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for g, mean in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
            g.copy_(mean)
    return by_hand(average)


def asynchronous():
    def average(model):
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work, p in zip(works, model.parameters()):
            work.wait()
            p.grad /= dist.get_world_size()
    return by_hand(average)


def reduce_scatter_all_gather():
    def average(model):
        size = dist.get_world_size()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        flat = F.pad(flat, (0, -len(flat) % size))
        mine = torch.empty(len(flat) // size)
        dist.reduce_scatter_tensor(mine, flat)
        mine /= size
        dist.all_gather_into_tensor(flat, mine)
        start = 0
        for p in model.parameters():
            p.grad.copy_(flat[start:start + p.numel()].view_as(p))
            start += p.numel()
    return by_hand(average, world_size=4)


def reduce_then_broadcast():
    def average(model):
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
            if dist.get_rank() == 0:
                p.grad /= dist.get_world_size()
            dist.broadcast(p.grad, src=0)
    return by_hand(average, world_size=3)


def gathered_and_averaged():
    def average(model):
        for p in model.parameters():
            everyone = [torch.zeros_like(p.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, p.grad)
            p.grad = torch.stack(everyone).mean(0)
    return by_hand(average)


def a_ring():
    def average(model):
        for p in model.parameters():
            ring_allreduce(p.grad)
            p.grad /= dist.get_world_size()
    return by_hand(average, world_size=3)


def bias_before_weights():
    """All ranks send in one order; it need not be that of the parameters."""
    def average(model):
        for _, p in sorted(model.named_parameters(), key=lambda item: item[1].numel()):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    return by_hand(average)


def hooks_on_parameters():
    def make_model():
        model, optimizer = sgd_mlp()

        def mean(grad):
            grad = grad.clone()
            dist.all_reduce(grad)
            return grad / dist.get_world_size()
        for p in model.parameters():
            p.register_hook(mean)
        return model, optimizer
    return {**by_hand(lambda model: None), "make_model": make_model}


def hooks_after_accumulation():
    """The optimizer's step is in backward, a parameter at a time, after its mean."""
    def make_model():
        model = mlp()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(p):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            optimizers[p].step()
            p.grad = None
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        return model

    def step(model, X, y):
        F.cross_entropy(model(part(X)), part(y)).backward()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def weights_averaged():
    """Plain SGD without momentum: the mean of the weights is a step with the mean."""
    def make_model():
        model = mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(part(X)), part(y)).backward()
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p)
                p /= dist.get_world_size()
    return {"make_model": make_model, "make_batch": rows(12), "step": step,
            "world_size": 3}


def vector_of_weights_averaged():
    def make_model():
        model = mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        optimizer.step()
        vector = parameters_to_vector(model.parameters()).detach()
        dist.all_reduce(vector)
        vector_to_parameters(vector / dist.get_world_size(), model.parameters())
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def started_from_rank_0():
    """Every rank draws its own weights, then all take those of rank 0."""
    def make_model():
        model = mlp(seed=10 + dist.get_rank())
        for p in model.state_dict().values():
            dist.broadcast(p, src=0)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    def average(model):
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    return {**by_hand(average), "make_model": make_model}


def wrapped(wrap):
    def make_model():
        model = wrap(mlp())
        return model, torch.optim.Adam(model.parameters(), lr=0.01)
    return {**by_hand(lambda model: None), "make_model": make_model}


def course_naive():
    return wrapped(NaiveDDP)


def course_buckets():
    return wrapped(lambda net: BucketDDP(net, bucket_cap_mb=0.0005))


def course_overlap():
    return wrapped(lambda net: DDP(net, bucket_cap_mb=0.0005))


def only_in_a_subgroup():
    """A group of all ranks made by hand, and used for everything."""
    def make_model():
        group = dist.new_group(list(range(dist.get_world_size())))
        return (*sgd_mlp(), group)

    def step(model, optimizer, group, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad.mul_(1 / dist.get_world_size(group))
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def trainer_in_a_class():
    """A class that keeps model and optimizer, as trainers do."""
    class Trainer(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = mlp()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def run_batch(self, source, wanted):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(source), wanted)
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
            self.optimizer.step()
            return loss.item()

    def step(trainer, X, y):
        return trainer.run_batch(block(X), block(y))
    return {"make_model": Trainer, "make_batch": rows(8), "step": step}


RIGHT = {f.__name__: f for f in (
    each_gradient, divided_first, one_flat_bucket, flattened_by_torch, asynchronous,
    reduce_scatter_all_gather, reduce_then_broadcast, gathered_and_averaged, a_ring,
    bias_before_weights, hooks_on_parameters, hooks_after_accumulation,
    weights_averaged, vector_of_weights_averaged, started_from_rank_0,
    course_naive, course_buckets, course_overlap, only_in_a_subgroup,
    trainer_in_a_class)}
