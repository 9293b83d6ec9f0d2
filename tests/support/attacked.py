"""Grade answers that attack, one after another, and see what each has touched or left.

    python -m tests.support.attacked NAME ...

prints a line of JSON for each: the message that it was graded with, what it changed of
other processes, and what it left. To be run in a process of its own, which is what is
attacked, and its parent, and a bystander.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil

from manual_dp.school.exercise import find
from manual_dp.school.grader.worker import Worker, grade
from tests.support.wrong.attacks import ATTACKS, GREED, HELD, reach

SECONDS, LONG = 3, 60  # that an answer has; what is stopped for its size has time
LIMITS = [value for name, value in vars(psutil).items() if name.startswith("RLIMIT_")]
PLACES = ["/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp", str(Path.home())]


def state(pid):
    """Return what others may have changed of a process."""
    process = psutil.Process(pid)
    with open(f"/proc/{pid}/status") as file:
        tracer = [line.split()[1] for line in file if line.startswith("TracerPid")]
    with open(f"/proc/{pid}/oom_score_adj") as file:
        score = file.read()
    stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE,
                                   psutil.STATUS_TRACING_STOP)
    return {"limits": [process.rlimit(limit) for limit in LIMITS],
            "nice": process.nice(), "ionice": tuple(process.ionice()),
            "cores": process.cpu_affinity(), "policy": os.sched_getscheduler(pid),
            "tracer": tracer, "score": score, "stopped": stopped}


def left():
    """Return what lies about in this system under the names that attacks use."""
    found = [path for place in PLACES for path in glob.glob(f"{place}/*mdp_left*")]
    found += [path for path in glob.glob(f"{tempfile.gettempdir()}/*")]
    for table, mark in [("sysvipc/shm", ""), ("sysvipc/sem", ""), ("sysvipc/msg", ""),
                        ("keys", "mdp_left"), ("net/unix", "mdp_left"),
                        ("net/tcp", ":B32F")]:
        with open(f"/proc/{table}") as file:
            # of a memory segment its sizes and its users change
            found += [" ".join([table, *line.split()[:2]]) for line in file
                      if mark in line]
    return {*found, os.uname().nodename}


def below(worker, bystander):
    """Return which processes there are that should not be."""
    known = {bystander, worker.process and worker.process.pid}
    if worker.process:  # what is meant to stay below it
        known |= {child.pid for child in psutil.Process().children(recursive=True)
                  if child.name() == "known"}
    return [child.pid for child in psutil.Process().children(recursive=True)
            if child.pid not in known]


def attacked(names):
    """Yield what each attack did."""
    worker = Worker()
    bystander = subprocess.Popen(["sleep", "999"])
    pids = os.getpid(), os.getppid(), bystander.pid
    worker.run({"nonce": "", "name": "ps1/allreduce", "answers": ["allreduce"],
                "cells": [["allreduce", "allreduce = print"]], "cases": [],
                "seconds": 20, "memory": 2**31})  # start it
    try:
        for name in names:
            exercise_name, cell, passes = ATTACKS[name]
            grade_id = exercise_name.partition("/")[2]
            exercise = replace(find(exercise_name),
                               seconds=LONG if name in GREED else SECONDS)
            child = [worker.process.pid] if worker.process else []
            everyone = [*pids, *child]
            before, lay = {pid: state(pid) for pid in everyone}, left()
            right = {grade_id: HELD[exercise_name]}
            try:
                message = grade(worker, exercise, {**right, grade_id: reach(cell, pids)})
            except RuntimeError as error:
                message = f"STOPPED: {error}"
            touched = []
            for pid in everyone:
                try:
                    after = state(pid)
                    touched += [f"{everyone.index(pid)} {key}" for key in after
                                if after[key] != before[pid][key]]
                except psutil.Error:
                    touched.append(f"{everyone.index(pid)} is gone")
            yield {"name": name, "passes": passes, "message": message,
                   "touched": touched, "left": [*sorted(left() - lay), *below(
                       worker, bystander.pid)]}
    finally:
        worker.close()
        bystander.kill()


if __name__ == "__main__":
    for found in attacked(sys.argv[1:] or list(ATTACKS)):
        print(json.dumps(found), flush=True)
