"""What ranks should have in common is one flat dict, and comparing dicts is enough."""

import copy

import pytest
import torch
from torch import nn

from manual_dp.audit import state
from manual_dp.audit.rules import differ


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained(make=torch.optim.Adam, **options):
    net = network()
    optimizer = make(net.parameters(), lr=0.1, **options)
    net(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    return net, optimizer


def of(net, optimizer, *others):
    names = {id(p): name for name, p in net.named_parameters()}
    found = state.of_model(net) | state.of_optimizer(optimizer, "", names)
    for one in others:
        found |= state.of_other(one, "", {(4, 3), (4,)})
    return found


def told(change, *more):
    """Return what differs between a rank and one that `change` has changed."""
    net, optimizer = trained()
    other = copy.deepcopy((net, optimizer, *more))
    change(*other)
    return [(f.code, f.says, f.rank) for f in differ([of(net, optimizer, *more),
                                                     of(*other)])]


CHANGES = {
    "nothing": (lambda net, opt: None, None, ""),
    "frozen": (lambda net, opt: net[2].weight.requires_grad_(False), "settings",
               "requires_grad of 2.weight is False on rank 1, True on rank 0"),
    "eval": (lambda net, opt: net[1].eval(), "settings", "train mode of 1 is False"),
    "statistics": (lambda net, opt: net[1].running_mean.add_(1), "buffers",
                   "1.running_mean on rank 1 is not rank 0's"),
    "lr": (lambda net, opt: opt.param_groups[0].update(lr=.2), "settings",
           "lr of group 0 is 0.2 on rank 1, 0.1 on rank 0"),
    "lr is None": (lambda net, opt: opt.param_groups[0].update(lr=None), "settings",
                   "lr of group 0 is None on rank 1"),
    "betas": (lambda net, opt: opt.param_groups[0].update(betas=(.8, .9)), "settings",
              "betas of group 0"),
    "moments": (lambda net, opt: opt.state[net[0].weight]["exp_avg"].mul_(2),
                "state-differs", "exp_avg of 0.weight on rank 1"),
    "how it computes": (lambda net, opt: opt.param_groups[0].update(foreach=True), None,
                        ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_set_up_otherwise_is_named(name):
    change, code, words = CHANGES[name]
    found = told(change)
    assert [one[0] for one in found] == ([code] if code else [])
    assert not code or words in found[0][1] and found[0][2] == 1


def test_an_average_of_weights_is_compared():
    average = torch.optim.swa_utils.AveragedModel(network())
    found = told(lambda net, opt, one: one.module[0].weight.data.add_(1), average)
    assert [one[0] for one in found] == ["state-differs"]
    average = [torch.ones(4, 3), torch.ones(7)]  # of no parameter's shape: not compared
    assert told(lambda net, opt, one: one[1].add_(1), average) == []
    assert told(lambda net, opt, one: one[0].add_(1), average)[0][0] == "state-differs"


def test_a_scheduler_is_compared_by_its_epoch():
    net, optimizer = trained()
    one, other = (torch.optim.lr_scheduler.StepLR(optimizer, 10) for _ in range(2))
    other.step()
    dicts = [state.of_other(schedule, "", ()) for schedule in (one, other)]
    assert [f.says for f in differ(dicts)] == [
        "StepLR['last_epoch'] on rank 1 is not rank 0's"]


def test_equal_nans_are_no_difference_and_missing_state_can_be_left_out():
    assert [*differ([{("settings", "x"): float("nan")}] * 2)] == []
    dicts = [{("state-differs", "x"): 1}, {}]
    assert len([*differ(dicts)]) == 1 and [*differ(dicts, common=True)] == []


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


def test_what_was_made_is_sorted_by_what_it_is():
    net, optimizer = trained()
    teacher, schedule = network(), {"beta": torch.ones(4)}
    assert state.parts([net, teacher, optimizer, schedule]) == (
        [net], [optimizer], [teacher, schedule])
    assert state.parts([net, teacher])[0] == [net]


def test_tensors_beside_the_model_have_a_name():
    net = network()
    scale = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*net.parameters(), scale], 0.1)
    named = state.named([net], [optimizer])
    assert named["tensor 0 beside the model"] is scale and len(named) == 7
    assert [*state.named([net, net])][0] == "0.0.weight"
