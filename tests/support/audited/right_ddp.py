"""Right programs: DistributedDataParallel, its options, and what goes with it."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from tests.support.audited.pieces import block, mlp, part, rows


def forward_backward_update(model, optimizer, X, y):
    optimizer.zero_grad()
    F.cross_entropy(model(block(X)), block(y)).backward()
    optimizer.step()


def ddp(net=mlp, **options):
    """Return a program of the plainest kind, with these options of DDP."""
    def make_model():
        model = DDP(net(), **options)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"make_model": make_model, "make_batch": rows(8),
            "step": forward_backward_update}


def static_graph():
    return ddp(static_graph=True)


def bucket_view():
    return ddp(gradient_as_bucket_view=True)


def tiny_buckets_on_four():
    return {**ddp(bucket_cap_mb=0.0001), "world_size": 4}


def with_hook(register):
    def make_model():
        model = DDP(mlp())
        register(model)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    return {**ddp(), "make_model": make_model}


def allreduce_hook():
    return with_hook(lambda model: model.register_comm_hook(
        None, default_hooks.allreduce_hook))


def fp16_hook():
    return with_hook(lambda model: model.register_comm_hook(
        dist.group.WORLD, default_hooks.fp16_compress_hook))


def power_sgd_hook():
    """Compress gradients to rank 1: of the sum over ranks, so as one device would."""
    return with_hook(lambda model: model.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1,
                                    start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook))


def own_hook():
    def register(model):
        def hook(state, bucket):
            flat = bucket.buffer().div_(dist.get_world_size())
            future = dist.all_reduce(flat, async_op=True).get_future()
            return future.then(lambda done: done.value()[0])
        model.register_comm_hook(None, hook)
    return with_hook(register)


class Branches(nn.Module):
    """One of two layers is used, the same on all ranks; `spare` never is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.left, self.right = nn.Linear(6, 8), nn.Linear(6, 8)
        self.spare = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, turn):
        return self.head(torch.relu((self.left, self.right)[turn % 2](x)))


def unused_parameters():
    def make_model():
        model = DDP(Branches(), find_unused_parameters=True)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def make_batch(t):
        return (*rows(8)(t), t)

    def step(model, optimizer, X, y, t):
        optimizer.zero_grad()
        F.cross_entropy(model(part(X), t), part(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


def ranks_that_use_other_branches():
    """Experts with a fixed place: a row's number says which layer it uses."""
    class Two(Branches):
        def forward(self, x, which):
            out = x.new_zeros(len(x), 8)
            for i, layer in enumerate((self.left, self.right)):
                if (which == i).any():
                    out[which == i] = layer(x[which == i])
            return self.head(torch.relu(out))

    def make_model():
        model = DDP(Two(), find_unused_parameters=True)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def make_batch(t):
        X, y = rows(8)(t)
        return X, y, torch.arange(8) // 4

    def step(model, optimizer, X, y, which):
        optimizer.zero_grad()
        F.cross_entropy(model(block(X), block(which)), block(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": make_batch, "step": step}


class Checkpointed(nn.Module):
    """Compute the body again in backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.1),
                                  nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def activation_checkpointing():
    return ddp(Checkpointed)


def a_whole_step_in_ddp():
    """The module that DDP wraps takes X and y and returns the loss."""
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, X, y):
            return F.cross_entropy(self.net(X), y)

    def make_model():
        model = DDP(WithLoss())
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        model(part(X), part(y)).backward()
        optimizer.step()
    return {"make_model": make_model, "make_batch": rows(8), "step": step}


def fsdp2():
    def make_model():
        net = mlp()
        for layer in (net[0], net[-1]):
            fully_shard(layer)
        fully_shard(net)
        return net, torch.optim.AdamW(net.parameters(), lr=0.01)
    return {**ddp(), "make_model": make_model}


class NormOverAllRanks(nn.Module):
    """Do what torch's SyncBatchNorm does, which wants a GPU; rows are dealt evenly."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            sums = torch.stack([x.mean(0), x.square().mean(0)])
            mean, square = dist_nn.all_reduce(sums) / dist.get_world_size()
            var = square - mean ** 2
            with torch.no_grad():
                self.running_mean.lerp_(mean, 0.1)
                self.running_var.lerp_(var, 0.1)
        return (x - mean) / (var + 1e-5).sqrt() * self.weight + self.bias


def sync_batch_norm():
    return ddp(lambda: mlp(NormOverAllRanks(16)))


def sync_batch_norm_and_clipping_on_four():
    def step(model, optimizer, X, y):
        optimizer.zero_grad()
        F.cross_entropy(model(block(X)), block(y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return {**ddp(lambda: mlp(NormOverAllRanks(16))), "step": step, "world_size": 4}


RIGHT = {f.__name__: f for f in (
    static_graph, bucket_view, tiny_buckets_on_four, allreduce_hook, fp16_hook,
    power_sgd_hook, own_hook, unused_parameters, ranks_that_use_other_branches,
    activation_checkpointing, a_whole_step_in_ddp, fsdp2, sync_batch_norm,
    sync_batch_norm_and_clipping_on_four)}
TOLERANCE = {"fp16_hook": 1e-3}  # gradients have 11 bits on their way
