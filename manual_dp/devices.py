"""Devices: one `torch.device` for each rank.

    try_devices     the GPUs, dealt out in turn, or the CPU for every rank
    check_devices   refuse what is no list of devices, or a GPU that is not here

A rank is a number, not a piece of hardware: several ranks may share one device.
That is how a course on many devices runs on a laptop, and why `get_params` copies.
"""

import torch


def try_devices(world_size):
    """List a device for each rank: the GPUs in turn, else the CPU.

    Returns `world_size` devices. With fewer GPUs than ranks, ranks share GPUs: on
    one GPU, rank 0 and rank 1 both get cuda:0. (Apple's MPS has no float64, which
    the course's proofs need, so it counts as a CPU machine.)
    Raises TypeError or ValueError unless `world_size` is an integer >= 1.
    """
    if not isinstance(world_size, int) or isinstance(world_size, bool):
        raise TypeError(f"world_size must be an integer, got {world_size!r}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return [torch.device("cpu")] * world_size
    return [torch.device("cuda", rank % gpus) for rank in range(world_size)]


def check_devices(devices):
    """Raise TypeError or ValueError unless `devices` lists devices that are here."""
    if not isinstance(devices, (list, tuple)):
        raise TypeError(f"devices must be a list, see try_devices, got {devices!r}")
    if not devices:
        raise ValueError("devices is empty: need a device for each rank")
    gpus = torch.cuda.device_count()
    for device in map(torch.device, devices):
        if device.type == "cuda" and (device.index or 0) >= gpus:
            raise ValueError(
                f"device {device} is not here: torch finds {gpus} GPUs; see try_devices"
            )
