"""Notice if an answer has changed what other processes may use.

    Others   the grader, its parents, the process beside it: as they were, as they are
    Doubtful raised if they differ: nothing that was graded meanwhile can be trusted
"""

import os

import psutil

LIMITS = {name: number for name, number in vars(psutil).items()
          if name.startswith("RLIMIT_") and name != "RLIM_INFINITY"}


class Doubtful(RuntimeError):
    """An answer has touched other processes."""


class Others:
    """Remember the limits of this process, its parents and `pid`."""

    def __init__(self, pid):
        here = psutil.Process()
        self.processes = [here, *here.parents(), psutil.Process(pid)]
        self.before = {process: _look(process) for process in self.processes}

    def compare(self):
        """Raise Doubtful if a limit, the turn or the cores of one are others now."""
        for process, before in self.before.items():
            now = _look(process)
            changed = [name for name, value in before.items()
                       if now.get(name, value) != value]
            if changed:
                raise Doubtful(
                    f"the {', '.join(changed)} of process {process.pid} changed while "
                    "an answer ran: what ran meanwhile is not kept. If you did not do "
                    "that, an answer did: begin again from a new shell, and grade in a "
                    "container (--help)")


def _look(process):
    """Return what the system says of a process; nothing if it is gone, or not ours."""
    found = {}
    try:
        found["nice value"] = process.nice()
        if hasattr(process, "cpu_affinity"):
            found["cores"] = process.cpu_affinity()
        if hasattr(process, "rlimit"):
            found |= {name: process.rlimit(number) for name, number in LIMITS.items()}
            found["scheduler"] = os.sched_getscheduler(process.pid)
            found["turn at the disk"] = tuple(process.ionice())
    except (psutil.Error, OSError):
        pass
    return found
