"""Devices: one `torch.device` for each rank.

    try_devices     the GPUs, dealt out in turn, or the CPU for every rank

A rank is a number, not a piece of hardware: several ranks may share one device.
That is how a course on many devices runs on a laptop, and why `get_params` copies.
"""

import torch

from manual_dp.checks import check_world_size


def try_devices(world_size):
    """List a device for each rank: the GPUs in turn, else the CPU.

    Returns `world_size` devices. With fewer GPUs than ranks, ranks share GPUs: on
    one GPU, rank 0 and rank 1 both get cuda:0. (Apple's MPS has no float64, which
    the course's proofs need, so it counts as a CPU machine.)
    Raises TypeError or ValueError unless `world_size` is an integer >= 1.
    """
    check_world_size(world_size)
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return [torch.device("cpu")] * world_size
    return [torch.device("cuda", rank % gpus) for rank in range(world_size)]
