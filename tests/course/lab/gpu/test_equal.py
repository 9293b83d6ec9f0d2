"""The device is the CPU here; tests/test_gpu.py makes the same checks on a GPU."""

import pytest
import torch

from course.lab.gpu import equal
from course.lab.ledger import methods
from course.lab.ledger.plan import Plan, places
from tests.support import on_device

CPU = torch.device("cpu")


def test_train_batch_takes_the_steps_of_the_cpu():
    on_device.step(CPU)


def test_a_step_that_is_not_the_cpus_is_seen(monkeypatch):
    real = equal.train_batch

    def off(X, y, device_params, devices, lr):
        return real(X, y, device_params, devices, lr * len(devices))
    monkeypatch.setattr(equal, "train_batch", off)
    assert equal.step(CPU, 1) == 0 and equal.step(CPU, 2) > 1e-4


def test_all_methods_share_the_device():
    on_device.ledger(CPU)


def test_a_device_that_ranks_share_goes_before_the_gpus_that_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given, dealt = (Plan(2, 1, 6, [3, 3], 0, 0.05, device) for device in (CPU, None))
    assert places(given, 2) == [CPU, CPU]
    assert places(dealt, 2) == [torch.device("cuda", i) for i in range(2)]


@pytest.mark.parametrize("gpus, device, ring, place, backend", [
    (0, None, False, CPU, "gloo"), (1, None, False, CPU, "gloo"),
    (2, None, False, None, "nccl"), (2, None, True, CPU, "gloo"),
    (2, torch.device("cuda", 0), False, torch.device("cuda", 0), "gloo"),
    (1, torch.device("cuda", 0), True, CPU, "gloo")])
def test_where_the_ledgers_processes_go(monkeypatch, gpus, device, ring, place, backend):
    asked = []

    def run_ranks(function, world_size, wrap, plan, shared, timeout, backend):
        asked.append((shared, backend))
        raise InterruptedError
    monkeypatch.setattr(methods, "run_ranks", run_ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(InterruptedError):
        methods.over_processes(methods.ring if ring else methods.ddp,
                               Plan(2, 1, 6, [3, 3], 0, 0.05, device))
    assert asked == [(place, backend)]
