"""Both sides of a row sum the same tensors, of the size that the row names."""

import sys
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from manual_dp.lab.bench import ROWS, turns
from manual_dp.lab.bench import sums as page
from manual_dp.lenet import init_params
from manual_dp.ranks import run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_both_sides_of_allreduce_lenet_sum_every_gradient_of_four_ranks(tiny, monkeypatch):
    sizes = {"ours": [], "theirs": []}

    def counting(side):
        return lambda tensors: sizes[side].append([t.numel() for t in tensors])
    monkeypatch.setattr(page, "allreduce", counting("ours"))
    monkeypatch.setattr(page.book, "allreduce", counting("theirs"))
    tiny("allreduce-lenet")
    assert sizes["ours"][0] == [sum(p.numel() for p in init_params())] * 4
    assert [sum(rank) for rank in zip(*sizes["theirs"][:8])] == sizes["ours"][0]


def testbig_tensors_are_four_of_the_size_that_the_row_names():
    seen = []
    setup = SimpleNamespace(numbers=2**10, device=torch.device("cpu"))
    what, ours, theirs = page.big(seen.append, setup)
    ours(), theirs()
    assert what.startswith("4 x 0.00391 MiB / ")
    assert [t.numel() * t.element_size() / 2**20 for t in seen[0]] == [2**-8] * 4


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
