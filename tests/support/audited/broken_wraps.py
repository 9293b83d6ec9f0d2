"""Broken programs: what is done to a wrapped model: hooks, added layers, new wraps.

The ResNet of broken_resnet, and the regression of broken_hand, in other dress.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
)

from tests.support.audited.broken_hand import (
    flatten,
    grads,
    mean_of_flat,
    put_back,
    regression,
)
from tests.support.audited.broken_parts import (
    broken,
    broken2,
    dice,
    first,
    world,
    wrapped,
)
from tests.support.audited.broken_resnet import cross_entropy, nesterov, resnet


def with_hook(hook):
    def wrap(model):
        ddp = wrapped(model)
        ddp.register_comm_hook(None, hook)
        return ddp
    return wrap


def done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def sum_hook(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def local_hook(state, bucket):
    """Return the bucket as it is, to measure how long the network takes."""
    return done(bucket.buffer())


def twice_hook(state, bucket):
    bucket.buffer().div_(dist.get_world_size())
    return allreduce_hook(None, bucket)


def rank0_hook(state, bucket):
    work = dist.broadcast(bucket.buffer(), 0, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def largest_values_hook(state, bucket):
    """Send a tenth of the values, the largest, and drop the rest for good."""
    flat = bucket.buffer()
    if dist.get_world_size() > 1:
        bound = flat.abs().quantile(0.9)
        flat.mul_(flat.abs() >= bound)
    return allreduce_hook(None, bucket)


def half_hook(state, bucket):
    if dist.get_world_size() == 1:
        return done(bucket.buffer())
    return bf16_compress_hook(None, bucket)


def layer_appended(model):
    """Add a layer to a model that is wrapped already."""
    ddp = wrapped(model)
    torch.manual_seed(8)
    ddp.module.append(nn.Linear(4, 4))
    return ddp


def layer_before(model):
    """Add the same layer before the model is wrapped, as is right."""
    torch.manual_seed(8)
    return wrapped(model.append(nn.Linear(4, 4)))


def longer(wrap=layer_before, world_size=2):
    """Return the ResNet with another layer at its end."""
    return resnet(wrap=wrap, world_size=world_size)


def trunk_only(model):
    """Wrap the layers before the head, and not the head."""
    return nn.Sequential(wrapped(model[:-1]), model[-1])


def ignoring_the_head(model):
    """Tell DDP to ignore parameters that are trained all the same."""
    names = [name for name, _ in model[-1].named_parameters(prefix="5")]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, names)
    return wrapped(model)


def group_of_myself(model):
    """Wrap with a group that has no other rank in it."""
    rank, world_size = world()
    groups = [dist.new_group([r]) for r in range(world_size)]
    return wrapped(model, process_group=groups[rank])


def group_of_two(model):
    """Wrap with the machine's group, where all machines are meant."""
    rank, world_size = world()
    if world_size < 4:
        return wrapped(model)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return wrapped(model, process_group=groups[rank // 2])


def loss_times_world(logits, y):
    return cross_entropy(logits, y) * dist.get_world_size()


def decayed_on_rank0(model, optimizer):
    """Decay the weights by hand, after the mean, on one rank."""
    if first():
        for p in model.parameters():
            p.grad += 0.01 * p.detach()


def noise_by_rank(model, optimizer):
    """Add noise to the mean gradient, drawn by each rank for itself."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    if dist.get_world_size() > 1:
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=draw, dtype=p.dtype)
            p.grad += 1e-3 * noise


def head_at_another_rate(model):
    """Give rank 0's head ten times the rate."""
    head = list(model.module[-1].parameters())
    trunk = [p for layer in list(model.module)[:-1] for p in layer.parameters()]
    return nesterov(model, params=[{"params": trunk},
                                   {"params": head, "lr": 2.0 if first() else 0.2}])


# by hand

def own_share_of_params(model):
    """Let each rank update a share of the parameters, and send none."""
    rank, world_size = world()
    return torch.optim.SGD(list(model.parameters())[rank::world_size], lr=0.05,
                           momentum=0.9, weight_decay=1e-3)


def ring_one_short(model):
    """Pass the gradients round the ring once less than is needed."""
    rank, world_size = world()
    total = flatten(grads(model))
    passing = total.clone()
    for _ in range(world_size - 2):
        arriving = torch.empty_like(passing)
        receive = dist.irecv(arriving, (rank - 1) % world_size)
        dist.send(passing, (rank + 1) % world_size)
        receive.wait()
        total += arriving
        passing = arriving
    put_back(total / world_size, grads(model))


def every_second_time(model):
    model.seen = getattr(model, "seen", 0) + 1
    if model.seen % 2:
        mean_of_flat(model)


def tree_of_powers_of_two(model):
    """Sum with the rank at distance 1, which leaves out the last of three."""
    rank, world_size = world()
    flat = flatten(grads(model))
    partner = rank ^ 1
    if partner < world_size:
        other = torch.empty_like(flat)
        receive = dist.irecv(other, partner)
        dist.send(flat.clone(), partner)
        receive.wait()
        flat = (flat + other) / 2
    put_back(flat, grads(model))


def rounded_to_integers(model):
    """Send gradients as whole thousandths."""
    flat = flatten(grads(model))
    if dist.get_world_size() > 1:
        flat = (flat * 1000).round() / 1000
    dist.all_reduce(flat)
    put_back(flat / dist.get_world_size(), grads(model))


def median_of_ranks(model):
    """Take the median over ranks, which one bad rank does not spoil."""
    for g in grads(model):
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g)
        g.copy_(torch.stack(parts).median(0).values)


def signs(model):
    """Let ranks vote on each value's sign."""
    for g in grads(model):
        size = g.abs()
        if dist.get_world_size() > 1:
            g.sign_()
            dist.all_reduce(g)
            g.copy_(g.sign() * size)


def dice_by_rank(t, seed=0):
    return dice(t, seed + 10 * dist.get_rank())


def dice_of_no_seed(t, seed=0):
    draw = torch.Generator()
    draw.seed()
    return draw


BROKEN = {
    "hook sums": broken("sum", resnet, wrap=with_hook(sum_hook)),
    "hook does nothing": broken("not-synchronised", resnet, wrap=with_hook(local_hook)),
    "hook divides first": broken("averaged-twice", resnet, wrap=with_hook(twice_hook)),
    "hook sends rank 0's": broken("one-rank", resnet, wrap=with_hook(rank0_hook)),
    "hook drops small values": broken("gradient", resnet,
                                      wrap=with_hook(largest_values_hook)),
    "hook sends half": broken("gradient", resnet, wrap=with_hook(half_hook)),
    "layer appended after the wrap": broken("not-synchronised", longer,
                                            wrap=layer_appended),
    "head left out of the wrap": broken("not-synchronised", resnet, wrap=trunk_only),
    "head ignored by DDP": broken("not-synchronised", resnet, wrap=ignoring_the_head),
    "group of one": broken("not-synchronised", resnet, wrap=group_of_myself),
    "group of a machine": broken2("not-synchronised rank-left-out", resnet,
                                  world_size=4, wrap=group_of_two),
    "loss times world size": broken("sum", resnet, loss=loss_times_world),
    "decayed by hand on rank 0": broken2("replicas-differ gradient", resnet,
                                         before=decayed_on_rank0),
    "noise in each rank's gradient": broken2("replicas-differ gradient", resnet,
                                             before=noise_by_rank),
    "rank 0's head at another rate": broken("rates-differ", resnet,
                                            optimize=head_at_another_rate),
    "share of the parameters, not sent": broken2(
        "not-in-optimizer replicas-differ", regression, optimize=own_share_of_params),
    "ring one pass short": broken2("rank-left-out not-synchronised", regression,
                                   world_size=3, sync=ring_one_short),
    "averaged every second time": broken("not-synchronised", regression,
                                         sync=every_second_time),
    "pairs of three": broken2("not-synchronised rank-left-out", regression,
                              world_size=3, sync=tree_of_powers_of_two),
    "sent as whole thousandths": broken("gradient", regression,
                                        sync=rounded_to_integers),
    "median of ranks": broken("gradient", regression, world_size=3,
                              sync=median_of_ranks),
    "signs by vote": broken2("gradient not-synchronised", regression, sync=signs),
    "batch drawn by rank": broken("batches-differ", regression, draw=dice_by_rank),
    "batch drawn without a seed": broken("batches-differ", regression,
                                         draw=dice_of_no_seed),
}
