"""Make plain data of what a rank holds: numbers, and hashes of tensors.

    comparable  a tensor's numbers here that must be alike on all ranks, or None
    hashed      hashes of tensors by name; numbers as they are
    inside      what is in a module, a dict, a scheduler, by name
    not_finite  names of tensors with NaN or inf
    caller      where in the user's code this is called
    plain       a number, a text, or a tuple of them
"""

import sys
from pathlib import Path

import torch
from torch import nn

from manual_dp.audit.fingerprint import bit_hashes, here

OWN = ("running_mean", "running_var", "num_batches_tracked")
HERE = str(Path(__file__).parent)
PLAIN = (bool, int, float, str, type(None))


def comparable(tensor):
    """Return the tensor's numbers here, None if other ranks have others, or nobody."""
    if hasattr(tensor, "placements"):
        whole = all(part.is_replicate() for part in tensor.placements)
        return here(tensor) if whole else None
    no_data = nn.parameter.is_lazy(tensor) or tensor.is_meta
    return None if no_data or tensor.layout != torch.strided else tensor


@torch.no_grad()
def not_finite(tensors):
    """Return names of tensors with NaN; with inf, too, where a gradient is wanted."""
    mine = {name: here(t) for name, t in tensors.items() if not nn.parameter.is_lazy(t)}
    mine = {name: t for name, t in mine.items() if t.numel() and not t.is_meta and
            (t.is_floating_point() or t.is_complex()) and t.element_size() > 1}
    # one pass over all; a sum of squares may overflow, and a mask may have inf
    if nn.utils.get_total_norm(mine.values()).isfinite():
        return []
    return [name for name, t in mine.items() if (
        t.isnan() | (t.isinf() & tensors[name].requires_grad)).any()]


def inside(thing):
    """Yield (name, value) of the tensors in it; of a scheduler, of its numbers."""
    if isinstance(thing, nn.Module):
        yield from thing.named_parameters()
        # an average keeps copies of batch norm's buffers, which are each rank's own
        yield from ((name, b) for name, b in thing.named_buffers()
                    if not name.endswith(OWN))
    elif isinstance(thing, (dict, list, tuple)):
        for name, part in (thing.items() if isinstance(thing, dict)
                           else enumerate(thing)):
            if isinstance(part, (dict, list, tuple)):
                yield from ((f"{name}.{key}", value) for key, value in inside(part))
            else:
                yield str(name), part
    else:
        for name in ("last_epoch", "_last_lr"):
            if hasattr(thing, name):
                yield name, plain(getattr(thing, name))


def plain(value):
    """Return a number, text, or tuple of them; NotImplemented for anything else."""
    if torch.is_tensor(value) and value.numel() == 1 and not value.is_meta:
        return value.item()
    if isinstance(value, (tuple, list)):
        parts = tuple(plain(part) for part in value)
        return NotImplemented if NotImplemented in parts else parts
    return value if isinstance(value, PLAIN) else NotImplemented


def hashed(named):
    """Return hashes of what is comparable of tensors, numbers as they are."""
    found, tensors = {}, {}
    for name, value in named.items():
        if torch.is_tensor(value):
            if (mine := comparable(value)) is not None:
                small = mine.numel() == 1 and mine.device.type == "cpu"
                (found if small else tensors)[name] = (
                    repr(mine.item()) if small else mine)
        elif plain(value) is not NotImplemented:
            found[name] = plain(value)
    return found | dict(zip(tensors, bit_hashes(tensors.values())))


def caller():
    """Return the file and line, outside torch and the audit, that called this."""
    frame = sys._getframe(1)
    while frame and any(part in frame.f_code.co_filename
                        for part in ("site-packages", HERE, "contextlib")):
        frame = frame.f_back
    if frame is None:
        return None
    path = frame.f_code.co_filename  # of a notebook's cell it is a number
    name = "a cell" if "ipykernel_" in path else Path(path).name
    return f"{name}, line {frame.f_lineno}"
