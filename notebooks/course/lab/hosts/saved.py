"""Watch a run on several hosts by its checkpoint.

    saved         what the checkpoint holds
    until_saved   wait until the run is so far
"""

import time

from manual_dp.ranks import load

PAUSE = 0.02  # seconds between two looks


def saved(path):
    """Return what the checkpoint holds, None if there is none yet."""
    try:
        return load(path)
    except FileNotFoundError:
        return None


def until_saved(path, step, hosts):
    """Wait until the checkpoint is of this step of the first epoch, or of a later one.

    Returns also if one of the torchruns on `hosts` has ended: nobody waits for ever.
    Returns whether the checkpoint is there.
    """
    while not (there := _there(path, step)):
        if any(process.poll() is not None for process in hosts.running):
            return _there(path, step)
        time.sleep(PAUSE)
    return there


def _there(path, step):
    found = saved(path)
    return found is not None and (found["epoch"], found["step"]) >= (0, step)
