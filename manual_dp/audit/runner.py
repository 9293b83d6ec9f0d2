"""Run somebody's script in a rank, as python would; leave notes for the command.

    python -m manual_dp.audit.runner train.py --its --arguments

    main   run the script, in a rank
    lead   be torchrun, which starts the ranks

In the folder of the command, for rank R:

    pid-R, stands-R   its process, and where that stands when it is asked
    out-R, err-R      what it printed
    end-R             as JSON: how the script ended, if it came to an end
    failed            as JSON: the exit status of each rank that failed, for torchrun
    alone             empty: the script starts ranks of its own
"""

import faulthandler
import importlib
import os
import runpy
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from manual_dp.audit import script
from manual_dp.audit.guess import watch_what_is_trained
from manual_dp.files import write_json
from manual_dp.ranks.launch.rank import describe


def main():
    """Run the script that the command line names."""
    folder, rank = Path(os.environ[script.FOLDER]), os.environ["RANK"]
    stands = open(folder / f"stands-{rank}", "w")  # noqa: SIM115 (until the end)
    faulthandler.register(signal.SIGUSR1, stands, all_threads=False)
    _print_to(folder, rank)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    watch_what_is_trained()
    _refuse_ranks(folder)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    end = {"kind": "end", "status": 0}
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(bool(error.code))
        end = {"kind": "exit", "status": status}
        raise
    except BaseException as error:
        said = (str(error).splitlines() or [""])[0]
        end = {"kind": "raised", "status": 1, **describe(error, (
            __file__, "<frozen runpy>")), "text": f"{type(error).__name__}: {said}"}
        raise
    finally:
        write_json(folder / f"end-{rank}", end)


def lead():
    """Be torchrun, with the arguments of the command line; note which ranks failed."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    try:
        run.main(sys.argv[1:])
    except ChildFailedError as error:
        write_json(Path(os.environ[script.FOLDER]) / "failed", {
            rank: failure.exitcode for rank, failure in error.failures.items()})
        sys.exit(1)


def _print_to(folder, rank):
    """Let all that this process prints go into files of the rank's own."""
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        file = os.open(folder / f"{name}-{rank}",
                       os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream.fileno())
        os.close(file)
        stream.reconfigure(errors="backslashreplace", line_buffering=True)


def _refuse_ranks(folder):
    """Let mp.spawn end a script that has no process group: it would start its ranks."""
    spawn = importlib.import_module("torch.multiprocessing.spawn")
    start = spawn.start_processes

    def start_or_leave(*args, **kwargs):
        if not dist.is_initialized():
            (folder / script.ALONE).touch()
            sys.exit(2)
        return start(*args, **kwargs)
    spawn.start_processes = torch.multiprocessing.start_processes = start_or_leave


if __name__ == "__main__":
    main()
