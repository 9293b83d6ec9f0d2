"""Torch's settings that one function can leave changed for all that comes after it.

    settings   what they are, by name
    put        set them so
    changed    which of them are not as they were: name -> [before, now]
    kept       put them back at the end of a block
"""

from contextlib import contextmanager

import torch

SETTINGS = {  # name: how it is read, how it is set
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "deterministic": (torch.are_deterministic_algorithms_enabled,
                      torch.use_deterministic_algorithms),
}


def settings():
    """Return the settings as they are now."""
    return {name: read() for name, (read, _) in SETTINGS.items()}


def put(values):
    """Make the settings what `settings` has returned before."""
    for name, value in values.items():
        read, write = SETTINGS[name]
        if read() != value:
            write(value)


def changed(before):
    """Return the settings that are no longer what they were, as text."""
    return {name: [str(before[name]), str(value)]
            for name, value in settings().items() if value != before[name]}


@contextmanager
def kept():
    """Put the settings back at the end of the block, whatever it does."""
    before = settings()
    try:
        yield
    finally:
        put(before)
