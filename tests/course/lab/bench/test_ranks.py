"""What ranks compare is what the rows name, of the size that they name."""

import sys
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course.lab.bench import ROWS, turns
from course.lab.bench import ranks as page
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


@pytest.mark.parametrize("name, mib", [("ring-2-1", 1), ("ring-4-64", 64)])
def test_the_ring_passes_as_many_mib_as_the_row_names(monkeypatch, name, mib):
    asked = []
    monkeypatch.setattr(turns, "run_ranks", lambda _, world_size, make, args, count,
                        timeout: asked.append((world_size, make, args)) or [])
    setup = SimpleNamespace(numbers=2**24)
    what, pairs = ROWS[name][0](setup)
    assert what == f"{name[5]} x {mib} MiB: ring / dist.all_reduce"
    assert pairs(3) == []
    [(world_size, make, [numbers])] = asked
    assert (str(world_size), make, 4 * numbers) == (name[5], page._ring_rank, mib * 2**20)


def sums(numbers):
    ours, theirs = page._ring_rank(numbers)
    tensors = [cell.cell_contents for cell in ours.__closure__]
    [tensor] = tensors
    tensor += dist.get_rank() + 1
    ours()
    first = tensor.tolist()
    theirs()
    return first, tensor.tolist()


def test_both_sides_of_a_ring_row_sum_the_same_tensor():
    assert run_ranks(sums, 2, 3) == [([3] * 3, [6] * 3)] * 2
