"""Checkpoints: a file that outlives what kills the run (Linux, macOS).

    save   write a file: the old one or the new, never half
    load   check every byte of a file, then unpack it and run nothing in it

A file is one line, then `torch.save`'s bytes (`tail -n +2` gives them back):

    manual_dp checkpoint 1 <number of these bytes> <their SHA-256>

How one is written and checked: files/sealed.py. What to put in: resume.py. With a
process group every rank must call them, with the same arguments but for `state`; what
fails on one rank raises on all. Cost: the bytes once in memory where they are written
or read; a few hundred between ranks.
"""

import io
import re
from pathlib import Path

import torch
import torch.distributed as dist

from manual_dp.files.sealed import seal, unseal

MAGIC = "manual_dp checkpoint 1"


class CheckpointError(ValueError):
    """Say which file or entry cannot be used, and why."""


def save(path, state):
    """Write rank 0's `state` to the file `path`; return when the disk has it.

    state: tensors, numbers and strings in dicts and lists; other ranks may pass None.
    Killed at any instant it leaves the old file or the new, and perhaps a `.ck-*`
    beside it, which the next save on the same host removes. A symlink stays: the file
    that it leads to is replaced. Raises CheckpointError for what `load` would refuse,
    pickle's for a lambda, OSError for a full disk; the old file stays.
    """
    together(f"save {path}", lambda: (None, {"path": str(path)}))
    together(f"save {path}", lambda: (here()[0] == 0 and _write(Path(path), state), {}))


def load(path, device="cpu"):
    """Return what the file `path` holds, tensors on `device`.

    Raises CheckpointError if it is empty, cut short, damaged or another program's, if
    it holds more than data, or if ranks read different files.
    """
    return together(f"load {path}", lambda: _read(Path(path), device))


def here():
    """Return (rank, world_size), (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(value):
    """Return every rank's value, in a list."""
    values = [value] * here()[1]
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def together(what, function):
    """Return function()'s value if it succeeds on every rank, and all say the same.

    function returns its value, and a dict of what must be the same on every rank.
    Raises on every rank CheckpointError, "could not `what`", or on the rank where
    function failed what it raised.
    """
    value = error = None
    same = {}
    try:
        value, same = function()
    except Exception as caught:  # told to all before it is raised: they would wait
        error = caught
    reports = gather((error and f"{type(error).__name__}: {error}", same))
    if error:
        raise error
    for rank, (text, theirs) in enumerate(reports):
        if text:
            error = CheckpointError(f"rank {rank} could not {what}: {text}")
            error.peer = True  # run_ranks then shows the failed rank's own error
            raise error
        for name, first, other in differences(reports[0][1], theirs):
            raise CheckpointError(
                f"could not {what}: {name} is {other} on rank "
                f"{rank}, {first} on rank 0; give every rank the "
                "same"
            )
    return value


def differences(one, other):
    """Yield (name, value in one, value in other) of each entry that differs."""
    for name in one | other:
        was, now = one.get(name, "missing"), other.get(name, "missing")
        if was != now:
            yield name, was, now


def _write(path, state):
    packed = io.BytesIO()
    torch.save(state, packed)
    _check_contents(path, packed)
    with packed.getbuffer() as data:
        seal(path, MAGIC, data)


def _read(path, device):
    try:
        data, digest = unseal(path, MAGIC)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    packed = io.BytesIO(data)
    _check_contents(path, packed)
    return (
        torch.load(packed, weights_only=True, map_location=device),
        {"the file's SHA-256": digest},
    )


def _check_contents(path, packed):
    try:
        packed.seek(0)
        torch.load(packed, weights_only=True, map_location="meta")  # reads no tensor
        packed.seek(0)
    except Exception as error:  # torch's text advises to run the code
        name = re.search(r"GLOBAL (\S+)", str(error))
        raise CheckpointError(
            f"{path} may hold tensors, numbers, strings, lists and dicts, but not "
            f"{name[1] if name else f'this ({type(error).__name__})'}"
        ) from None
