"""What ranks should have in common is one flat dict, and comparing dicts is enough."""

import copy

import pytest
import torch
from torch import nn

from manual_dp.audit import state
from manual_dp.audit.state import differ


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained(make=torch.optim.Adam, **options):
    net = network()
    optimizer = make(net.parameters(), lr=0.1, **options)
    net(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    return net, optimizer


def told(change):
    """Return what differs between a rank and one that `change` has changed."""
    ranks = trained()
    others = copy.deepcopy(ranks)
    change(*others)
    return [
        (f.code, f.says, f.rank)
        for f in differ(
            [
                state.of_model(net) | state.of_options(optimizer)
                for net, optimizer in (ranks, others)
            ]
        )
    ]


CHANGES = {
    "nothing": (lambda net, opt: None, None, ""),
    "frozen": (
        lambda net, opt: net[2].weight.requires_grad_(False),
        "settings",
        "requires_grad of 2.weight is False on rank 1, True on rank 0",
    ),
    "eval": (lambda net, opt: net[1].eval(), "settings", "train mode of 1 is False"),
    "statistics": (
        lambda net, opt: net[1].running_mean.add_(1),
        "buffers",
        "1.running_mean on rank 1 is not rank 0's",
    ),
    "lr": (
        lambda net, opt: opt.param_groups[0].update(lr=0.2),
        "settings",
        "lr of group 0 is 0.2 on rank 1, 0.1 on rank 0",
    ),
    "lr is None": (
        lambda net, opt: opt.param_groups[0].update(lr=None),
        "settings",
        "lr of group 0 is None on rank 1",
    ),
    "betas": (
        lambda net, opt: opt.param_groups[0].update(betas=(0.8, 0.9)),
        "settings",
        "betas of group 0",
    ),
    "how it computes": (
        lambda net, opt: opt.param_groups[0].update(foreach=True),
        None,
        "",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_set_up_otherwise_is_named(name):
    change, code, words = CHANGES[name]
    found = told(change)
    assert [one[0] for one in found] == ([code] if code else [])
    assert not code or words in found[0][1] and found[0][2] == 1


def test_equal_nans_are_no_difference():
    assert [*differ([{("settings", "x"): float("nan")}] * 2)] == []


def test_numbers_are_told_in_as_few_digits_as_tell_them_apart():
    assert state.shown(0.1 + 0.2, 0.1) == ("0.3", "0.1")
    assert state.shown(0.1 + 0.2, 0.3) == ("0.30000000000000004", "0.3")
    assert state.shown(True, 1) == ("True", "1")


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def no_sync(self):
        """Be a wrapper."""

    def forward(self, X):
        return self.module(X)


def test_the_module_in_wrappers_is_found():
    net = network()
    assert state.unwrapped(net) is net
    assert state.unwrapped(Wrapper(Wrapper(net))) is net
    assert state.unwrapped(torch.compile(Wrapper(net), backend="eager")) is net
    scripted = torch.jit.script(nn.Linear(1, 1))
    assert state.unwrapped(scripted) is scripted


def test_tensors_beside_the_model_have_a_name():
    net = network()
    scale = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*net.parameters(), scale], 0.1)
    named = state.named([net], [optimizer])
    assert named["tensor 0 of shape [], beside the model"] is scale and len(named) == 7
    assert [*state.named([net, net])][0] == "Sequential 1: 0.weight"


def test_a_buffer_that_is_sent_is_told_from_one_that_each_rank_keeps():
    net = network()
    net.register_buffer("codes", torch.ones(3))
    wrapper = Wrapper(net)
    assert ("buffers", "codes") in state.of_model(wrapper)
    wrapper.broadcast_buffers = True
    assert ("sent", "codes") in state.of_model(wrapper)
