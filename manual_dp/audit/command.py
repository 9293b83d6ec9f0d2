"""The command `python -m manual_dp audit`: run a script on ranks, and judge it.

Ranks are started as torchrun starts them, a new python each, below `run_ranks`: an
interrupt, or the end of this process, ends all of it. In a folder rank R leaves run-R,
what was seen; end-R, how the script ended; calls-R, its last collective, if it hangs.
"""

import argparse
import json
import os
import pickle
import runpy
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

from manual_dp.audit.meet import Calls, ended
from manual_dp.audit.report import Report
from manual_dp.audit.watch import COMMAND, WATCHED, judged, on_wrapping
from manual_dp.ranks import RankError, run_ranks
from manual_dp.ranks.launch.rank import from_peer, wait_for_files, write

ASKED = "MANUAL_DP_AUDIT"  # in the environment: folder, steps, timeout
DAY = 86400  # seconds: the ranks' own deadline is another one
INSIDE = f"from {__name__} import inside; inside()"
HELP = """\
Run a few steps of your training on several ranks, and say what is wrong.

  python -m manual_dp audit -- train.py --its --arguments

runs a script as torchrun does, and ends it after its first steps. What it wraps in DDP
is watched, unless it says `watch(model, optimizer)` (from manual_dp.audit), as one must
that starts its ranks itself. More exact is manual_dp.audit.audit, beside one device.

Exit status: 0 clean; 1 findings; 2 it could not be run; 3 no finding, but not all could
be checked.
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
        "words", nargs="+", metavar="-- SCRIPT.py", help="a script, and its arguments"
    )
    for name, default, of in [
        ("world-size", 2, "ranks"),
        ("steps", 3, "steps"),
        ("timeout", 60, "seconds until ranks that wait are given up"),
    ]:
        parser.add_argument(
            f"--{name}",
            type=count,
            default=default,
            metavar="N",
            help=f"{of} ({default})",
        )
    parser.set_defaults(command=audit_command)


def audit_command(args):
    """Audit; print the report; return the exit status."""
    report = audit_script(args.words, args.world_size, args.steps, args.timeout)
    print("\n".join(filter(None, [str(report), report.details])))
    return 1 if report.findings else 3 if report.unchecked else 0


def audit_script(words, world_size=2, steps=3, timeout=60):
    """Run words, a script and its arguments, on ranks; return a Report.

    steps: it is ended when so many are taken. timeout: seconds in which every rank must
    get farther.
    Raises FileNotFoundError without the script, RuntimeError if there is nothing to
    judge.
    """
    name, *_ = words = [*map(str, words)]
    if not os.path.exists(name):
        raise FileNotFoundError(f"there is no script {name}")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environ = {
            ASKED: json.dumps([folder, steps, timeout]),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "LOCAL_WORLD_SIZE": str(world_size),
            "TORCHELASTIC_RUN_ID": "audit",
            "TORCH_DISTRIBUTED_DEBUG": "INFO",
        }
        free.close()
        try:
            run_ranks(_become, world_size, words, environ, timeout=DAY)
        except RankError as error:
            how = error  # also where all went well: the new pythons have no result
        paths = [Path(folder, f"run-{rank}") for rank in range(world_size)]
        if all(path.exists() for path in paths):
            return judged(
                [
                    pickle.loads(path.read_bytes())  # noqa: S301 (ours)
                    for path in paths
                ],
                steps,
            )
        end = Path(folder, f"end-{how.rank}")
        text, details = (
            json.loads(end.read_text()) if end.exists() else (str(how), how.details)
        )
        if not text:
            raise RuntimeError(
                f"{name} came to its end, and nothing was watched on "
                f"rank {how.rank}: say watch(model, optimizer) once the "
                "process group is there, or wrap the model in DDP"
            )
        error = RankError(text, how.rank, details, how.kind)
        return Report([ended(error, folder)], (), world_size, details=details)


def _become(words, environ):
    """Turn this rank into a new python that runs the script."""
    os.environ.update(environ)
    os.execv(sys.executable, [sys.executable, "-c", INSIDE, *words])


def inside():
    """Be a rank: run the script that the command line names, as python would."""
    folder, steps, timeout = json.loads(os.environ[ASKED])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    end, calls = (
        ["", ""],
        Calls(
            folder,
            rank,
            timeout,
            True,
            lambda: sum(len(one.recorder.updates) for one in WATCHED),
        ),
    )

    def leave(run):
        write(folder, f"run-{rank}", pickle.dumps(run))
        wait_for_files(folder, "run", world_size, DAY)  # or until `calls` gives up
        os._exit(0)

    COMMAND.update(steps=steps, leave=leave)
    calls.start()
    on_wrapping()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        for one in WATCHED:
            one.finish()
    except BaseException as error:
        for one in WATCHED:
            one.stop()
        if not isinstance(error, SystemExit) or error.code:
            end = [
                f"rank {rank} raised {type(error).__name__}: {error}",
                traceback.format_exc(),
            ]
        if from_peer(error):
            time.sleep(3)  # whoever has gone is to be seen to end first
        raise SystemExit(getattr(error, "code", 1)) from None  # the report tells it
    finally:
        Path(folder, f"end-{rank}").write_text(json.dumps(end))
