"""Devices are dealt out in turn, and whatever takes devices names those that are none."""

import pytest
import torch

import manual_dp
from manual_dp import get_params, parallel, try_devices


@pytest.mark.parametrize(
    "gpus, devices",
    [
        (0, ["cpu", "cpu", "cpu"]),
        (1, ["cuda:0", "cuda:0", "cuda:0"]),
        (2, ["cuda:0", "cuda:1", "cuda:0"]),
        (4, ["cuda:0", "cuda:1", "cuda:2"]),
    ],
)
def test_gpus_are_dealt_out_in_turn_and_without_one_every_rank_gets_the_cpu(
    monkeypatch, gpus, devices
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert [str(device) for device in try_devices(3)] == devices


@pytest.mark.parametrize(
    "world_size, error, message",
    [
        (0, ValueError, "world_size must be at least 1, got 0"),
        (2.0, TypeError, r"world_size must be an integer, got 2\.0"),
        ("2", TypeError, "world_size must be an integer, got '2'"),
        (True, TypeError, "world_size must be an integer, got True"),
    ],
)
def test_refuses_what_counts_no_ranks(world_size, error, message):
    with pytest.raises(error, match=message):
        try_devices(world_size)


# devices that are none

X, y = torch.rand(4, 1, 28, 28), torch.arange(4)
TWO = [get_params(manual_dp.init_params("he"), "cpu") for _ in range(2)]
USES = {  # whatever takes devices, but scatter
    "split_batch": lambda them: manual_dp.split_batch(X, y, them),
    "train_batch": lambda them: manual_dp.train_batch(X, y, TWO, them, 0.1),
    "train": lambda them: manual_dp.train(them, 256, 0.2, data=([(X, y)], [(X, y)])),
    "evaluate_accuracy": lambda them: manual_dp.evaluate_accuracy(TWO, [(X, y)], them),
    "replicate": lambda them: parallel.replicate(torch.nn.Linear(2, 2), them),
    "DataParallel": lambda them: parallel.DataParallel(torch.nn.Linear(2, 2), them),
}


@pytest.mark.parametrize(
    "gpus, devices, error, message",
    [
        # a number of devices, as d2l's train takes it
        (2, 2, TypeError, "devices must be a list, see try_devices, got 2"),
        (2, "cpu", TypeError, "devices must be a list, see try_devices, got 'cpu'"),
        (2, [], ValueError, "devices is empty: need a device for each rank"),
        (2, ["cuda:0", "cuda:2"], ValueError, "cuda:2 is not here: torch finds 2 GPUs"),
        (2, ["cpu", "cuda:7"], ValueError, "device cuda:7 is not here"),
        (0, ["cuda"] * 2, ValueError, "device cuda is not here: torch finds 0 GPUs"),
    ],
)
def test_devices_that_are_none_are_named(monkeypatch, gpus, devices, error, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(error, match=message):
        manual_dp.scatter(X, devices)


@pytest.mark.parametrize("use", USES)
def test_whatever_takes_devices_refuses_what_is_no_list(use):
    with pytest.raises(TypeError, match="devices must be a list, .* got 2"):
        USES[use](2)


def test_a_replica_for_a_gpu_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="device cuda is not here: torch finds 0"):
        get_params([torch.zeros(2)], "cuda")
