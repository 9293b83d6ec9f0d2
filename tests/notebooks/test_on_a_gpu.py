"""What is shown on a GPU, on the CPU; tests/test_gpu.py runs the same on GPUs."""

import pytest
import torch
from programs import on_a_gpu

CPU = torch.device("cpu")


def test_train_batch_takes_the_steps_of_the_cpu_and_another_step_is_seen(monkeypatch):
    assert (
        max(on_a_gpu.step([CPU] * n, rows) for n, rows in ((1, 5), (2, 9), (3, 2)))
        <= 1e-12
    )
    real = on_a_gpu.train_batch

    def off(X, y, device_params, devices, lr):
        return real(X, y, device_params, devices, lr * len(devices))

    monkeypatch.setattr(on_a_gpu, "train_batch", off)
    assert on_a_gpu.step([CPU]) == 0 and on_a_gpu.step([CPU] * 2) > 1e-4


def test_two_ranks_share_a_device():
    assert on_a_gpu.sums([CPU] * 2) is True
    assert on_a_gpu.ddp([CPU] * 2) <= 1e-12


def test_a_step_with_an_inf_is_skipped_on_every_rank_and_halves_the_scale():
    assert on_a_gpu.skip([CPU] * 2) == [(False, 0.5), (False, 0.5)]


@pytest.mark.parametrize("mixed", [False, True])
def test_images_are_counted(mixed):
    rate, peak = on_a_gpu.images(CPU, "LeNet", 4, 2, mixed)
    assert rate > 0 and peak == 0


def test_the_report_has_a_figure_for_everything():
    found = on_a_gpu.report([CPU], networks=[("LeNet", 2)], steps=1)
    assert found["2 ranks sharing it: the sum is right"] is True
    assert found["2 ranks sharing it: DDP, off the CPU's"] <= 1e-12
    assert found["LeNet, 2 rows, cpu, mixed: images a second"] > 0
    assert not any("apart" in what for what in found)
