"""What needs two GPUs runs here on the CPU twice, and refuses where GPUs are missing."""

import pytest
import torch

from course.lab.gpu import pair
from tests.support import on_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", on_device.PAIRS)
def test_the_cpu_twice_will_do_to_run_it(check):
    check([CPU, CPU])


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("function", [pair.gpus, pair.nccl, pair.peer, pair.wrappers])
def test_fewer_than_two_gpus_are_refused(monkeypatch, function, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(RuntimeError, match=f"needs 2 GPUs, the machine has {count}"):
        function()


def test_of_many_gpus_the_first_two_are_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert pair.gpus() == [torch.device("cuda", 0), torch.device("cuda", 1)]


def test_a_copy_that_does_not_arrive_is_seen(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "copy_", lambda there, here: there.zero_())
    assert pair.peer([CPU, CPU], numbers=9, count=1)["right"] is False
