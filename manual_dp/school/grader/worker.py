"""The grader's side of child.py: start it, hand it jobs, judge what comes back."""

import json
import multiprocessing
import os
import random
import secrets
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

from manual_dp.school.checks import judge
from manual_dp.school.grader.limits import Others
from manual_dp.school.grader.paths import PACKAGE, readable, site
from manual_dp.school.grader.watch import PATIENCE

MEMORY = 2 * 2**30  # bytes for a job
START, LATE = 120, 30  # seconds until torch is loaded; beyond a job's own limit
LOST = OSError, ValueError, EOFError  # child.py was killed or stopped
ALONE = threading.Lock()  # where answers see one another, they run one at a time
# An answer that must run wherever answers can: it starts two ranks.
PROBE = {
    "nonce": "", "name": "ps1/allreduce", "answers": ["allreduce"], "seconds": 20,
    "memory": MEMORY, "cases": [{"tensors": [1.0], "transposed": False}],
    "cells": [["allreduce", "from manual_dp.ranks import run_ranks\n"
                            "def allreduce(data): run_ranks(int, 2)"]]}


class Worker:
    """Run learners' cells in child.py, one job after another; start it anew if lost."""

    def __init__(self):
        self.process = None
        self.stopped = False

    def run(self, job):
        """Return the reply to `job`: what its process wrote, and how it ended.

        Raises Doubtful if other processes are not as they were.
        """
        for _ in range(2):  # a second time, in case something else took child.py away
            if self.stopped:
                raise RuntimeError("the worker was stopped")
            if self.process is None:
                self._start()
            try:
                with nullcontext() if self.enclosed else ALONE:
                    reply = self._ask(job)
                self.others.compare()
                return reply
            except LOST:
                self.others.compare()
                self.close()
        return {"text": "", "end": "took the process that watches it along"}

    def _ask(self, job):
        self.line.send_bytes(json.dumps(job).encode())
        return json.loads(self._receive(PATIENCE * job["seconds"] + LATE))

    def _receive(self, seconds):
        if not self.line.poll(seconds):
            raise TimeoutError
        return self.line.recv_bytes()

    def _start(self):
        """Start child.py and see that answers can run: else learners would get a 0."""
        settings = {"package": str(PACKAGE), "path": site(), "readable": readable(),
                    "folder": tempfile.gettempdir()}
        self.line, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")),
                 json.dumps(settings)],
                stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True,
                env={"PATH": os.defpath, "OMP_NUM_THREADS": "1",
                     "CUDA_VISIBLE_DEVICES": ""})  # a GPU wants more than their memory
        try:
            self.enclosed = self._receive(START) == b"enclosed"
            reply = self._ask(PROBE)
            result = _read(reply["text"])
            problem = result.get("said", {"error": reply["end"]}).get("error", "")
        except LOST as error:
            self.process.kill()
            said = self.process.stderr.read().decode(errors="replace").strip()
            problem = said.splitlines()[-1] if said else type(error).__name__
        self.process.stderr.close()
        if problem:
            self.close()
            raise RuntimeError(f"answers cannot be run on this system: {problem}")
        self.others = Others(self.process.pid)

    def stop(self):
        """Have what is running now end at once; another thread may wait for it."""
        self.stopped, process = True, self.process
        if process is not None:
            process.terminate()

    def close(self):
        """End the process, and with it whatever it is running."""
        if self.process is None:
            return
        process, self.process = self.process, None
        self.line.close()
        process.terminate()  # it kills its job, then ends
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def grade(worker, exercise, cells, known=None):
    """Return None if the answer in `cells` is right, else the message for the learner.

    cells: {grade id: source} of a submission. Nothing but the numbers that come back
    decides, compared here with what only this process knows.
    known: a dict of the verdicts so far, by text. An answer that was right once, or
    wrong twice, is not run again: on a busy machine a right one may fail, no wrong one
    passes.
    """
    missing = [grade_id for grade_id in exercise.cells if grade_id not in cells]
    if missing:
        return f"The answer cell {missing[0]} is missing."
    own, beside = ([(name, cells[name]) for name in names if name in cells]
                   for names in (exercise.cells, exercise.beside))
    known = {} if known is None else known
    before = known.setdefault((exercise.name, *own, *beside), [])
    if None in before or len(before) > 1:
        return None if None in before else before[-1]
    parts = exercise.parts and Path(import_module(exercise.parts_module).__file__)
    job = {"nonce": secrets.token_hex(8), "name": exercise.name, "cells": own,
           "beside": beside, "parts": parts.read_text() if parts else "",
           "given": exercise.parts, "answers": exercise.answers,
           "cases": list(exercise.draw(random.Random())),
           "seconds": exercise.seconds, "memory": MEMORY}
    reply = worker.run(job)
    result = _read(reply["text"])
    if result.get("nonce") != job["nonce"]:
        verdict = f"The answer returned nothing: it {reply['end']}."
    else:
        verdict = _verdict(exercise, job["cases"], result)
    before.append(verdict)
    return verdict


def _verdict(exercise, cases, result):
    """Return None if what an answer returned for `cases` is right, else a message."""
    out, said = result.get("out"), result.get("said")
    if not isinstance(out, list) or not isinstance(said, dict) or not (
            said or len(out) == len(cases)):
        return "The answer returned something that cannot be read."
    if said.get("blank") is True:
        return "Not written yet: the cell still raises NotImplementedError."
    for case, got in zip(cases, out):
        if problem := judge(exercise, case, got):
            return problem
    return _explain(str(said.get("error"))) if said else None


def _read(text):
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return result if isinstance(result, dict) else {}


def _explain(error):
    if "MemoryError" in error or "allocate memory" in error:
        error += f"\nAn answer has {MEMORY // 2**30} GiB of memory."
    if error.startswith("NameError"):
        error += ("\nOnly the answer cells are graded, with the imports of the first "
                  "cell: put what an answer needs into its cell.")
    if error.startswith("PermissionError"):
        error += ("\nWhile an answer is graded, it writes in its own folder alone, and "
                  "starts no processes by multiprocessing: num_workers=0.")
    if "manual_dp" in error.partition("\n")[0] and error.startswith(
            ("ImportError", "ModuleNotFoundError")):
        error += "\nWhile an answer is graded, it cannot use the course's own solution."
    return f"The answer raised {error}"
