"""The command line: `python -m course compare`, bench."""

import argparse
import sys

from course.lab import bench, ledger
from manual_dp.__main__ import count, file, run


def main(argv=None):
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m course",
        description="Compare and time ways to train on many devices.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for page in (ledger, bench):
        page.add_parser(commands, count, file)
    return run(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
