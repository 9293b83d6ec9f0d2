"""Take a script's first steps once more, as `doubled` has them, on ranks that we start.

    take_again   the `Run` of every rank, None if they did not come to their end

No torchrun starts these ranks: `run_ranks` forks them in tenths of a second. They find
the same environment. What the script prints is not printed again; it ends with its
last step.
"""

import os
import runpy
import socket
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from manual_dp.audit import script
from manual_dp.audit.doubled import doubled
from manual_dp.audit.guess import watch_what_is_trained
from manual_dp.ranks import RankError, run_ranks


class Enough(BaseException):
    """End a script whose steps were taken."""


def take_again(words, steps, timeout, world_size, *how):
    """Return the runs of a script, words, on world_size ranks; or None.

    how: times, fixes and by_rows, as in `doubled`. timeout: seconds for all of it.
    """
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        with suppress(RankError):
            runs = run_ranks(_take, world_size, words, steps, how, port, folder,
                             timeout=timeout)
            return runs if all(run and run.steps for run in runs) else None
    return None


def _take(words, steps, how, port, folder):
    """Run the script in this rank; return its `Run`, None if nothing was watched."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    world_size = str(dist.get_world_size())
    dist.destroy_process_group()  # the script makes its own
    os.environ.update({
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": world_size, "TORCHELASTIC_RUN_ID": "again",
        script.FOLDER: folder, f"{script.FOLDER}_STEPS": str(steps)})
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    watch_what_is_trained()
    watched = []
    with doubled(*how), _ended_by_its_steps(watched), suppress(Enough):
        with suppress(SystemExit):
            runpy.run_path(words[0], run_name="__main__")
        for followed in script.FOLLOWED:
            followed.finish()
    return watched[0].run if watched else None


@contextmanager
def _ended_by_its_steps(watched):
    """Raise Enough where a watch ends after its steps; add it to `watched`."""
    stop = script.Followed.stop

    def stop_all(followed):
        stop(followed)
        if followed.run.steps:
            watched.append(followed)
            raise Enough
    with mock.patch.object(script.Followed, "stop", stop_all):
        yield
