"""Start somebody's script under torchrun, wait for the ranks' notes, and judge them.

    audit_script   the `Report` on its first steps

Everything is below one rank of `run_ranks`: so an interrupt, or the end of this
process, ends all of it. A script is ended once its steps are noted, or when no rank has
got any farther for some time: then each says where it stands.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from functools import partial
from pathlib import Path

from manual_dp.audit.again import take_again
from manual_dp.audit.apart import stages
from manual_dp.audit.beside import compare
from manual_dp.audit.catalogue import ranks
from manual_dp.audit.failure import failure, read_diaries, served, steps_of, uneven
from manual_dp.audit.outcome import NO_STEP, judged, unmet
from manual_dp.audit.script import ALONE, FOLDER
from manual_dp.ranks import run_ranks
from manual_dp.ranks.launch import verdict
from manual_dp.ranks.launch.processes import signal_name

DAY = 86400  # seconds: the script's own deadline is another one
START = 120  # until every rank has begun
NOT_PARALLEL = {"start-differs", "not-synchronised"}
LEAD = "from manual_dp.audit.runner import lead; lead()"


class Ended(namedtuple("Ended", "kind rank text details")):
    """Say how a script ended before its time, as a `RankError` does.

    kind: "raised", "killed", "exited", "hung" as there; "gone": the rank came to an
    end without an error, and others wait for it; "alone": it starts ranks of its own;
    "died": torchrun failed.
    """

    def __str__(self):
        return self.text


def audit_script(words, world_size=2, steps=3, timeout=60, ignore=(), alone=True):
    """Run words, a script and its arguments, under torchrun; return a Report.

    words: a list of texts. steps: it is ended when so many are taken. timeout: seconds
    in which some rank must get farther. ignore: codes of findings, as in `audit`.
    alone: if nothing was found, it takes the steps again, on the ranks and on one
    device, in float64 and without dropout; both must be the same.
    Raises FileNotFoundError without the script, RuntimeError if it takes no step.
    """
    if not os.path.exists(words[0]):
        raise FileNotFoundError(f"there is no script {words[0]}")
    words, begun = list(map(str, words)), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        [(ended, printed)] = run_ranks(_start, 1, words, folder, world_size, steps,
                                       timeout, timeout=DAY)
        for rank, (out, err) in enumerate(printed):
            verdict.echo(rank, out, sys.stdout)
            verdict.echo(rank, err, sys.stderr)
        report = _report(words[0], folder, ended, world_size, steps, ignore)

    if alone and not ended and report.evidence:
        patience = timeout + 3 * (time.monotonic() - begun)  # float64 takes longer
        compare(report, partial(take_again, words, steps, patience), world_size)
        report.set_aside(ignore)
    return report


def _report(name, folder, ended, world_size, steps, ignore):
    """Return the report on a script that was run, from its ranks' notes."""
    runs, diaries = _runs(folder, world_size), read_diaries(folder)
    _check_begun(name, ended, diaries, runs, world_size)
    found = failure(ended, folder) if ended else None
    if len(runs) < world_size and not found:
        found = uneven(diaries)
    if not found and (other := stages(diaries)):
        raise RuntimeError(f"{name}: {other}")
    if len(runs) == world_size:
        report = judged([runs[rank] for rank in range(world_size)], ignore,
                        None if ended else steps, None if ended else diaries)
        if any(run.bare for run in runs.values()) and {
                f.code for f in report.findings} >= NOT_PARALLEL:
            raise RuntimeError(f"{name}: ranks begin with other weights, and share no "
                               "gradients: if this is to be data parallelism, say "
                               "watch(model, optimizer) once both are made")
        report.findings = [f for f in report.findings
                           if not found or f.code != found.code]
        report.findings[:0] = [found] if found else []
    elif found:
        report = unmet(found, diaries, world_size, runs.values())
    else:
        missing = [rank for rank in range(world_size) if rank not in runs]
        raise RuntimeError(f"{name} ended before {ranks(missing)} had taken a whole "
                           "step under watch")
    if ended:
        report.details = ended.details
        report.set_aside(ignore)
    return report


def _check_begun(name, ended, diaries, runs, world_size):
    """Raise RuntimeError for a script of which there is nothing to judge."""
    kind = ended.kind if ended else ""
    if kind == "alone":
        raise RuntimeError(f"{name} starts its ranks itself: say watch(model, "
                           "optimizer) in the function that each runs, and start it "
                           f"without this command, as python {name}")
    if who := served(diaries):
        raise RuntimeError(f"{name}: {ranks(who)} took no step, and got other weights "
                           "all the same: where some ranks step for all, nothing is "
                           "judged")
    taken = max(map(steps_of, diaries.values()), default=0)
    if kind == "exited" and not taken or kind == "raised" and not diaries:
        raise RuntimeError(f"{name}: {ended.text}, before any step: its own words, if "
                           "any, stand above")
    missing = [rank for rank in range(world_size) if rank not in diaries]
    if missing and not ended:
        raise RuntimeError(f"{name} came to its end, and nothing was watched on "
                           f"{ranks(missing)}: say watch(model, optimizer) once the "
                           "process group is there, wrap the model in DDP, or "
                           "call one that an optimizer of torch's holds")
    if not taken and not ended and not runs:
        raise RuntimeError(f"{name} could not be judged, though watch was called: "
                           f"{NO_STEP}")


