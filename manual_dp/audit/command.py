"""The command `python -m manual_dp audit`: run a script on ranks, and judge it.

Ranks are started as torchrun starts them, a new Python each, below `run_ranks`: an
interrupt, or the end of this process, ends all of it. What the ranks do, and leave in a
folder, is in script.py.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from importlib.machinery import PathFinder
from pathlib import Path

from manual_dp.audit.notes import unpack
from manual_dp.audit.report import Report
from manual_dp.audit.script import ASKED
from manual_dp.audit.stands import HUNG, ended
from manual_dp.audit.summary import NO_END
from manual_dp.audit.watch import judged
from manual_dp.ranks import RankError, run_ranks
from manual_dp.ranks.launch.rank import write

DAY = 86400  # seconds: a rank that hangs ends itself long before
LAST = 20  # lines that a rank printed before it was killed
PYTHON = [
    sys.executable,
    "-u",
    "-c",
    "from manual_dp.audit import script; script.main()",
]
HELP = """\
Run the first steps of your training on several ranks, and say what is wrong.

  python -m manual_dp audit -- train.py --its --arguments
  python -m manual_dp audit -m package.train --its --arguments

runs a script as torchrun does, and ends it after its first steps. It really runs, and
writes the files that it writes: checkpoints, logs. What it makes and calls is listened
to; nothing has to be declared. What follows the script is its own.

A script that starts its ranks itself runs as it is, without this command, and says
`watch(model, optimizer)` (from manual_dp.audit). More exact is
manual_dp.audit.audit_step, which compares with one device.

