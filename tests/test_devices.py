import pytest
import torch

from manual_dp import (
    evaluate_accuracy,
    get_params,
    init_params,
    scatter,
    split_batch,
    train,
    train_batch,
    try_devices,
)
from manual_dp.parallel import DataParallel, replicate


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_without_a_gpu_every_rank_gets_the_cpu(monkeypatch, world_size):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert try_devices(world_size) == [torch.device("cpu")] * world_size


@pytest.mark.parametrize("gpus, world_size, indices", [
    (1, 1, [0]),
    (1, 3, [0, 0, 0]),
    (2, 1, [0]),
    (2, 2, [0, 1]),
    (2, 5, [0, 1, 0, 1, 0]),
    (4, 3, [0, 1, 2]),
])
def test_gpus_are_dealt_out_in_turn(monkeypatch, gpus, world_size, indices):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert try_devices(world_size) == [torch.device("cuda", i) for i in indices]


@pytest.mark.parametrize("world_size, error, message", [
    (0, ValueError, "world_size must be at least 1, got 0"),
    (-1, ValueError, "world_size must be at least 1, got -1"),
    (2.0, TypeError, r"world_size must be an integer, got 2\.0"),
    ("2", TypeError, "world_size must be an integer, got '2'"),
    (True, TypeError, "world_size must be an integer, got True"),
    (None, TypeError, "world_size must be an integer, got None"),
])
def test_refuses_what_counts_no_ranks(world_size, error, message):
    with pytest.raises(error, match=message):
        try_devices(world_size)


# devices that are none

def uses():
    """Return what takes devices, by name."""
    X, y = torch.rand(4, 1, 28, 28), torch.arange(4)
    params = init_params("he")

    def replicas(devices):
        return [get_params(params, "cpu") for _ in devices]
    return {
        "scatter": lambda devices: scatter(X, devices),
        "split_batch": lambda devices: split_batch(X, y, devices),
        "train_batch": lambda devices: train_batch(X, y, replicas([0, 1]), devices, 0.1),
        "train": lambda devices: train(devices, 256, 0.2, data=([(X, y)], [(X, y)])),
        "evaluate_accuracy": lambda devices: evaluate_accuracy(replicas([0, 1]), [(X, y)],
                                                               devices),
        "replicate": lambda devices: replicate(torch.nn.Linear(2, 2), devices),
        "DataParallel": lambda devices: DataParallel(torch.nn.Linear(2, 2), devices),
    }


@pytest.mark.parametrize("devices, error, message", [
    (2, TypeError, "devices must be a list, see try_devices, got 2"),  # as d2l's train
    ("cpu", TypeError, "devices must be a list, see try_devices, got 'cpu'"),
    (torch.device("cpu"), TypeError, "devices must be a list"),
    ([], ValueError, "devices is empty: need a device for each rank"),
    (["cuda:0", "cuda:2"], ValueError, "device cuda:2 is not here: torch finds 2 GPUs"),
    ([torch.device("cuda", 5)] * 2, ValueError, "device cuda:5 is not here"),
    (["cpu", "cuda:7"], ValueError, "device cuda:7 is not here"),
])
@pytest.mark.parametrize("use", uses())
def test_what_takes_devices_names_those_that_are_none(monkeypatch, use, devices, error,
                                                      message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(error, match=message):
        uses()[use](devices)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 1)])
@pytest.mark.parametrize("use", ["get_params", *uses()])
def test_without_gpus_a_gpu_is_named_and_missed(monkeypatch, use, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=f"device {device} is not here: torch finds 0 GPUs"):
        if use == "get_params":
            get_params([torch.zeros(2)], device)
        else:
            uses()[use]([device] * 2)
