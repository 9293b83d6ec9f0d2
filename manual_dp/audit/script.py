"""Be one rank of the command: run a script as torchrun would, and listen to it.

In a folder that all ranks share, rank R leaves

    run-R      what was heard up to now
    last-R     empty: it has heard enough
    end-R      as JSON: how its script ended
    stands-R   where it waits, if it does (stands.py)
    out-R      what it printed
    enough     empty, of any rank: the others were waited for

No rank waits for another one's. Once all have heard enough, each leaves at its next
forward or update by an exception, so that `finally` and `atexit` of the script run.
"""

import faulthandler
import gc
import io
import json
import multiprocessing
import os
import runpy
import sys
import threading
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import optimizer as optim

from manual_dp.audit.stands import Standstill
from manual_dp.audit.watch import UNDER_COMMAND, WATCHES, Watch
from manual_dp.ranks.launch.rank import from_peer, write

ASKED = "MANUAL_DP_AUDIT"  # in the environment, as JSON: folder, steps, timeout
GRACE = 20  # seconds in which a script that is left may clean up
NO_GPU = (
    "NVIDIA driver",
    "not compiled with CUDA",
    "CUDA-capable",
    "_cuda_",
    "NCCL built in",
    "only supported with GPUs",
    "required CUDA",
)


class CannotLook(RuntimeError):
    """Say that a script cannot be audited as it is, and what to do."""


def main():
    """Run the script that the command line names, as python would; end the process."""
    folder, steps, timeout = json.loads(os.environ[ASKED])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = Meeting(folder, rank, world_size, timeout)
    torch.compiler.set_stance("force_eager")  # also when enough was heard
    UNDER_COMMAND.update(steps=steps, put=meeting.put)
    WATCHES.append(Watch([], steps, timeout))
    standstill = Standstill(folder, rank, timeout, leaves=True)
    standstill.updates = lambda: sum(one.updates() for one in WATCHES)
    standstill.start()
    meeting.start()
    end = {"kind": "ended", "text": "", "details": ""}
    try:
        run(sys.argv[1:])
        for one in WATCHES:
            one.finish()
        if not Path(folder, f"last-{rank}").exists():
            standstill.write()
    except BaseException as error:
        for one in WATCHES:
            one.stop()
        end = how_it_ended(error, rank)
        if from_peer(error) and not Path(folder, "enough").exists():
            time.sleep(3)  # whoever has gone is to be seen to end first
    standstill.done.set()
    write(folder, f"end-{rank}", json.dumps(end).encode())
    meeting.leave_soon()
    if Path(folder, "enough").exists():
        close_group()
    raise SystemExit(end["kind"] != "ended")


def close_group():
    """Close this rank's connections: who waits for it raises, and cleans up, too."""
    WATCHES.clear()  # they hold models, and models in DDP hold the group
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def run(words):
    """Run a script, or a module after -m, with its arguments."""
    start = multiprocessing.process.BaseProcess.start

    def own_ranks(process):
        if not dist.is_initialized() and not process.daemon and _is_users(process):
            raise CannotLook(
                "the script starts processes of its own before it has a process group. "
                "If these are its ranks, run it as it is, without this command, and "
                "say watch(model, optimizer) in each: from manual_dp.audit import watch"
            )
        return start(process)

    sys.stdin = NoInput()
    with mock.patch.object(multiprocessing.process.BaseProcess, "start", own_ranks):
        try:
            if words[0] == "-m":
                sys.argv = words[1:]
                sys.path[0] = os.getcwd()
                if not find_spec(words[1]):
                    raise CannotLook(f"there is no module {words[1]}")
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = words
                sys.path[0] = str(Path(words[0]).resolve().parent)
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as error:
            if error.code:
                raise


def _is_users(process):
    """Return whether a process runs a function of the script's, as mp.spawn does."""
    function = getattr(process, "_target", None)
    args = getattr(process, "_args", ())
    names = {getattr(one, "__module__", "") for one in [function, *args[:1]]}
    return "__main__" in names


class NoInput(io.TextIOBase):
    """Stand in for stdin: ranks have none."""

    def readline(self, *_):
        """Say that there is no input."""
        raise CannotLook(
            "the script reads its input, and the audit's ranks have none: give the "
            "answer as an argument, or put a fixed one into the script"
        )

    read = readline


def how_it_ended(error, rank):
    """Return how an error ended the script of this rank, as a dict."""
    text = f"rank {rank} raised {type(error).__name__}: {error}"
    kind = "raised"
    if isinstance(error, CannotLook):
        kind, text = "cannot look", str(error)
    elif isinstance(error, SystemExit) and error.code == 2:
        kind = "cannot look"
        text = "the script ended with status 2, as for wrong arguments: see its words"
    elif isinstance(error, SyntaxError):
        kind, text = "cannot look", f"Python cannot run it: {error}"
    elif "attempted relative import with no known parent" in str(error):
        kind = "cannot look"
        text = (
            "the script is a module of a package, and imports from it: in the folder "
            "that holds the package say audit -m package.module"
        )
    elif any(words in str(error) for words in NO_GPU) and not torch.cuda.is_available():
        kind = "cannot look"
        text = (
            f"the script asks for a GPU, and there is none here ({error}): run the "
            "audit where there is one, or let the script use gloo and the CPU"
        )
    return {"kind": kind, "text": text, "details": _traceback(error)}


def _traceback(error):
    """Return the traceback without the frames of the audit itself."""
    whole = one = traceback.TracebackException.from_exception(error)
    while one:
        one.stack[:] = [frame for frame in one.stack if not _ours(frame.filename)]
        one = one.__cause__ or one.__context__
    return "".join(whole.format())


def _ours(name):
    return "runpy" in name or os.path.dirname(name) == os.path.dirname(__file__)


class Meeting(threading.Thread):
    """Know when all ranks have heard enough, and end this one's script then."""

    def __init__(self, folder, rank, world_size, timeout):
        super().__init__(daemon=True)
        self.folder, self.rank, self.world_size = Path(folder), rank, world_size
        self.timeout, self.leaving = timeout, False

    def put(self, run, last):
        """Leave what was heard in the folder; last: is it enough?"""
        write(self.folder, f"run-{self.rank}", run)
        if last:
            write(self.folder, f"last-{self.rank}", b"")

    def run(self):
        """Look five times a second; take hooks that end the script when it is time."""
        first = None
        while not (self.folder / "enough").exists():
            time.sleep(0.2)
            done = len([*self.folder.glob("last-*")])
            first = first or (time.monotonic() if done else None)
            late = first and time.monotonic() > first + self.timeout + 10
            if done == self.world_size or late:
                write(self.folder, "enough", b"")
        self.leaving = True
        call = nn.Module.__call__

        def calling(module, *args, **kwargs):
            self.leave()
            return call(module, *args, **kwargs)

        nn.Module.__call__ = calling
        optim.register_optimizer_step_pre_hook(lambda *_: self.leave())
        self.leave_soon()

    def leave(self):
        """End the script, at a place where it waits for nobody."""
        if threading.current_thread() is threading.main_thread() and self.leaving:
            self.leaving = False
            raise SystemExit(0)  # as a script that has come to its end

    def leave_soon(self):
        """End the process if it is still there after some seconds."""
        nowhere = open(os.devnull, "w")  # noqa: SIM115 (it is written to at the end)
        faulthandler.dump_traceback_later(GRACE, exit=True, file=nowhere)
