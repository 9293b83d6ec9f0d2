"""Checks of arguments that several pages share.

check_no_shared_memory   refuse tensors of which one would overwrite another
"""

import torch


def check_no_shared_memory(tensors, holders):
    """Raise ValueError if two tensors hold a number at the same place in memory.

    holders: what each tensor belongs to, for the message: "ranks" or "chunks". Two
    ranks on the same memory would add one gradient twice.
    """
    tensors = sorted((t for t in tensors if t.numel()), key=torch.Tensor.data_ptr)
    apart = all(
        t.data_ptr() + _reach(t) * t.element_size() <= after.data_ptr()
        for t, after in zip(tensors, tensors[1:])
    )
    if apart and not any(0 in t.stride() or _reach(t) < t.numel() for t in tensors):
        return
    places = [place for t in tensors for place in _places(t)]
    if len(set(places)) != len(places):
        raise ValueError(f"two {holders} share memory; copy the tensor for each rank")


def _reach(tensor):
    return (
        tensor.numel()
        if tensor.is_contiguous()
        else 1
        + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())
        )
    )


def _places(tensor):
    places = torch.arange(_reach(tensor)).as_strided(tensor.shape, tensor.stride())
    return (tensor.data_ptr() + places.flatten() * tensor.element_size()).tolist()
