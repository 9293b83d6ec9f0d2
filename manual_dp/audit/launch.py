"""Start somebody's script under torchrun, wait for the ranks' notes, and judge them.

    audit_script   the `Report` on its first steps

Everything is below one rank of `run_ranks`: so an interrupt, or the end of this
process, ends all of it. A script is ended once its steps are noted, or when no rank has
got any farther for some time: then each says where it stands.
"""

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

from manual_dp.audit.failure import failure
from manual_dp.audit.report import Report
from manual_dp.audit.script import FOLDER, judged
from manual_dp.ranks import run_ranks

DAY = 86400  # seconds: the script's own deadline is another one
START = 120  # until every rank has begun


class Ended(namedtuple("Ended", "kind rank text details")):
    """Say how a script ended before its time, as a `RankError` does."""

    def __str__(self):
        return self.text


def audit_script(words, world_size=2, steps=3, timeout=60, ignore=()):
    """Run words, a script and its arguments, under torchrun; return a Report.

    timeout: seconds in which some rank must get farther.
    Raises FileNotFoundError without the script.
    """
    if not os.path.exists(words[0]):
        raise FileNotFoundError(f"there is no script {words[0]}")
    with tempfile.TemporaryDirectory() as folder:
        [ended] = run_ranks(_start, 1, list(map(str, words)), folder, world_size, steps,
                            timeout, timeout=DAY)
        runs = _runs(folder, world_size)
        if not ended and len(runs) < world_size:
            missing = [rank for rank in range(world_size) if rank not in runs]
            raise RuntimeError(f"{words[0]} took no step under watch on ranks {missing}"
                               ": say watch(model, optimizer), or wrap it in DDP")
        report = Report([], [], world_size, 0)
        if len(runs) == world_size:
            report = judged([runs[rank] for rank in range(world_size)], ignore)
        if ended:
            report.details = ended.details
            report.findings.insert(0, failure(ended, folder))
        return report


def _runs(folder, world_size):
    found = {rank: Path(folder) / f"run-{rank}" for rank in range(world_size)}
    return {rank: pickle.loads(path.read_bytes())  # noqa: S301 (our own ranks wrote it)
            for rank, path in found.items() if path.exists()}


def _start(words, folder, world_size, steps, timeout):
    """Run the script; return None, or how it ended before its time, an `Ended`."""
    environ = {**os.environ, FOLDER: folder, f"{FOLDER}_STEPS": str(steps)}
    running = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--local-addr=localhost", f"--nproc_per_node={world_size}",
         f"--log-dir={folder}",  # its own would stay after an interrupt
         "-m", "manual_dp.audit.runner", *words], env=environ)
    seen, since = None, time.monotonic()
    while running.poll() is None:
        now = {path.name: path.read_bytes() for path in Path(folder).glob("rank-*")}
        if now != seen:
            seen, since = now, time.monotonic()
        if all(b'"in": "the rest' in diary for diary in now.values()) and len(
                now) == world_size:
            running.kill()  # and what is below it goes with this rank
            running.wait()
            return None
        # a start takes long where the machine is busy
        if time.monotonic() > since + (timeout if len(now) == world_size else max(
                timeout, START)):
            return _hung(Path(folder), timeout)
        time.sleep(0.05)
    raised = sorted(Path(folder).glob("raised-*"), key=lambda path:
                    path.stat().st_mtime)
    if raised or running.returncode:
        began = {path.name.removeprefix("pid-") for path in Path(folder).glob("pid-*")}
        return _raised(raised, running.returncode, began)
    return None


def _raised(raised, code, began):
    """Return how a script ended; began: its ranks, as text."""
    if not raised:
        return Ended("died", None, f"the script ended with status {code}", "")
    silent = sorted(began - {path.name.removeprefix("raised-") for path in raised})
    if silent and re.search("Connection (reset|closed)", raised[0].read_text()):
        return Ended("died", int(silent[0]), f"rank {silent[0]} ended without a word: "
                     "it was killed, or crashed", raised[0].read_text())
    rank, text = int(raised[0].name.removeprefix("raised-")), raised[0].read_text()
    return Ended("raised", rank, f"rank {rank} raised {text.splitlines()[-1]}", text)


def _hung(folder, timeout):
    """Ask every rank where it stands."""
    for path in folder.glob("pid-*"):
        try:
            os.kill(int(path.read_text()), signal.SIGUSR1)
        except ProcessLookupError:
            pass
    time.sleep(0.5)
    details = "\n".join(f"rank {path.name.removeprefix('stands-')}: {path.read_text()}"
                        for path in sorted(folder.glob("stands-*")))
    return Ended("hung", 0, f"no rank got farther in {timeout:g} s", details)
