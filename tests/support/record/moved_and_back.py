"""Move a DDP model to another place and back: its ranks no longer synchronise.

Source: pytorch 104336, "DDP: moving model to CPU and back to GPU breaks gradient
synchronization". It is no bug of torch's to its developers, and stays so.

A parameter whose device or type changes gets a new gradient accumulator. DDP's hook
stays at the old one, which no backward pass reaches. A round trip through another type
does on the CPU what one through another device does on a GPU.
"""

from tests.support.record.parts import arguments, update, wrapped


def moved():
    model, optimizer = wrapped()
    kept = next(model.parameters()).dtype
    model.bfloat16()  # to save memory, say, while something else runs
    model.to(kept)
    return model, optimizer


def broken():
    return arguments(moved, update)


def right():
    return arguments(wrapped, update)
