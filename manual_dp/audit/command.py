"""The command `python -m manual_dp audit`: what it takes, and what it prints."""

import argparse
import importlib
import sys

HELP = """\
Run a few steps of your training on several ranks beside a single device, and say what
is wrong. FUNCTION returns the arguments of manual_dp.audit.audit as a dict:

  def mine():                                    # in my_package/train.py
      return {"make_model": ..., "make_batch": ..., "step": ..., "world_size": 2}

  python -m manual_dp audit my_package.train:mine

The exit status is 0 for a clean report, 1 for findings, 2 if it could not be run.
"""


def add_parser(commands, count, file):
    """Add `audit` to the commands; `count` and `file` read a number and a path."""
    parser = commands.add_parser(
        "audit", help="is your training on many devices correct?", description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", metavar="PACKAGE.MODULE:FUNCTION",
                        help="where the arguments come from")
    parser.add_argument("--world-size", type=count, metavar="N",
                        help="ranks, instead of what the function says")
    parser.add_argument("--out", type=file, metavar="FILE", help="write JSON here")
    parser.set_defaults(command=audit_command)


def audit_command(args):
    """Audit; print the table, write JSON; return 1 if there is a finding."""
    from manual_dp.audit import audit
    settings = _settings(args.function)
    if args.world_size:
        settings = {**settings, "world_size": args.world_size}
    try:
        report = audit(**settings)
    except TypeError as error:  # the function's dict: no bug of the command's
        raise ValueError(f"{args.function}: {error}") from error
    print(report)
    if args.out:
        report.save(args.out)
    return 1 if report.findings else 0


def _settings(name):
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"say package.module:function, got {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as python -m has it; a console script may not
    settings = getattr(importlib.import_module(module), function, None)
    if not callable(settings):
        raise ValueError(f"{module} has no function {function}")
    settings = settings()
    if not isinstance(settings, dict):
        raise ValueError(f"{name} must return a dict, got {type(settings).__name__}")
    return settings
