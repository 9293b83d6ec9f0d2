"""Each kind of DDP by hand against torch's, and against arithmetic."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.ranks import DDP, Bucket, BucketDDP, NaiveDDP, run_ranks

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

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.2, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
}
SIZES = [[6, 6, 6, 6], [1, 7, 0, 4]]  # rows by rank: even, and uneven; rank 2 has none
TRAINED = [WRAPS[0], WRAPS[1], WRAPS[2], WRAPS[-1]]


def images(count):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(count, 1, 6, 6, dtype=torch.float64, generator=generator)
    return X, torch.randint(3, (count,), generator=generator)


def seeing():
    return filled(
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(64, 8),
            nn.Tanh(),
            nn.Linear(8, 3),
        )
    )


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ten_steps_are_torchs_and_those_of_one_device(world_size, optimizer):
    def train(model, X, y, factor):
        step = OPTIMIZERS[optimizer](model.parameters())
        for _ in range(10):
            step.zero_grad()
            (F.cross_entropy(model(X), y, reduction="sum") * factor).backward()
            step.step()
        return [p.detach() for p in model.parameters()]

    def rank_function():
        results = []
        for sizes in SIZES:
            n = sum(sizes[:world_size])
            X, y = (
                tensor.split(sizes[:world_size])[dist.get_rank()]
                for tensor in images(n)
            )
            for wrap in TRAINED:
                results.append(train(wrap(seeing()), X, y, world_size / n))
        return results

    by_rank = run_ranks(rank_function, world_size)
    for i, sizes in enumerate(SIZES):
        n = sum(sizes[:world_size])
        one_device = train(seeing(), *images(n), 1 / n)
        start = [p.detach() for p in seeing().parameters()]
        assert min((p - q).abs().max() for p, q in zip(one_device, start)) > 1e-2
        for rank in range(world_size):
            runs = by_rank[rank][4 * i : 4 * i + 4]
            for kind, ours in enumerate(runs):
                close(ours, one_device)
                close(ours, runs[-1])
                assert all(map(torch.equal, ours, by_rank[0][4 * i + kind]))


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_gradient_is_the_mean_of_the_ranks_gradients(world_size):
    # rank r's gradient is 10^r: they make 1, 5.5, 37, ... 1111111 / 7
    def rank_function():
        results = []
        for wrap in WRAPS:
            layer = nn.Linear(2, 1, bias=False).double()
            model = wrap(layer)
            model(torch.full((1, 2), 10.0 ** dist.get_rank()).double()).sum().backward()
            results.append(layer.weight.grad)
        return results

    mean = torch.full((1, 2), int("1" * world_size) / world_size, dtype=torch.float64)
    for results in run_ranks(rank_function, world_size):
        for grad in results:
            torch.testing.assert_close(grad, mean)


# scenarios: the rank does this with each kind, and sees what torch's sees


class Odd(nn.Module):
    """A scalar, an empty parameter, and layers used in another order than registered."""

    def __init__(self):
        super().__init__()
        self.scale, self.none = (
            nn.Parameter(torch.ones(())),
            nn.Parameter(torch.ones(0, 2)),
        )
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, X, order=(2, 0, 3, 1)):
        for i in order:
            X = torch.tanh(self.layers[i](X))
        return X * self.scale + self.none.sum()


def another_order_on_each_rank(wrap):
    model, seen = wrap(filled(Odd())), []
    orders = [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)]
    for number in range(3):
        model(rows(number), orders[(dist.get_rank() + number) % 3]).sum().backward()
        seen += grads(model)
    return seen


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


@pytest.mark.parametrize("scenario", [another_order_on_each_rank, batch_norm])
def test_gradients_and_buffers_are_torchs(scenario):
    for theirs in as_torch(scenario, world_size=3):
        assert any(
            tensor is not None and tensor.abs().max() > 1e-3 for tensor in theirs
        )


def test_gradients_that_lie_otherwise_in_memory_on_one_rank_are_averaged_by_place():
    # torch's DDP refuses this; gloo would add numbers of different places
    def rank_function():
        results = []
        for wrap in WRAPS[:-1]:
            layers = filled(
                nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 2))
            )
            if dist.get_rank() == 1:
                layers.to(memory_format=torch.channels_last)
            model, X = wrap(layers), rows(1, 3, 72).view(3, 2, 6, 6)
            alone = torch.autograd.grad(
                layers(X).square().sum(), list(layers.parameters())
            )
            model(X).square().sum().backward()
            results.append((grads(model), alone))
        return results

    for one, other in zip(*run_ranks(rank_function, 2)):
        assert one[1][0].stride() != other[1][0].stride()
        expected = [(p + q) / 2 for p, q in zip(one[1], other[1])]
        close(one[0], expected)
        close(other[0], expected)


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
    ((0, 1, 2), (0, 1, 2)),
    ((0,), (0,)),
    ((2, 1), (0,)),
    ((1,), (1,)),
]


@pytest.mark.parametrize(
    "clear",
    [
        lambda model: None,
        lambda model: model.zero_grad(set_to_none=True),
        lambda model: model.zero_grad(set_to_none=False),
    ],
    ids=["gradients add up", "None", "zeros"],
)
def test_unused_parameters_are_treated_as_torch_treats_them(clear):
    first, second = as_torch(lambda wrap: run_branches(wrap, PLAN, clear))
    # None where neither rank used it yet; from then on the ranks hold the same
    assert [grad is None for grad in first[:6]] == [False] * 4 + [True] * 2
    close(first, second)


def unused_after_no_sync(wrap):
    model = wrap(filled(Branches()), find_unused_parameters=True)
    with model.no_sync():
        model(rows(1), [dist.get_rank(), 2]).sum().backward()
    seen = grads(model)
    for number in (2, 3):
        model(rows(number), [0]).sum().backward()
        seen += grads(model)
    return seen


def gradients_from_elsewhere(wrap):
    model = wrap(filled(Branches()), find_unused_parameters=True)
    model.module.branches[2].weight.grad = rows(9, 2)
    model.module.branches[1].weight.grad = rows(8, 2)
    seen = []
    for number, names in enumerate([[0], [0], [0, 1]]):
        model(rows(number), names).sum().backward()
        seen += grads(model)
    return seen


@pytest.mark.parametrize("scenario", [unused_after_no_sync, gradients_from_elsewhere])
def test_gradients_that_are_there_already_are_treated_as_torch_treats_them(scenario):
    as_torch(scenario)


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
            recorded(wrap)
            for wrap in (
                lambda layers: BucketDDP(layers, SMALL),
                lambda layers: DDP(layers, SMALL),
                lambda layers: DDP(layers, 1e-4),
                DDP,
            )
        ]

    over = "backward is over"
    for after, during, pairs, one in run_ranks(rank_function, 2):
        assert after == [
            "ready 2.weight",
            "ready 1.weight",
            "ready 0.weight",
            "start 2.weight",
            "start 1.weight",
            "start 0.weight",
            over,
        ]
        assert during == [
            "ready 2.weight",
            "start 2.weight",
            "ready 1.weight",
            "start 1.weight",
            "ready 0.weight",
            "start 0.weight",
            over,
        ]
        assert pairs == [
            "ready 2.weight",
            "ready 1.weight",
            "start 2.weight 1.weight",
            "ready 0.weight",
            "start 0.weight",
            over,
        ]
        assert one == [
            "ready 2.weight",
            "ready 1.weight",
            "ready 0.weight",
            "start 2.weight 1.weight 0.weight",
            over,
        ]


def test_buckets_start_in_one_order_where_gradients_get_ready_in_another():
    def rank_function():
        events, start = [], Bucket.start

        def noted(bucket):
            events.append(model.names[bucket.params[0]])
            start(bucket)

        Bucket.start = noted
        model = DDP(filled(Odd()), SMALL)
        for order in [(0, 1, 2, 3), (3, 2, 1, 0)][:: 1 - 2 * dist.get_rank()]:
            model(rows(1), order).sum().backward()
        return events

    first, second = run_ranks(rank_function, 2)
    names = [name for name, _ in Odd().named_parameters()][::-1]
    assert (
        names.pop() == "scale"
    )  # shares the bucket of `none`, whose 0 bytes did not fill it
    assert first == second == 2 * names


@pytest.mark.parametrize("kind", [BucketDDP, DDP])
@pytest.mark.parametrize("cap", [0, -1, float("nan"), "25", None])
def test_a_cap_that_is_no_size_is_refused(kind, cap):
    layers = net()
    with pytest.raises(ValueError, match=f"bucket_cap_mb must be MiB > 0, got {cap!r}"):
        kind(layers, bucket_cap_mb=cap)
    assert not layers[0].weight._post_accumulate_grad_hooks
