"""Each kind of DDP by hand against torch's, and against arithmetic."""

import copy
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.ranks import DDP, Bucket, BucketDDP, NaiveDDP, run_ranks
from tests.support.exact import assert_each_holds

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = 1e-6  # MiB: every parameter is a bucket of its own
WRAPS = [
    NaiveDDP,
    lambda module, **options: BucketDDP(module, 1e-4, **options),
    lambda module, **options: DDP(module, SMALL, **options),
    lambda module, **options: DDP(module, 1e-4, **options),  # about 13 float64
    lambda module, **options: DDP(module, **options),
    DistributedDataParallel,
]


def rows(number, count=4, width=3):
    """Return rows that are rank's own: the same in every process for one number."""
    generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
    return torch.rand(count, width, dtype=torch.float64, generator=generator)


def filled(module):
    """Give the module float64 numbers that are the same in every process."""
    generator = torch.Generator().manual_seed(0)
    for p in module.double().parameters():
        p.data = torch.rand(p.shape, dtype=torch.float64, generator=generator) - 0.5
    return module


def net():
    return filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def grads(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def backward(model, number):
    model(rows(number)).square().sum().backward()
    return grads(model)


def as_torch(scenario, world_size=2):
    """Run `scenario` with each kind; return what torch's gave by rank, if all agree."""

    def rank_function():
        return [scenario(wrap) for wrap in WRAPS]

    by_rank = run_ranks(rank_function, world_size)
    for *ours, theirs in by_rank:
        for one in ours:
            close(one, theirs)
    return [results[-1] for results in by_rank]


def close(ours, theirs):
    assert len(ours) == len(theirs)
    for i, (one, other) in enumerate(zip(ours, theirs)):
        assert (one is None) == (other is None), i
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


# training


def train(model, shares, rank):
    """Take ten steps with rows of the sizes in `shares`, or with rank's part of them."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(sum(shares), 3, dtype=torch.float64, generator=generator)
    part, factor = X, 1 / len(X)
    if rank is not None:
        part, factor = X.split(shares)[rank], len(shares) / len(X)
    step = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(10):
        step.zero_grad()
        (model(part).square().sum() * factor).backward()
        step.step()
    return [p.detach() for p in model.parameters()]


def test_ten_steps_on_uneven_shards_are_those_of_one_device():
    shares = [1, 7, 0, 4]

    def rank_function():
        return [train(wrap(net()), shares, dist.get_rank()) for wrap in WRAPS[:-1]]

    by_rank = run_ranks(rank_function, 4)
    one_device = train(net(), shares, None)
    assert (
        min((p - q).abs().max() for p, q in zip(one_device, net().parameters())) > 0.01
    )
    for kind, first in enumerate(by_rank[0]):
        close(first, one_device)
        for i, parameter in enumerate(first):
            found = [runs[kind][i] for runs in by_rank]
            what = f"kind {kind} of WRAPS, parameter {i}"
            assert_each_holds(found, [parameter] * 4, what)


# scenarios: the rank does this with each kind, and sees what torch's sees


def batch_norm(wrap):
    layers = filled(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    model, seen = wrap(layers), []

    def look():
        seen.extend(buffer.double().clone() for buffer in layers.buffers())

    def forward(number):
        out = model(rows(number))
        look()
        return out.square().sum()

    for number in range(3):
        forward(number).backward()
    with torch.no_grad():
        forward(3)  # a forward in train mode updates, and the next does not send
        forward(4)
    forward(5).backward()
    model.eval()
    with torch.no_grad():
        forward(6)
    forward(7).backward()
    model.train()
    with model.no_sync():
        forward(8).backward()
        forward(9).backward()
        with torch.no_grad():
            forward(10)
    forward(11).backward()
    forward(12)
    forward(13).backward()
    return seen + grads(model)


def test_gradients_and_buffers_are_torchs():
    as_torch(batch_norm, world_size=3)


def test_gradients_that_lie_otherwise_in_memory_on_one_rank_are_averaged_by_place():
    # torch's DDP refuses this; gloo would add numbers of different places
    def rank_function():
        layers = net()
        if dist.get_rank() == 1:
            for p in layers.parameters():
                p.data = p.data.t().contiguous().t()
        return [
            (backward(wrap(copy.deepcopy(layers)), 1), backward(wrap(net()), 1))
            for wrap in WRAPS[:-1]
        ]

    for pairs in run_ranks(rank_function, 2):
        for otherwise, usual in pairs:
            close(otherwise, usual)


# find_unused_parameters


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))

    def forward(self, X, names):
        return sum(self.branches[i](X).square() for i in names)


def run_branches(wrap, plan, clear=lambda model: None):
    """Backward through the branches that `plan` names by step and rank."""
    model, seen = wrap(filled(Branches()), find_unused_parameters=True), []
    for number, step in enumerate(plan):
        clear(model)
        model(rows(number), step[dist.get_rank()]).sum().backward()
        seen += grads(model)
    return seen


PLAN = [
    ((0, 1), (0, 1)),
    ((0,), (0, 2)),
    ((1,), (2,)),
    ((2, 1), (0,)),
]


def test_unused_parameters_are_treated_as_torch_treats_them():
    first, second = as_torch(
        lambda wrap: run_branches(wrap, PLAN, lambda model: model.zero_grad())
    )
    # None where neither rank used it yet; from then on the ranks hold the same
    assert [grad is None for grad in first[:6]] == [False] * 4 + [True] * 2
    close(first, second)


def test_the_gradient_of_what_no_rank_used_keeps_its_bits():
    def rank_function():
        results = []
        for wrap in WRAPS[:-1]:
            seen = run_branches(wrap, [((0, 1, 2),) * 3, ((0,),) * 3, ((0,),) * 3])
            results.append(all(map(torch.equal, seen[2:6], seen[-4:])))
        return results

    assert (
        run_ranks(rank_function, 3) == [[True] * 5] * 3
    )  # a third, three times, is not one


# messages, buckets and overlap


def test_naive_sends_a_message_a_parameter_and_the_others_one_a_bucket():
    def rank_function():
        sent, all_reduce = [], dist.all_reduce

        def counted(tensor, *args, **kwargs):
            sent[-1].append(tensor.numel())
            return all_reduce(tensor, *args, **kwargs)

        dist.all_reduce = counted
        for wrap in WRAPS[:-1]:
            model = wrap(net())
            sent.append([])
            backward(model, 1)
            with model.no_sync():
                backward(model, 2)
        return sent

    # 12, 4, 8 and 2 numbers; 1e-4 MiB are 104.9 bytes, 13.1 numbers
    for sent in run_ranks(rank_function, 2):
        assert sent == [[12, 4, 8, 2], [14, 12], [2, 8, 4, 12], [14, 12], [26]]


def three_layers():
    return filled(nn.Sequential(*[nn.Linear(3, 3, bias=False) for _ in range(3)]))


def recorded(wrap):
    """Return in order which gradients were ready and which buckets were started."""
    model, events = wrap(three_layers()), []
    ready, start = model.ready, Bucket.start

    def noted_ready(p):
        events.append("ready " + model.names[p])
        ready(p)

    def noted_start(bucket):
        events.append("start " + " ".join(model.names[p] for p in bucket.params))
        start(bucket)

    model.ready, Bucket.start = noted_ready, noted_start
    backward(model, 1)
    events.append("backward is over")
    Bucket.start = start
    return events


def test_ddp_starts_a_bucket_while_backward_is_still_on_its_way():
    def rank_function():
        return [
            recorded(lambda layers, kind=kind: kind(layers, SMALL))
            for kind in (BucketDDP, DDP)
        ]

    ready = [f"ready {i}.weight" for i in (2, 1, 0)]
    start = [f"start {i}.weight" for i in (2, 1, 0)]
    in_turns = [event for pair in zip(ready, start) for event in pair]
    over = ["backward is over"]
    assert run_ranks(rank_function, 2) == [[ready + start + over, in_turns + over]] * 2


class InAnyOrder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, X, order):
        for i in order:
            X = torch.tanh(self.layers[i](X))
        return X


def test_buckets_start_in_one_order_where_gradients_get_ready_in_another():
    def rank_function():
        events, start = [], Bucket.start

        def noted(bucket):
            events.append(model.names[bucket.params[0]])
            start(bucket)

        Bucket.start = noted
        model = DDP(filled(InAnyOrder()), SMALL)
        for order in [(0, 1, 2, 3), (3, 2, 1, 0)][:: 1 - 2 * dist.get_rank()]:
            model(rows(1), order).sum().backward()
        return events

    first, second = run_ranks(rank_function, 2)
    names = [name for name, _ in InAnyOrder().named_parameters()][::-1]
    assert first == second == 2 * names


@pytest.mark.parametrize("cap", [0, float("nan"), "25"])
def test_a_cap_that_is_no_size_is_refused(cap):
    layers = net()
    with pytest.raises(ValueError, match=f"bucket_cap_mb must be MiB > 0, got {cap!r}"):
        DDP(layers, bucket_cap_mb=cap)
    assert not layers[0].weight._post_accumulate_grad_hooks
