"""What is compared is what the rows name."""

import sys

import cloudpickle
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.lab.bench import ddp as page
from manual_dp.ranks import DDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def kinds():
    seen = []

    def step(net, shape):
        seen.append(net)
        return net
    page._step = step  # of this rank alone
    page._ddp_rank(lambda: nn.Linear(2, 2), (3, 2))
    first, _ = page._weak_rank(DDP, (1, 1, 28, 28))
    return [type(net).__name__ for net in seen], type(first).__name__


def test_what_is_compared_is_ours_and_torchs_and_one_rank_alone():
    names = [DDP.__name__, DistributedDataParallel.__name__, "LeNet", DDP.__name__]
    assert run_ranks(kinds, 2) == [(names, "LeNet"), (names, "function")]


def test_a_step_moves_the_weights():
    net = nn.Linear(2, 10)
    before = net.weight.detach().clone()
    page._step(net, (3, 2))()
    assert not torch.equal(net.weight, before)
