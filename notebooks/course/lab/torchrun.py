"""Run a program under torchrun from a cell, as a terminal does; never hang.

    torchrun   start it, wait, return the lines that it printed
    at_once    the same for several programs that run side by side

Each torchrun, with its program's ranks, starts below a rank of `run_ranks`. So the
deadline ends them all, and so does an interrupt or the end of the kernel: nothing
stays behind.
Each rank's lines and errors go to files of its own, as `--redirects` does it, in a
folder that is removed: ranks that print at once into one pipe break each other's lines.
The ranks talk over loopback. torchrun's own store, where they meet, listens on every
interface while it runs, at a port that the system chooses: torch cannot bind it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist

from manual_dp.ranks import RankError, run_ranks


def torchrun(program, *options, ranks, timeout=200):
    """Start `program`, a file, in so many ranks on this machine; return its lines.

    It is what this line does in a terminal, with the same Python:
        torchrun --standalone --nproc_per_node=<ranks> <program> <options>
    timeout: seconds until it must have ended. The lines of rank 0 come first.
    Raises RankError if it takes longer; RuntimeError, with the last line of the
    traceback of the rank that failed first; FileNotFoundError if there is no such file.
    """
    return at_once([(ranks, program, *options)], timeout)[0]


def at_once(runs, timeout=200):
    """Start programs side by side; return the lines of each, in the order of `runs`.

    runs: for each the number of its ranks, its file and its options. What is raised is
    what `torchrun` raises, for the first that fails.
    """
    for _, program, *_ in runs:
        if not os.path.exists(program):
            raise FileNotFoundError(f"there is no program {program}")
    programs = [str(program) for _, program, *_ in runs]
    with tempfile.TemporaryDirectory(prefix="manual_dp-") as folder:
        logs = [os.path.join(folder, str(i)) for i in range(len(runs))]
        try:
            ended = run_ranks(
                _start,
                len(runs),
                [_command(log, *run) for log, run in zip(logs, runs)],
                timeout=timeout,
            )
        except RankError as error:
            if error.kind != "hung":
                raise
            raise RankError(
                f"{' or '.join(dict.fromkeys(programs))} was still running "
                f"after {timeout} s; it was ended, with all its ranks",
                kind="hung",
            ) from None
        for program, log, (code, err) in zip(programs, logs, ended):
            if code:
                raise RuntimeError(f"{program} failed: {_reason(log, err)}")
        return [
            _lines(log, range(ranks), "stdout") for log, (ranks, *_) in zip(logs, runs)
        ]


def _command(log, ranks, program, *options):
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=localhost",
        f"--nproc_per_node={ranks}",
        f"--log-dir={log}",
        "--redirects=3",
        str(program),
        *map(str, options),
    ]


def _start(commands):
    command = commands[dist.get_rank()]
    environ = {
        **os.environ,
        "NCCL_SOCKET_IFNAME": os.environ["GLOO_SOCKET_IFNAME"],
        "PYTHON_COLORS": "0",  # from Python 3.13 on, a kernel asks for colours
    }
    done = subprocess.run(
        command,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stderr


def _lines(log, ranks, stream):
    """Return what these ranks wrote, rank by rank; torchrun names the folders."""
    lines = []
    for rank in ranks:
        for path in Path(log).glob(f"*/attempt_0/{rank}/{stream}.log"):
            lines += path.read_text(errors="replace").splitlines()
    return lines


def _reason(log, err):
    """Return the line that ends the first traceback of the rank that failed first.

    err: what torchrun itself said; it names that rank after "Root Cause".
    """
    first = re.search(r"Root Cause.*?rank +: (\d+)", err, re.DOTALL)
    lines = _lines(log, first.groups() if first else (), "stderr") or err.splitlines()
    inside = False
    for line in lines:
        text = line.partition("]: ")[2] if line.startswith("[rank") else line
        if text.startswith("Traceback"):
            inside = True
        elif inside and text and not text.startswith(" "):
            return text
    return lines[-1] if lines else "it said nothing"
