"""A step whose optimizer runs forward and backward is watched like any other."""

import contextlib
import io

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import watch
from manual_dp.audit.closure import at_update
from manual_dp.ranks import run_ranks
from tests.support.broken_training import mean_loss, net, rows, sgd

X, y = rows(24)(0)


def in_closures(make, mistake, by_keyword):
    """Take four steps as Lightning does; return rank 0's findings of the first three."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, optimizer = make(DistributedDataParallel(net()))
    with contextlib.redirect_stdout(io.StringIO()):
        seen = watch(model, optimizer)
        for step in range(4):
            mine = torch.arange(6 * step, 6 * step + 6)[rank::n]

            def closure(mine=mine):
                optimizer.zero_grad()
                loss = mean_loss(model, X[mine].float(), y[mine])
                loss.backward()
                if mistake and rank:
                    next(model.parameters()).grad.mul_(2)
                return loss
            optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        seen.finish()
    return seen.report and [finding.code for finding in seen.report.findings]


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_right_step_in_a_closure_has_no_finding(by_keyword):
    assert run_ranks(in_closures, 2, sgd, False, by_keyword)[0] == []


def test_a_mistake_in_a_closure_is_seen():
    assert run_ranks(in_closures, 2, sgd, True, True)[0] != []


def call(optimizer, *args, **kwargs):
    """Hand a step to `at_update`; return the order of things and the closure's value."""
    order = []
    kwargs = {name: (lambda: order.append("closure") or 5) for name in kwargs}
    args = [lambda: order.append("closure") or 5 for _ in args]
    changed = at_update(lambda one: order.append(one), optimizer, (optimizer, *args),
                        kwargs)
    value = None
    if changed:
        (_, closure), rest = changed
        value = closure()
        assert rest == {}
    return order, value


def test_the_update_is_told_after_the_closure_where_there_is_one():
    weight = [torch.nn.Parameter(torch.ones(1))]
    adam, lbfgs = torch.optim.Adam(weight), torch.optim.LBFGS(weight)
    assert call(adam) == ([adam], None)
    assert call(adam, 1) == call(adam, closure=1) == (["closure", adam], 5)
    assert call(lbfgs, 1) == ([lbfgs], None)  # it may call the closure twenty times


def test_an_optimizer_of_ones_own_is_noted_from_the_outside():
    class Mine(torch.optim.SGD):
        pass
    mine = Mine([torch.nn.Parameter(torch.ones(1))], 0.1)
    assert call(mine, 1) == ([mine], None)