def _runs(folder, world_size):
    found = {rank: Path(folder) / f"run-{rank}" for rank in range(world_size)}
    return {rank: pickle.loads(path.read_bytes())  # noqa: S301 (our own ranks wrote it)
            for rank, path in found.items() if path.exists()}


def _start(words, folder, world_size, steps, timeout):
    """Run the script; return how it ended, an `Ended` or None, and what was printed."""
    environ = {**os.environ, FOLDER: folder, f"{FOLDER}_STEPS": str(steps),
               "PYTHON_COLORS": "0"}  # in errors; a kernel asks for them
    lost, everyone = {}, range(world_size)
    with open(Path(folder) / "torchrun", "wb") as own:
        running = subprocess.Popen(
            [sys.executable, "-c", LEAD, "--standalone",
             "--local-addr=localhost", f"--nproc_per_node={world_size}",
             f"--log-dir={folder}",  # its own would stay after an interrupt
             "-m", "manual_dp.audit.runner", *words], env=environ, stdout=own,
            stderr=own)
    ended = _follow(running, Path(folder), world_size, timeout,
                    lambda: verdict.trim(folder, everyone, lost))
    return ended, verdict.printed(folder, world_size, lost)


def _follow(running, folder, world_size, timeout, trim):
    """Wait for the ranks' notes or the end of torchrun; return an `Ended`, or None."""
    seen, since, first = None, time.monotonic(), None
    while running.poll() is None:
        trim()
        now = {path.name: path.read_bytes() for path in folder.glob("rank-*")}
        if now != seen:
            seen, since = now, time.monotonic()
        done = [b'"in": "the rest' in diary for diary in now.values()]
        if sum(done) == world_size:
            running.kill()  # and what is below it goes with this rank
            running.wait()
            return None
        if (folder / ALONE).exists():
            return Ended("alone", None, "the script starts its ranks itself", "")
        first = first or (any(done) and time.monotonic())
        # a start takes long where the machine is busy
        patience = timeout if len(now) == world_size else max(timeout, START)
        if time.monotonic() > since + patience:
            return _hung(folder, "no rank got farther" if now else "no rank called "
                         "watch or wrapped a model in DDP", patience)
        if first and time.monotonic() > first + patience:  # others may go on for ever
            return _hung(folder, "some rank did not take its steps", patience)
        time.sleep(0.05)
    return _ended(folder, running.returncode)


def _ended(folder, code):
    """Return how a script ended by itself, from its ranks' notes; None if well.

    What a rank did comes before what others met with when it was gone.
    """
    ends, path = read_diaries(folder, "end"), folder / "failed"
    failed = json.loads(path.read_text()) if path.exists() else {}
    failed = {int(rank): status for rank, status in failed.items()}
    raised = sorted((end["time"], rank) for rank, end in ends.items()
                    if end["kind"] == "raised")
    own = [rank for _, rank in raised if not ends[rank]["peer"]]
    if own:
        return _raised(own[0], ends)
    exits = [rank for rank, end in ends.items() if end["status"]
             and end["kind"] == "exit"]
    details = ends[raised[0][1]]["traceback"] if raised else ""
    silent = {rank: status for rank, status in failed.items() if rank not in ends}
    # torchrun sends SIGTERM to the others, and gloo aborts when another is gone
    first = [rank for rank, status in silent.items() if status not in (
        -signal.SIGTERM, -signal.SIGABRT)] or ([] if exits or raised else [*silent])
    if first:
        status = silent[first[0]]
        if status < 0:
            return Ended("killed", first[0], f"rank {first[0]} was killed by "
                         f"{signal_name(-status)}", details)
        return Ended("exited", first[0], f"rank {first[0]} ended with status {status}",
                     details)
    if exits:
        status = ends[exits[0]]["status"]
        return Ended("exited", exits[0], f"rank {exits[0]} ended with status {status}",
                     details)
    if raised:
        return _gone(folder, ends, details, failed) or _raised(raised[0][1], ends)
    if code:
        return Ended("died", None, f"torchrun ended with status {code}",
                     (folder / "torchrun").read_text())
    return None


def _raised(rank, ends):
    return Ended("raised", rank, f"rank {rank} raised {ends[rank]['text']}",
                 ends[rank]["traceback"])


def _gone(folder, ends, details, failed=()):
    """Return the end of a rank that left without an error, None if there is none."""
    for path in sorted(folder.glob("pid-*")):
        rank = int(path.name.removeprefix("pid-"))
        end = ends.get(rank, {"kind": "os._exit", "status": 0})
        if rank in failed or end["status"] or (rank not in ends and _lives(path)):
            continue
        how = {"end": "came to the end of the script"}.get(
            end["kind"], "left with status 0")
        return Ended("gone", rank, f"rank {rank} {how}", details)
    return None


def _lives(path):
    """Return whether the process lives whose number is in the file."""
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def _hung(folder, text, seconds):
    """Ask every rank where it stands; say who has left, if somebody has."""
    for path in folder.glob("pid-*"):
        try:
            os.kill(int(path.read_text()), signal.SIGUSR1)
        except ProcessLookupError:
            pass
    time.sleep(0.5)
    details = "\n".join(f"rank {path.name.removeprefix('stands-')}: {path.read_text()}"
                        for path in sorted(folder.glob("stands-*")))
    return _gone(folder, read_diaries(folder, "end"), details) or Ended(
        "hung", 0, f"{text} in {seconds:g} s", details)
