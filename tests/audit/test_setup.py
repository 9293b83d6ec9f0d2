"""A snapshot of what a rank has set up, and the rules between the setups of ranks."""

import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from manual_dp.audit.settings import ask_setups
from manual_dp.audit.setup import snapshot
from tests.support.broken_training import net


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.1, **options)


def trained(*layers):
    """Return a model and an optimizer that has a state."""
    model = net(*layers)
    optimizer = adam(model)
    model(torch.ones(2, 5)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def codes(*setups, alone=None):
    return [f.code for f in ask_setups(setups, alone, 3)]


def made(change=lambda model, optimizer: None, *layers):
    """Return the setup of a trained model after a change to it."""
    model, optimizer = trained(*layers)
    with torch.no_grad():
        change(model, optimizer)
    return snapshot([model], [optimizer])


# what is noted

def test_a_setup_is_plain_and_small():
    setup = made()
    assert pickle.loads(pickle.dumps(setup)) == setup
    assert len(pickle.dumps(setup)) < 3000
    assert setup.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert setup.shapes[0] == (8, 5) and setup.dtypes[0] == "torch.float32"
    kind, [group] = setup.groups[0]
    assert (kind, group["lr"], group["betas"]) == ("Adam", 0.1, (0.9, 0.999))
    assert setup.held == setup.names
    assert {kind for kind, _ in setup.state} == {"exp_avg", "exp_avg_sq", "step"}


def test_several_models_and_optimizers_have_names_of_their_own():
    first, second = net(), net()
    setup = snapshot([first, second], [adam(first), adam(second)])
    assert setup.names[3:5] == ["0.2.bias", "1.0.weight"]
    assert setup.held == setup.names and len(setup.groups) == 2
    assert setup.unheld == []


def test_a_compiled_module_has_the_names_of_the_module():
    model = net()
    assert snapshot([torch.compile(model)]).names == snapshot([model]).names


@pytest.mark.parametrize("value, dtype", [
    (float("nan"), torch.float32), (float("inf"), torch.bfloat16),
    (float("nan"), torch.complex64)])
def test_what_is_not_finite_is_named(value, dtype):
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, 3, dtype=dtype))
    model.weight.data[1, 2] = value
    assert snapshot([model]).not_finite == ["weight"]


def test_numbers_that_are_large_and_a_mask_of_inf_are_finite():
    model = nn.Linear(64, 64, dtype=torch.float16)
    model.weight.data.fill_(60000)  # their sum is not
    model.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    assert snapshot([model]).not_finite == []
    model.mask[0, 0] = torch.nan
    assert snapshot([model]).not_finite == ["mask"]


def test_odd_tensors_do_no_harm():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(2, 2, device="meta"),
                          nn.Embedding(0, 3))
    setup = snapshot([model])
    assert len(setup.left_out) == 4 and codes(setup, snapshot([model])) == []


def test_other_things_are_noted():
    def others():
        model, optimizer = trained()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return [AveragedModel(model), scheduler, {"m": [torch.ones(8)], "n": torch.ones(2)},
                "text"]
    first, second = others(), others()
    assert codes(snapshot([net()], (), first), snapshot([net()], (), second)) == []
    second[2]["n"][0] = 2  # not shaped like weights: this may be each rank's own
    assert codes(snapshot([net()], (), first), snapshot([net()], (), second)) == []
    second[2]["m"][0][0] = 2
    [one] = ask_setups([snapshot([net()], (), first), snapshot([net()], (), second)])
    assert one.says == "2.dict.m.0 on rank 1 is not rank 0's"


# the rules

def test_equal_setups_have_no_finding():
    assert codes(made(), made(), made()) == []
    assert codes(made(), made(), alone=made()) == []


def no_more(model, optimizer):
    optimizer.param_groups[0]["params"].pop()


def a_half(which):
    def change(model, optimizer):
        held = optimizer.param_groups[0]["params"]
        gone = [p for p in held[1 - which::2] if optimizer.state.pop(p, True)]
        held[:] = [p for p in held if not any(p is one for one in gone)]
    return change


def other_average(model, optimizer):
    optimizer.state[model[3].weight]["exp_avg"][0, 0] += 1


def other_mean(model, optimizer):
    model[1].running_mean[0] = 7


def set_option(**options):
    return lambda model, optimizer: optimizer.param_groups[0].update(options)


