"""The command `python -m manual_dp audit`: run a script under torchrun, and judge it.

    add_parser     what the command takes
    audit_script   the Report on a script's first steps

In a folder each rank R leaves rank-R, how far it is; run-R, what was seen; calls-R, its
last collective, when asked; end-R, how the script ended. All runs below one rank of
`run_ranks`: an interrupt, or the end of this process, ends all of it.
"""

import argparse
import json
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from manual_dp.audit2 import meet
from manual_dp.audit2.report import Report, check_codes
from manual_dp.audit2.watch import FOLDER, WATCHED, judged, on_wrapping
from manual_dp.ranks import RankError, run_ranks
from manual_dp.ranks.launch.verdict import listed

DAY = 86400  # seconds: the script's own deadline is another one
START = 120  # seconds until every rank has begun: a busy machine takes long
INSIDE = f"from {__name__} import inside; inside()"
PEERS = ("Connection reset", "Connection closed", "Broken pipe", "GLHF")
HELP = """\
Run a few steps of your training on several ranks, and say what is wrong.

  python -m manual_dp audit -- train.py --its --arguments

runs a script under torchrun, as it is, and ends it after its first steps. It should say
`watch(model, optimizer)` (from manual_dp.audit); if not, what it wraps in DDP is
watched. A script that starts its ranks itself (mp.spawn) says watch in these, and is run
without this command. More exact is manual_dp.audit.audit, beside a single device.

Do not set TORCH_DISTRIBUTED_DEBUG=DETAIL: DDP crashes with it on some builds of torch.
Exit status: 0 clean; 1 findings; 2 it could not be run; 3 no finding, but not all could
be checked.
"""


def add_parser(commands, count, file):
    """Add `audit` to the commands; `count` and `file` read a number and a path."""
    parser = commands.add_parser(
        "audit", help="is your training on many devices correct?", description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="-- SCRIPT.py", help="a script, and "
                        "its arguments")
    for name, default, of in [("world-size", 2, "ranks"), ("steps", 3, "steps"), (
            "timeout", 60, "seconds until ranks that wait are given up")]:
        parser.add_argument(f"--{name}", type=count, default=default, metavar="N",
                            help=f"{of} ({default})")
    parser.add_argument("--out", type=file, metavar="FILE", help="write JSON here")
    parser.set_defaults(command=audit_command)


def audit_command(args):
    """Audit; print the report, write JSON; return the exit status."""
    report = audit_script(args.words, args.world_size, args.steps, args.timeout)
    print(report)
    if report.details:
        print(report.details)
    if args.out:
        report.save(args.out)
    return 1 if report.findings else 3 if report.unchecked else 0


def audit_script(words, world_size=2, steps=3, timeout=60, ignore=()):
    """Run words, a script and its arguments, under torchrun; return a Report.

    steps: it is ended when so many are taken. timeout: seconds in which some rank must
    get farther. ignore: codes of findings, as in `audit`.
    Raises FileNotFoundError without the script, ValueError for what is none,
    RuntimeError if there is nothing to judge.
    """
    check_codes(ignore)
    name, *_ = words = [str(word) for word in words]
    if name in ("torchrun", "python", "python3", "-m"):
        raise ValueError(f"leave {name} out and give the script's file: the command "
                         "starts its ranks: audit --world-size 2 -- package/train.py")
    if not os.path.exists(name):
        raise FileNotFoundError(f"there is no script {name}")
    with tempfile.TemporaryDirectory() as folder:
        [how] = run_ranks(_start, 1, words, folder, world_size, steps, timeout,
                          timeout=DAY)
        folder, everyone = Path(folder), range(world_size)
        runs = [pickle.loads((folder / f"run-{rank}").read_bytes())  # noqa: S301 (ours)
                for rank in everyone if (folder / f"run-{rank}").exists()]
        if len(runs) == world_size:
            report = judged(runs, steps, ignore)
        elif how:
            kind, rank, text, details = how
            error = RankError(text, rank, details, kind)
            report = Report([meet.ended(error, folder)], (), (), world_size,
                            details=details)
            report.set_aside(ignore)
        else:
            missing = [rank for rank in everyone if not (folder / f"run-{rank}").exists()]
            raise RuntimeError(f"{name} came to its end, and nothing was watched on "
                               f"{listed(missing)}: say watch(model, optimizer) once "
                               "the process group is there, or wrap the model in DDP")
    return report


def _start(words, folder, world_size, steps, timeout):
    """Run the script; return (kind, rank, text, details) of its end, None if well."""
    environ = {**os.environ, FOLDER: folder, f"{FOLDER}_STEPS": str(steps),
               "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    running = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--local-addr=localhost", f"--nproc_per_node={world_size}",
         f"--log-dir={folder}", "--no-python", sys.executable, "-c", INSIDE, *words],
        env=environ)
    try:
        return _follow(running, Path(folder), world_size, timeout)
    finally:
        running.kill()  # and what is below it goes with this rank
        running.wait()


def _follow(running, folder, world_size, timeout):
    """Wait for the ranks' notes or the end of torchrun; return how it ended, or None."""
    seen, since = None, time.monotonic()
    while running.poll() is None:
        now = [path.read_bytes() for path in sorted(folder.glob("rank-*"))]
        done = len([*folder.glob("run-*")])
        if now[:] + [done] != seen and not (done and seen and seen[-1]):
            seen, since = [*now, done], time.monotonic()  # others may go on for ever
        if done == world_size:
            return None
        patience = timeout if len(now) == world_size else max(timeout, START)
        if time.monotonic() > since + patience:
            (folder / "ask").touch()
            time.sleep(2)
            return "hung", None, f"no rank got farther in {patience:g} s", ""
        time.sleep(0.05)
    ends = {rank: json.loads(path.read_text()) for rank in range(world_size)
            if (path := folder / f"end-{rank}").exists()}
    bad = sorted((end["peer"], end["time"], rank) for rank, end in ends.items()
                 if end["text"])  # what first went wrong, and was no other rank's fault
    gone = [rank for rank in range(world_size) if rank not in ends]
    details = "\n".join(ends[rank]["details"] for *_, rank in bad[:1])
    if gone and running.returncode and not (bad and not bad[0][0]):
        return "killed", gone[0], (f"{listed(gone)} ended without a word: killed, or "
                                   "stopped by gloo"), details
    if bad:
        rank = bad[0][2]
        return "left" if bad[0][0] else "raised", rank, (
            f"rank {rank} {ends[rank]['text']}"), details
    return None


def inside():
    """Be a rank: run the script that the command line names, as python would."""
    folder, rank = Path(os.environ[FOLDER]), os.environ["RANK"]
    meet.Calls(folder, rank).start()
    on_wrapping()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    end = {"text": "", "details": "", "peer": False}
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        for one in WATCHED:
            one.finish()
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            text = f"raised {type(error).__name__}: {error}"
            end = {"text": text, "details": traceback.format_exc(),
                   "peer": any(word in text for word in PEERS)}
        raise
    finally:
        (folder / f"end-{rank}").write_text(json.dumps({**end, "time": time.time()}))
