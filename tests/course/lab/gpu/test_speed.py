"""Images a second, of real steps; and on a clock that tests move."""

import torch

from course.lab.gpu import speed
from tests.support import on_device

CPU = torch.device("cpu")


def test_every_network_runs_in_full_and_in_mixed_precision():
    on_device.images(CPU)


def test_the_first_two_steps_do_not_count_and_the_device_is_waited_for(monkeypatch):
    now, costs = [0.0], iter([50, 50, 4, 2, 8])

    def wait(device):
        now[0] += next(costs)
    monkeypatch.setattr(speed, "wait", wait)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])
    assert speed.images(CPU, "LeNet", rows=6, steps=3) == 6 / 4
