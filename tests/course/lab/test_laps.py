"""The parts of a step: each is where it says, and together they are a step."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course.lab.laps import PARTS, laps
from course.lab.ticks import slow_wire
from manual_dp.params import largest_difference
from manual_dp.ranks import run_ranks

SLEEP, LONG = 0.4, 200
X, Y = torch.rand(8, 5, generator=torch.Generator().manual_seed(0)).double(), torch.arange(8) % 3


def network():
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


def trained(steps):
    net, rank, n = network(), dist.get_rank(), dist.get_world_size()
    seconds = laps(net, torch.optim.SGD(net.parameters(), 0.5), [(X[rank::n], Y[rank::n])],
                   steps)
    return seconds, [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_steps_that_are_timed_are_those_of_one_device(world_size):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(3):  # one that is not timed, and two
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
    for seconds, weights in run_ranks(trained, world_size, 2, timeout=LONG):
        assert largest_difference(weights, list(net.parameters())) < 1e-12
        assert tuple(seconds) == PARTS and min(seconds.values()) > 0


class SlowSGD(torch.optim.SGD):
    def step(self):
        super().step()
        time.sleep(SLEEP)


def slow_loader():
    time.sleep(SLEEP)
    yield X, Y


class Loader:
    def __iter__(self):
        return slow_loader()


def with_a_slow(part):
    net, loader = network(), Loader() if part == "load" else [(X, Y)]
    if part == "forward":
        net.register_forward_hook(lambda *_: time.sleep(SLEEP))
    if part == "backward":
        net.register_full_backward_hook(lambda *_: time.sleep(SLEEP))
    kind = SlowSGD if part == "update" else torch.optim.SGD
    optimizer = kind(net.parameters(), 0.5)
    with slow_wire(18 * 8 / (SLEEP if part == "all-reduce" else 1e-6)):
        return laps(net, optimizer, loader, steps=1)


@pytest.mark.parametrize("part", PARTS)
def test_time_that_is_spent_in_a_part_counts_there(part):
    [seconds] = run_ranks(with_a_slow, 1, part, timeout=LONG)
    assert seconds[part] >= 0.9 * SLEEP
    others = [run_ranks(with_a_slow, 1, other, timeout=LONG)[0][part]
              for other in PARTS if other != part][:1]
    assert min(others) < seconds[part]
