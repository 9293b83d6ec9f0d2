import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, RankError, run_ranks
from manual_dp.ranks.replica import Replica

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KINDS = [NaiveDDP, BucketDDP, DDP]
CAP = {NaiveDDP: {}, BucketDDP: {"bucket_cap_mb": 1e-6}, DDP: {"bucket_cap_mb": 1e-6}}


def told(function, *args, **kwargs):
    """Return what the call raises, in words; None if it raises nothing."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def net(seed=0):
    """Return two layers of float64 weights that are the seed's."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    for p in layers.parameters():
        p.data = torch.rand(p.shape, dtype=torch.float64, generator=generator)
    return layers


def rows(rank, count=5, width=3):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.rand(count, width, dtype=torch.float64, generator=generator)


# the start


def everything(seed):
    """Return a module with all kinds of parameters and buffers, the seed's numbers."""
    module = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(2, 2)
    ).double()
    module[2].bias.requires_grad_(False)
    module.register_buffer("mask", torch.tensor([True, False, False]).roll(seed))
    module.register_buffer("here", torch.tensor([seed]), persistent=False)
    with torch.no_grad():
        for i, tensor in enumerate([*module.parameters(), *module.buffers()]):
            if tensor.is_floating_point():
                tensor.copy_(
                    torch.arange(tensor.numel()).view(tensor.shape) + 100 * i + seed / 8
                )
    return module


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_start_from_the_numbers_of_rank_0(world_size):
    def rank_function():
        results = []
        for kind in KINDS:
            module = everything(dist.get_rank())
            if dist.get_rank() == 1:  # what is sent are numbers, not memory
                module.to(memory_format=torch.channels_last)
                module[2].weight.data = module[2].weight.data.t().contiguous().t()
            strides = [p.stride() for p in module.parameters()]
            wrapped = kind(module, **CAP[kind])
            results.append(
                (
                    [*module.parameters(), *module.buffers()],
                    wrapped.module is module,
                    strides == [p.stride() for p in module.parameters()],
                )
            )
        return results

    first = everything(0)
    for results in run_ranks(rank_function, world_size):
        for tensors, same_module, same_strides in results:
            assert same_module and same_strides and len(tensors) == 11
            assert all(
                map(torch.equal, tensors, [*first.parameters(), *first.buffers()])
            )


def changed(change):
    """Return net, changed on rank 1 by `change`."""
    layers = net(dist.get_rank())
    if dist.get_rank() == 1:
        change(layers)
    return layers


def other_layer(layers):
    layers[2] = nn.Linear(4, 3).double()


def other_name(layers):
    layers.add_module("head", layers.pop(2))


def more(layers):
    layers.append(nn.Linear(2, 2).double())


def all_frozen(layers):
    layers.requires_grad_(False)


def other_buffer(layers):
    layers[1].register_buffer("steps", torch.zeros(1))


DIFFERENCES = [
    (
        other_layer,
        "rank 1 has 2.weight (3, 4) torch.float64, rank 0 has 2.weight (2, 4) "
        "torch.float64",
    ),
    (
        other_name,
        "rank 1 has head.weight (2, 4) torch.float64, rank 0 has 2.weight (2, 4) "
        "torch.float64",
    ),
    (more, "rank 1 has 3.weight (2, 2) torch.float64, rank 0 has nothing more"),
    (
        lambda layers: layers.float(),
        "rank 1 has 0.weight (4, 3) torch.float32, rank 0 has "
        "0.weight (4, 3) torch.float64",
    ),
    (
        lambda layers: layers[2].bias.requires_grad_(False),
        "rank 1 has 2.bias (2,) torch.float64 without gradient, rank 0 has 2.bias (2,) "
        "torch.float64",
    ),
    (
        all_frozen,
        "rank 1 has 0.weight (4, 3) torch.float64 without gradient, rank 0 has "
        "0.weight (4, 3) torch.float64",
    ),
    (
        other_buffer,
        "rank 1 has 1.steps (1,) torch.float32 without gradient, rank 0 has "
        "nothing more",
    ),
    (
        lambda layers: layers.pop(2),
        "rank 1 has nothing more, rank 0 has 2.weight (2, 4) torch.float64",
    ),
]


def test_ranks_whose_parameters_differ_are_told_so_on_every_rank():
    def rank_function():
        texts = []
        for change, _ in DIFFERENCES:
            layers = changed(change)
            before = [p.clone() for p in layers.parameters()]
            texts.append(told(DDP, layers))
            same = all(map(torch.equal, layers.parameters(), before))
            texts.append(
                same
                and not any(p._post_accumulate_grad_hooks for p in layers.parameters())
            )
        return texts

    for texts in run_ranks(rank_function, 3):
        assert texts[::2] == [f"ValueError: {text}" for _, text in DIFFERENCES]
        assert texts[1::2] == [True] * len(DIFFERENCES)


