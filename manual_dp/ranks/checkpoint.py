"""Checkpoints: files that stay whole if the run is killed (Linux, macOS).

    save   write a file; a kill leaves the old file or the new one, never half of it
    load   check every byte of a file, then read its data; no code in it runs. Raises
           CheckpointError for one that is not whole

A file is one line, then `torch.save`'s bytes (`tail -n +2` gives them back):

    manual_dp checkpoint 1 <number of these bytes> <their SHA-256>

files/sealed.py writes and checks the bytes; resume.py says what to put in. With a
process group every rank must call both, with the same arguments but for `state`; if a
rank fails, all raise. Cost: a rank that writes or reads holds the file's bytes in
memory once; between ranks go a few hundred bytes.
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
    beside it, which the next save on the same host removes. If `path` is a symlink, the
    file that it leads to is replaced. Raises CheckpointError if `load` would refuse the
    file, pickle's error for a lambda, OSError for a full disk; the old file stays.
    """

    def write():
        rank, _ = here()
        if rank == 0:
            _write(Path(path), state)
        return None, {}

    # Two steps: nothing is written if the ranks name different paths.
    together(f"save {path}", lambda: (None, {"path": str(path)}))
    together(f"save {path}", write)


def load(path, device="cpu"):
    """Return what the file `path` holds, tensors on `device`.

    Raises CheckpointError if it is empty, cut short, damaged or another program's, if
    it holds more than data, or if ranks read different files.
    """
    return together(f"load {path}", lambda: _read(Path(path), device))


def here():
    """Return (rank, world_size), (0, 1) without a process group."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_values(value):
    """Return every rank's value, in a list."""
    _, world_size = here()
    values = [value] * world_size
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def together(what, function):
    """Call function on every rank; return its value if none failed and all agree.

    function returns its value, and a dict of what must be the same on every rank.
    If it fails on a rank, that rank raises the error itself, and all others raise
    CheckpointError, "could not `what`". If the dicts differ, all ranks raise that.
    """
    value = error = text = None
    same = {}
    try:
        value, same = function()
    except Exception as caught:
        # Raise it only after the exchange: the other ranks wait for this one there.
        error, text = caught, f"{type(caught).__name__}: {caught}"
    reports = gather_values((text, same))
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
    for name in one | other:  # the names of both dicts
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
    except Exception as error:
        # Say it in our own words: torch's text advises to run the code in the file.
        name = re.search(r"GLOBAL (\S+)", str(error))
        raise CheckpointError(
            f"{path} may hold tensors, numbers, strings, lists and dicts, but not "
            f"{name[1] if name else f'this ({type(error).__name__})'}"
        ) from None