Exit status: 0 no finding in what was looked at; 1 findings; 2 nothing was compared.
With --strict, a line to check counts as a finding.
"""


def add_parser(commands, count):
    """Add `audit` to the commands; `count` reads a number."""
    parser = commands.add_parser(
        "audit",
        help="is your training on many devices correct?",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- SCRIPT.py",
        help="a script and its arguments",
    )
    parser.add_argument(
        "-m",
        nargs=argparse.REMAINDER,
        dest="module",
        metavar="MODULE",
        help="a module and its arguments, in place of a script",
    )
    for name, default, of in [
        ("world-size", 2, "ranks"),
        ("steps", 3, "steps; more than an epoch has show what only its end shows"),
        ("timeout", 60, "seconds until ranks that wait are given up"),
    ]:
        parser.add_argument(
            f"--{name}",
            type=count,
            default=default,
            metavar="N",
            help=f"{of} ({default})",
        )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 for a line to check, too"
    )
    parser.set_defaults(command=audit_command)


def audit_command(args):
    """Audit; print the report; return the exit status."""
    words = ["-m", *args.module] if args.module else args.words
    if words[:1] != ["--"]:
        _say_whose(words)
    report = audit_script(words, args.world_size, args.steps, args.timeout, show=True)
    print(report)
    if report.details:
        print(report.details)
    if report.findings or (args.strict and report.look_at):
        return 1
    return 0 if report.compared else 2


def _say_whose(words):
    """Say so if an option of ours stands behind the script, which gets it."""
    ours = ("--world-size", "--steps", "--timeout", "--strict")
    if behind := [word for word in words if word.split("=")[0] in ours]:
        print(
            f"audit: {behind[0]} stands behind the script, so the script gets it. Ours "
            "stand before it; -- before the script says that this is meant.",
            file=sys.stderr,
        )


def audit_script(words, world_size=2, steps=3, timeout=60, show=False):
    """Run words, a script and its arguments, on ranks; return a Report.

    words: ["train.py", ...], or ["-m", "package.train", ...].
    steps: it is ended after so many updates. timeout: seconds that all ranks may wait.
    show: print what the ranks print, while they run.
    Raises FileNotFoundError without the script, RuntimeError if it cannot be looked at.
    """
    words = [str(word) for word in words]
    words = words[1:] if words[:1] == ["--"] else words
    _check_script(words)
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            ASKED: json.dumps([folder, steps, timeout]),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "LOCAL_WORLD_SIZE": str(world_size),
            "TORCHELASTIC_RUN_ID": "audit",
            "TORCH_DISTRIBUTED_DEBUG": "INFO",
        }
        printed = Printed(folder, world_size if show else 0)
        error = None
        try:
            run_ranks(
                run_script,
                world_size,
                start_python,
                words,
                environ,
                folder,
                timeout=DAY,
            )
        except RankError as how:
            error = how
        finally:
            printed.stop()
        name = words[1] if words[0] == "-m" else words[0]
        return _report(name, folder, world_size, steps, error)


def _check_script(words):
    if not words:
        raise FileNotFoundError(
            "no script is named: audit -- train.py --its --arguments"
        )
    name = words[0]
    if name == "-m":
        module = "".join(words[1:2])
        path = [os.getcwd(), *sys.path]
        if not module or not PathFinder.find_spec(module.partition(".")[0], path):
            raise FileNotFoundError(f"there is no module {module}")
    elif not os.path.isfile(name):
        raise FileNotFoundError(f"there is no script {name}")
    elif name.endswith(".ipynb"):
        raise RuntimeError(
            f"{name} is a notebook: write its cells into a script (jupyter nbconvert "
            "--to script), or say watch(model, optimizer) in the function of its ranks"
        )
    elif not name.endswith(".py"):
        raise RuntimeError(
            f"{name} is no Python script: name the .py file that it runs"
        )


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_script(start, words, environ, folder):
    """Run the script in a new Python; raise RuntimeError if that ended badly.

    start: starts the Python. By that error, run_ranks ends the other ranks. A rank
    whose Python could not say how it ended is told from its exit status.
    """
    rank = os.environ["RANK"]
    with open(f"{folder}/out-{rank}", "wb") as out:
        code = start(words, environ, out)
    end = Path(folder, f"end-{rank}")
    if not end.exists():
        kind, text = "exited", f"rank {rank} ended its process with status {code}"
        if code == HUNG:
            kind, text = "hung", f"rank {rank} waited for others"
        elif code < 0:
            name = signal.Signals(-code).name
            kind, text = "killed", f"rank {rank} was killed by {name}"
        said = {"kind": kind, "text": text, "details": ""}
        write(folder, f"end-{rank}", json.dumps(said).encode())
    kind = json.loads(end.read_text())["kind"]
    if kind != "ended" and not Path(folder, "enough").exists():
        raise RuntimeError(f"the script of rank {rank}: {kind}")


def start_python(words, environ, out):
    """Start a new Python that is a rank of the script; return its exit status."""
    environ = {**os.environ, **environ}
    return subprocess.run(
        [*PYTHON, *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
    ).returncode


def _report(name, folder, world_size, steps, error):
    """Return the Report on what the ranks left in the folder."""
    ranks = range(world_size)
    ends = {}
    for rank in ranks:
        path = Path(folder, f"end-{rank}")
        if path.exists():
            ends[rank] = json.loads(path.read_text())
    for end in ends.values():
        if end["kind"] == "cannot look":
            raise RuntimeError(f"{name}: {end['text']}")
    paths = [Path(folder, f"run-{rank}") for rank in ranks]
    report = None
    if all(path.exists() for path in paths):
        runs = [unpack(path.read_bytes()) for path in paths]
        if any(run.updates or run.unjudged for run in runs):
            report = judged(runs, steps)
    heard = all(Path(folder, f"last-{rank}").exists() for rank in ranks)
    if error and not heard and not Path(folder, "enough").exists():
        bad = {rank: end for rank, end in ends.items() if end["kind"] != "ended"}
        if bad:
            # a rank that waited is the consequence of one that died or raised
            rank = min(bad, key=lambda rank: bad[rank]["kind"] == "hung")
            end = bad[rank]
            error = RankError(end["text"], rank, end["details"], end["kind"])
        if error.kind in ("killed", "exited"):  # what it printed last may tell
            printed = Path(folder, f"out-{error.rank}").read_text(errors="replace")
            error.details = "\n".join([error.details, *printed.splitlines()[-LAST:]])
        report = report or Report([], world_size=world_size)
        end = ended(error, folder)
        before = [f for f in report.findings if f.code == "mismatch"]
        if before and end.code == "hang":
            end = end._replace(
                cause="what is told above, most likely",
                repair="mend that first",
                see="",
            )
        if end.code == "hang":  # a loader may have run out since the last step
            report.not_looked_at = [w for w in report.not_looked_at if w != NO_END]
        follows = ["mismatch"]
        if end.code == "not-trained":  # DDP still waits: no gradient was averaged
            follows.append("not-synchronised")
        rest = [f for f in report.findings if f.code not in follows]
        report.findings = [*before, end, *rest]
        report.details = error.details
        return report
    if not report:
        raise RuntimeError(
            f"{name} came to its end, and no optimizer's step was heard while there "
            "was a process group: is it a script for torchrun, and does it train?"
        )
    died = [end["text"] for end in ends.values() if end["kind"] == "killed"]
    if died:  # after the last step that was asked for
        words = f"why {died[0]} after these steps: repeat it with more --steps"
        report.not_looked_at.insert(0, words)
    return report


class Printed(threading.Thread):
    """Print what the ranks print, line by line, with the rank before it."""

    def __init__(self, folder, world_size):
        super().__init__(daemon=True)
        self.folder, self.over = Path(folder), threading.Event()
        self.files, self.begun = {}, [""] * world_size
        self.start()

    def run(self):
        """Look ten times a second."""
        while not self.over.wait(0.1):
            self.look()

    def look(self):
        """Print the lines that are there and were not printed yet."""
        for rank, begun in enumerate(self.begun):
            path = self.folder / f"out-{rank}"
            if rank not in self.files and path.exists():
                self.files[rank] = path.open(errors="backslashreplace")
            if rank in self.files:
                *lines, self.begun[rank] = (begun + self.files[rank].read()).split("\n")
                for line in lines:
                    print(f"rank {rank}: {line}", flush=True)

    def stop(self):
        """Print the rest."""
        self.over.set()
        self.join()
        self.look()
        for rank, file in self.files.items():
            file.close()
            if self.begun[rank]:
                print(f"rank {rank}: {self.begun[rank]}", flush=True)