WAYS = [  # of rank 0, of rank 1, what differs
    ((DDP, {}), (DDP, {"bucket_cap_mb": 1}), "bucket_cap_mb=1", "bucket_cap_mb=25"),
    (
        (DDP, {}),
        (DDP, {"find_unused_parameters": True}),
        "find_unused_parameters=True",
        "find_unused_parameters=False",
    ),
    ((DDP, {}), (BucketDDP, {}), "wrapper=BucketDDP", "wrapper=DDP"),
    ((NaiveDDP, {}), (DDP, {}), "wrapper=DDP", "wrapper=NaiveDDP"),
]


def test_ranks_that_wrap_in_different_ways_are_told_so_on_every_rank():
    def rank_function():
        texts = []
        for *both, _, _ in WAYS:
            kind, options = both[dist.get_rank() % 2]
            texts.append(told(kind, net(), **options))
        return texts

    texts = [
        f"ValueError: rank 1 has {ones}, rank 0 has {zeros}" for *_, ones, zeros in WAYS
    ]
    assert run_ranks(rank_function, 3, timeout=20) == [texts] * 3


def test_a_module_with_nothing_to_learn_is_refused():
    def rank_function():
        return [
            told(kind, layers)
            for kind in KINDS
            for layers in (nn.Tanh(), net().requires_grad_(False))
        ]

    text = "ValueError: the module has no parameter that wants a gradient"
    assert run_ranks(rank_function, 2) == [[text] * 6] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_outside_a_rank_is_an_error(kind):
    with pytest.raises(ValueError, match="process group has not been initialized"):
        kind(net())


# averaging


def test_a_subclass_says_how_to_average():
    def rank_function():
        model = Replica(net())
        return told(model(rows(0)).sum().backward)

    assert run_ranks(rank_function, 1) == ["NotImplementedError: "]


def test_average_is_called_once_when_all_gradients_are_there():
    def rank_function():
        class Recorded(Replica):
            def ready(self, p):
                calls.append(self.names[p])

            def average(self, params):
                calls.append([self.names[p] for p in params])

        calls = []
        model = Recorded(net())
        model(rows(0)).sum().backward()
        calls.append("backward is over")
        model(rows(0)).sum().backward()
        return calls

    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    (calls,) = run_ranks(rank_function, 1)
    assert calls[4:6] == [names, "backward is over"] and calls[10:] == [names]
    assert sorted(calls[:4]) == sorted(calls[6:10]) == sorted(names)


def test_arguments_and_output_are_the_modules():
    def rank_function():
        class Wants(nn.Linear):
            def forward(self, X, *, twice=False):
                return {"out": [super().forward(X) * (2 if twice else 1)]}

        layer = Wants(3, 2).double()
        plain = nn.Linear.forward(layer, rows(0))
        results = [kind(layer)(rows(0), twice=True)["out"][0] for kind in KINDS]
        return [torch.equal(result, 2 * plain) for result in results]

    assert run_ranks(rank_function, 1) == [[True] * 3]


# errors of the learner's


def skipping(layers):
    """Let the forward of the layers leave out the first one."""
    layers.forward = lambda X: layers[2](rows(0, width=4))
    return layers


def test_a_rank_that_alone_leaves_parameters_out_is_named():
    def rank_function():
        layers = net()
        model = DDP(
            skipping(layers) if dist.get_rank() == 1 else layers, bucket_cap_mb=1e-6
        )
        model(rows(0)).sum().backward()

    with pytest.raises(
        RankError,
        match="rank 1 raised RuntimeError: backward did not reach 0.weight, 0.bias",
    ):
        run_ranks(rank_function, 2, timeout=20)


# copies


def test_the_state_dict_has_torchs_keys_and_goes_to_and_fro():
    def rank_function():
        theirs = DistributedDataParallel(
            nn.Sequential(net(5), nn.BatchNorm1d(2).double())
        )
        results = []
        for kind in KINDS:
            model = kind(nn.Sequential(net(), nn.BatchNorm1d(2).double()), **CAP[kind])
            results.append(list(model.state_dict()) == list(theirs.state_dict()))
            results.append(str(model.load_state_dict(theirs.state_dict())))
            results.append(torch.equal(model.module[0][2].weight, net(5)[2].weight))
            results.append(str(theirs.load_state_dict(model.state_dict())))
            results.append([name for name, _ in model.named_parameters()][0])
        return results

    matched = "<All keys matched successfully>"
    expected = [True, matched, True, matched, "module.0.0.weight"] * 3
    assert run_ranks(rank_function, 2) == [expected] * 2
