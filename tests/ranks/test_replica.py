import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.ranks import DDP, BucketDDP, RankError, run_ranks
from manual_dp.ranks.replica import Replica
from tests.support.exact import assert_each_holds

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


def test_all_start_from_the_numbers_of_rank_0():
    def rank_function():
        module = everything(dist.get_rank())
        if dist.get_rank() == 1:  # what is sent are numbers, not memory
            module.to(memory_format=torch.channels_last)
            module[2].weight.data = module[2].weight.data.t().contiguous().t()
        strides = [p.stride() for p in module.parameters()]
        same_module = DDP(module).module is module
        same_strides = strides == [p.stride() for p in module.parameters()]
        tensors = [*module.parameters(), *module.buffers()]
        return tensors, same_module, same_strides

    first = everything(0)
    expected = [*first.parameters(), *first.buffers()]
    for rank, (tensors, *same) in enumerate(run_ranks(rank_function, 3)):
        assert same == [True, True]
        assert_each_holds(tensors, expected, f"DDP on rank {rank}", "tensor")


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
        all_frozen,
        "rank 1 has 0.weight (4, 3) torch.float64 without gradient, rank 0 has "
        "0.weight (4, 3) torch.float64",
    ),
    (
        other_buffer,
        "rank 1 has 1.steps (1,) torch.float32 without gradient, rank 0 has "
        "nothing more",
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
        return told(DDP, net().requires_grad_(False))

    text = "ValueError: the module has no parameter that wants a gradient"
    assert run_ranks(rank_function, 2) == [text] * 2


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
        for _ in range(2):
            model(rows(0)).sum().backward()
            calls.append("backward is over")
        return calls

    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    (calls,) = run_ranks(rank_function, 1)
    for ready, then in (calls[:4], calls[4:6]), (calls[6:10], calls[10:]):
        assert sorted(ready) == sorted(names)
        assert then == [names, "backward is over"]


def test_arguments_and_output_are_the_modules():
    def rank_function():
        class Wants(nn.Linear):
            def forward(self, X, *, twice=False):
                return {"out": [super().forward(X) * (2 if twice else 1)]}

        layer = Wants(3, 2).double()
        plain = nn.Linear.forward(layer, rows(0))
        return torch.equal(DDP(layer)(rows(0), twice=True)["out"][0], 2 * plain)

    assert run_ranks(rank_function, 1) == [True]


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
        theirs, model = DistributedDataParallel(net(5)), DDP(net())
        results = [list(model.state_dict()) == list(theirs.state_dict())]
        results.append(str(model.load_state_dict(theirs.state_dict())))
        results.append(torch.equal(model.module[2].weight, net(5)[2].weight))
        results.append(str(theirs.load_state_dict(model.state_dict())))
        return results

    matched = "<All keys matched successfully>"
    assert run_ranks(rank_function, 2) == [[True, matched, True, matched]] * 2
