"""Run a program under torchrun from a cell, as a terminal does; never hang.

    torchrun   start it, wait, return the lines that it printed

torchrun and the program's ranks start below one rank of `run_ranks`. So the deadline
ends them all, and so does an interrupt or the end of the kernel: nothing stays behind.
The ranks talk over loopback. torchrun's own store, where they meet, listens on every
interface while it runs, at a port that the system chooses: torch cannot bind it.
"""

import os
import subprocess
import sys

from manual_dp.ranks import RankError, run_ranks


def torchrun(program, *options, ranks, timeout=200):
    """Start `program`, a file, in so many ranks on this machine; return its lines.

    It is what this line does in a terminal, with the same Python:
        torchrun --standalone --nproc_per_node=<ranks> <program> <options>
    timeout: seconds until it must have ended. Ranks print in any order.
    Raises RankError if it takes longer; RuntimeError, with the last line of the first
    rank's traceback, if it fails; FileNotFoundError if there is no such file.
    """
    if not os.path.exists(program):
        raise FileNotFoundError(f"there is no program {program}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--local-addr=localhost", f"--nproc_per_node={ranks}", str(program),
               *map(str, options)]
    try:
        code, out, err = run_ranks(_start, 1, command, timeout=timeout)[0]
    except RankError as error:
        if error.kind != "hung":
            raise
        raise RankError(f"{program} was still running after {timeout} s; it was ended, "
                        "with all its ranks", kind="hung") from None
    if code:
        raise RuntimeError(f"{program} failed: {_reason(err)}")
    return out.splitlines()


def _start(command):
    environ = {**os.environ, "NCCL_SOCKET_IFNAME": os.environ["GLOO_SOCKET_IFNAME"]}
    done = subprocess.run(command, env=environ, capture_output=True, text=True,
                          errors="replace")
    return done.returncode, done.stdout, done.stderr


def _reason(err):
    """Return the line that ends the first traceback in what a program said."""
    lines = err.splitlines()
    inside = False
    for line in lines:
        text = line.partition("]: ")[2] if line.startswith("[rank") else line
        if text.startswith("Traceback"):
            inside = True
        elif inside and text and not text.startswith(" "):
            return text
    return lines[-1] if lines else "it said nothing"
