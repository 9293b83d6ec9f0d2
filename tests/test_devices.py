import pytest
import torch

from manual_dp import try_devices


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
