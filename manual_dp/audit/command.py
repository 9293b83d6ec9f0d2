"""The command `python -m manual_dp audit`: what it takes, and what it prints."""

import argparse
import contextlib
import importlib
import signal
import sys
import threading

import cloudpickle

HELP = """\
Run a few steps of your training on several ranks, and say what is wrong.

  python -m manual_dp audit -- train.py --its --arguments

runs a script under torchrun, in its own precision, with its own data. It should say
`watch(model, optimizer)` (from manual_dp.audit); if it does not, it is watched from the
moment it wraps its models in DDP, or, if it sends gradients by hand, calls its model.
It is ended after its first steps. If nothing was found, it is started again in float64
and without dropout, on the ranks and on one device, quietly: both must take the same
steps. A script that starts its ranks itself (mp.spawn) says watch in these, and is run
without this command.

  python -m manual_dp audit my_package.train:mine

calls a function that returns the arguments of manual_dp.audit.audit as a dict: this is
more exact, in float64 and beside a single device:

  def mine():                                    # in my_package/train.py
      return {"make_model": ..., "make_batch": ..., "step": ..., "world_size": 2}

What make_model and make_batch return is what step is called with, one by one:
step(model, optimizer, X, y).

Data parallelism is judged: on every rank a replica of the model, and gradients that are
averaged, or weights (local SGD). Experts, and slices of layers, that are each rank's
own are left out, and said to be; stages of a pipeline are not judged.

Exit status: 0 clean; 1 findings; 2 it could not be run; 3 no finding, but not all could
be checked: the report says what and why.
"""


def add_parser(commands, count, file):
    """Add `audit` to the commands; `count` and `file` read a number and a path."""
    parser = commands.add_parser(
        "audit", help="is your training on many devices correct?", description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", metavar="-- SCRIPT.py | PACKAGE.MODULE:FUNCTION",
                        help="a script, or where the arguments come from")
    parser.add_argument("arguments", nargs="*", help="of the script")
    parser.add_argument("--world-size", type=count, metavar="N",
                        help="ranks (2), instead of what the function says")
    parser.add_argument("--steps", type=count, metavar="N", help="steps (3)")
    parser.add_argument("--timeout", type=count, metavar="S",
                        help="seconds until ranks that wait are given up (60)")
    parser.add_argument("--ranks-only", action="store_true",
                        help="do not start a script again, on one device")
    parser.add_argument("--out", type=file, metavar="FILE", help="write JSON here")
    parser.set_defaults(command=audit_command)


def audit_command(args):
    """Audit; print the report, write JSON; return the exit status."""
    asked = {name: value for name in ("world_size", "steps", "timeout")
             if (value := getattr(args, name))}
    with _tidy():
        report = _report(args, asked)
    print(report)
    if report.details:
        print(report.details)
    if args.out:
        report.save(args.out)
    return 1 if report.findings else 3 if report.unchecked else 0


def _report(args, asked):
    from manual_dp.audit import audit, audit_script
    if args.what.endswith(".py"):
        return audit_script([args.what, *args.arguments], **asked,
                            alone=not args.ranks_only)
    if args.arguments:
        raise ValueError(f"{args.what} takes no {' '.join(args.arguments)}")
    settings = {**_settings(args.what), **asked}
    try:
        return audit(**settings)
    except TypeError as error:  # the function's dict: no bug of the command's
        raise ValueError(f"{args.what}: {error}") from error


@contextlib.contextmanager
def _tidy():
    """Let SIGTERM end what runs, and take its files away, as an interrupt does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _settings(name):
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"say package.module:function, got {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as python -m has it; a console script may not
    module = importlib.import_module(module)
    cloudpickle.register_pickle_by_value(module)  # ranks get globals as they are now
    settings = getattr(module, function, None)
    if not callable(settings):
        raise ValueError(f"{module.__name__} has no function {function}")
    settings = settings()
    if not isinstance(settings, dict):
        raise ValueError(f"{name} must return a dict, got {type(settings).__name__}")
    return settings
