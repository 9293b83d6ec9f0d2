"""Two ranks on one device, and a rank alone."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course.lab.gpu import sharing
from tests.support import on_device

CPU = torch.device("cpu")
# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_gloo_sums_and_the_sum_stays_on_the_device():
    on_device.sums(CPU)


def test_ddp_takes_the_steps_of_one_device():
    on_device.ddp(CPU)


def test_an_allreduce_is_timed_on_the_device_and_on_the_cpu():
    on_device.seconds(CPU)


class Unsynchronised(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, X):
        return self.module(X)


def test_ranks_that_do_not_average_are_seen(monkeypatch):
    monkeypatch.setitem(sharing.WRAPS, "none", Unsynchronised)

    def run_ranks(function, world_size, *args, **options):  # the ranks import WRAPS anew
        wraps, real = dict(sharing.WRAPS), sharing.run_ranks_of_ranks

        def with_wraps(*args):
            sharing.WRAPS.update(wraps)
            return function(*args)
        return real(with_wraps, world_size, *args, **options)
    monkeypatch.setattr(sharing, "run_ranks_of_ranks", sharing.run_ranks, raising=False)
    monkeypatch.setattr(sharing, "run_ranks", run_ranks)
    found = sharing.ddp([CPU] * 2, "gloo", "none", steps=1)
    assert not found["equal"] and found["stepwise"] > 1e-4


def test_a_wrong_sum_is_seen(monkeypatch):
    monkeypatch.setattr(sharing, "run_ranks", lambda *_, **__: [
        ([3, 4, 5, 6, 7], True), ([3, 4, 5, 6, 8], False)])
    assert sharing.sums([CPU] * 2, "gloo") == {"sum": False, "stays": False}


@pytest.mark.parametrize("name, ranks, through", [
    ("cpu", 1, "gloo"), ("cpu", 2, "gloo"), ("cuda:0", 1, "nccl"), ("cuda:0", 2, "gloo")])
def test_nccl_is_for_a_gpu_of_ones_own(name, ranks, through):
    assert sharing.backend(torch.device(name), ranks) == through


def test_both_sides_of_the_timing_sum_the_same_tensor(monkeypatch):
    tensors = []
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", tensors.append)
    for side in sharing._sides([None, CPU], 5):
        side()
    assert [tensor.tolist() for tensor in tensors] == [[0] * 5] * 2
    assert tensors[0].data_ptr() != tensors[1].data_ptr()
