"""Devices are dealt out in turn; those that are none are named."""

import pytest
import torch

from manual_dp import get_params, scatter, try_devices


@pytest.mark.parametrize(
    "gpus, devices",
    [
        (0, ["cpu", "cpu", "cpu"]),
        (1, ["cuda:0", "cuda:0", "cuda:0"]),
        (2, ["cuda:0", "cuda:1", "cuda:0"]),
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
        (True, TypeError, "world_size must be an integer, got True"),
    ],
)
def test_refuses_what_counts_no_ranks(world_size, error, message):
    with pytest.raises(error, match=message):
        try_devices(world_size)


# devices that are none


@pytest.mark.parametrize(
    "gpus, devices, error, message",
    [
        # a number of devices, as d2l's train takes it
        (2, 2, TypeError, "devices must be a list, see try_devices, got 2"),
        (2, "cpu", TypeError, "devices must be a list, see try_devices, got 'cpu'"),
        (2, [], ValueError, "devices is empty: need a device for each rank"),
        (2, ["cuda:0", "cuda:2"], ValueError, "cuda:2 is not here: torch finds 2 GPUs"),
    ],
)
def test_devices_that_are_none_are_named(monkeypatch, gpus, devices, error, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(error, match=message):
        scatter(torch.zeros(4), devices)


def test_a_replica_for_a_gpu_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="device cuda is not here: torch finds 0"):
        get_params([torch.zeros(2)], "cuda")
