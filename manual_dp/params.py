"""Replicas: every rank holds a full copy of the parameters.

    get_params          copy parameters to a device, ready for gradients. d2l.ai 12.5.4
    pack_grads          make a replica's gradients views of one flat tensor of zeros
    check_replicas      refuse replicas that differ, or that share memory
    largest_difference  how far two replicas are apart

A replica is a plain list of leaf tensors; `device_params[rank]` is rank's.
"""

import torch

from manual_dp.checks import check_devices, check_params


def get_params(params, device):
    """Copy `params` to `device` as new leaf tensors that want a gradient.

    Always copies, also from a device to itself, where a bare `.to(device)` would
    return the same tensor: then k replicas are one, and a step is 2^(k-1) times as
    large as it should be. `params` is left as it was; gradients start as None.
    Raises TypeError naming the index of what is not a floating-point tensor.
    """
    check_params(params)
    check_devices([device])
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]


def pack_grads(params):
    """Point every gradient into one flat tensor of zeros, and return that tensor.

    The gradients are views: backward adds into them, so it fills the flat tensor,
    and one all-reduce of the flat tensor sums them all. DDP calls this a bucket.
    A parameter that backward does not reach keeps its zeros.
    """
    flat = torch.zeros(
        sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device
    )
    for p, grad in zip(params, flat.split([p.numel() for p in params])):
        p.grad = grad.view_as(p)
    return flat


@torch.no_grad()
def check_replicas(device_params, values=True):
    """Raise ValueError, naming rank and index, unless replicas are equal and separate.

    Compares the number of parameters, shapes, dtypes, and with `values` every number.
    Refuses two parameters on the same memory, which would take each step twice.
    """
    if not device_params:
        raise ValueError("device_params is empty: need a replica for each rank")
    first, homes = device_params[0], {}  # homes: who uses which place in memory
    for rank, params in enumerate(device_params):
        if len(params) != len(first):
            raise ValueError(
                f"rank {rank} has {len(params)} parameters, rank 0 has {len(first)}"
            )
        for i, (p, p0) in enumerate(zip(params, first)):
            who = f"parameter {i} of rank {rank}"
            if not p.is_leaf or not p.requires_grad:
                raise ValueError(
                    f"{who} is not a leaf that wants a gradient; "
                    "make replicas with get_params"
                )
            if p.shape != p0.shape or p.dtype != p0.dtype:
                raise ValueError(
                    f"{who} is {p.dtype} {tuple(p.shape)}, "
                    f"rank 0's is {p0.dtype} {tuple(p0.shape)}"
                )
            home = homes.setdefault((p.device, p.data_ptr()), who)
            if p.numel() and home != who:  # empty ones may have one address
                raise ValueError(
                    f"{who} shares memory with {home}; make replicas with get_params"
                )
            if values:
                _check_equal(who, p, p0.to(p.device))


def _check_equal(who, p, q):
    if torch.equal(p, q):
        return
    # torch.equal says that NaN differs from NaN, but two replicas that both hold it
    # are equal. allclose can be told so; it takes ten times as long.
    if not torch.allclose(p, q, 0, 0, equal_nan=True):
        raise ValueError(
            f"{who} differs from rank 0's, by up to {largest_difference([p], [q]):.2g}"
        )


@torch.no_grad()
def largest_difference(params, others):
    """Return the largest |difference| between two replicas, as a float.

    params, others: lists of tensors, on any devices. Raises ValueError if lengths or
    shapes differ, or if there is not one number to compare.
    """
    pairs = list(zip(params, others, strict=True))
    for i, (p, q) in enumerate(pairs):
        if p.shape != q.shape:  # `p - q` would broadcast them
            raise ValueError(f"params[{i}] is {[*p.shape]}, others[{i}] {[*q.shape]}")
    distances = [(p - q.to(p.device)).abs().max().cpu() for p, q in pairs if p.numel()]
    if not distances:
        raise ValueError("params and others hold no numbers to compare")
    return float(torch.stack(distances).max())  # NaN if one is; Python's max loses it