@pytest.mark.parametrize("change, code, says", [
    (lambda model, _: model[0].requires_grad_(False), "frozen",
     "0.weight is frozen on rank 1, trained on rank 0; 1 more so"),
    (lambda model, _: model.eval(), "modes",
     "the model is in eval mode on rank 1, in train mode on rank 0; 4 more so"),
    (lambda model, _: model[1].eval(), "modes",
     "1 is in eval mode on rank 1, in train mode on rank 0"),
    (lambda model, _: model[0].weight.fill_(torch.nan), "not-finite",
     "NaN or inf on rank 1 in 0.weight"),
    (set_option(lr=0.2), "rates-differ", "lr is 0.2 on rank 1, 0.1 on rank 0"),
    (set_option(lr=torch.tensor(0.25)), "rates-differ",
     "lr is 0.25 on rank 1, 0.1 on rank 0"),
    (set_option(betas=(0.8, 0.999)), "settings",
     "betas is (0.8, 0.999) on rank 1, (0.9, 0.999) on rank 0"),
    (set_option(weight_decay=0.01), "settings",
     "weight_decay is 0.01 on rank 1, 0 on rank 0"),
    (other_average, "state-differs",
     "the optimizer's exp_avg of 3.weight on rank 1 is not rank 0's"),
    (other_mean, "buffers",
     "1.running_mean on rank 1 is not rank 0's when step 3 begins")])
def test_a_change_on_one_rank_is_a_finding(change, code, says):
    norm = nn.BatchNorm1d(8)
    same, other = made(lambda *_: None, norm), made(change, nn.BatchNorm1d(8))
    [one] = ask_setups([same, other, same], None, 3)
    assert (one.code, one.says, one.rank, one.step) == (code, says, 1, 3)


def test_another_optimizer_on_a_rank_is_a_finding():
    model = net()
    first, second = adam(model), torch.optim.SGD(model.parameters(), lr=0.1)
    [one] = ask_setups([snapshot([model], [first]), snapshot([model], [second])])
    assert one.says == "rank 1 has SGD of 1 groups, rank 0 Adam of 1 groups"
    [one] = ask_setups([snapshot([model], [first]), snapshot([model])])
    assert one.says == "rank 1 has no optimizer, rank 0 Adam of 1 groups"


@pytest.mark.parametrize("layer, says", [
    (nn.Linear(8, 9), "rank 1 has 6 parameters, rank 0 4, or other names or shapes"),
    (None, "0.weight (8, 5) torch.float64 on rank 1 is 0.weight (8, 5) torch.float32 "
           "on rank 0")])
def test_another_layout_is_all_that_is_said(layer, says):
    other = net(layer) if layer else net().double()
    [one] = ask_setups([snapshot([net()]), snapshot([other.eval()])])
    assert (one.code, one.says) == ("start-differs", says)


def test_a_parameter_that_no_optimizer_holds_is_a_finding():
    [one] = ask_setups([made(no_more), made(no_more)], None, 3)
    assert (one.code, one.says) == ("not-in-optimizer", "no optimizer holds 2.bias")
    assert (one.step, one.parameter) == (3, "2.bias")
    assert codes(made(a_half(0)), made(a_half(1))) == []  # each rank may update a part
    [one] = ask_setups([made(), made(no_more)], None, 3)
    assert (one.code, one.rank) == ("not-in-optimizer", 1)
    assert one.says == "the optimizer of rank 1 does not hold 2.bias, another rank's does"
    model = net()
    nothing = snapshot([model], [adam(net())])
    assert "holds none" in ask_setups([nothing])[0].says
    assert codes(snapshot([model])) == []  # no optimizer was seen
    model.requires_grad_(False)
    assert codes(snapshot([model], [adam(net())])) == []


def test_a_teacher_beside_the_model_needs_no_optimizer_but_a_critic_does():
    model, teacher = net(), net()
    assert codes(snapshot([model, teacher], [adam(model)])) == []
    found = ask_setups([snapshot([model, teacher], [adam(model), adam(model)])])
    assert [f.parameter for f in found] == ["1.0.weight"]


def test_options_are_compared_with_one_device_but_for_lr():
    def alone(**options):
        return codes(made(), made(), alone=made(set_option(**options)))
    assert alone(lr=0.7, initial_lr=0.7) == []
    assert alone(weight_decay=0.3) == alone(betas=(0.9, 0.99)) == ["settings"]
    [one] = ask_setups([made(), made()], made(set_option(weight_decay=0.3)))
    assert one.says == "weight_decay is 0 on 2 ranks, 0.3 on one"


def test_a_sharded_optimizer_is_compared_by_its_options_alone():
    class Sharded:  # as torch's ZeroRedundancyOptimizer
        _optim_constructor = torch.optim.Adam

    model, optimizer = trained()
    sharded = Sharded()
    sharded.param_groups, sharded.state = optimizer.param_groups, optimizer.state
    setup = snapshot([model], [sharded])
    assert setup.groups[0][0] == "Adam"
    assert (setup.state, setup.left_out) == ({}, ["the state of Sharded"])


def test_parameters_in_another_order_are_said_of_one_rank():
    def turned(model, optimizer):
        optimizer.param_groups[0]["params"].reverse()
    [one] = ask_setups([made(), made(turned), made(turned)], None, 3)
    assert (one.code, one.rank) == ("settings", 1)
    assert "another order" in one.says
