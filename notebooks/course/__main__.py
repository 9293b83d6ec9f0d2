"""The command line: `python -m course points`, compare, bench."""

import argparse
import sys

from course.lab import bench, ledger
from course.school import points
from manual_dp.__main__ import count, file, run
from manual_dp.files import write_json


def main(argv=None):
    """Run a command; return the exit status."""
    return run(_parser(), argv)


def points_command(args):
    """Print how many points a learner's copy of a problem set has."""
    path = points.find(args.set)
    print(
        f"{path}: its answers and checks run, which takes a minute or two", flush=True
    )
    print("\n".join(points.lines(points.points(path))))


def compare_command(args):
    """Hold every method of training in step against one device; print, write JSON."""
    runs = []
    for world_size in args.world_size:
        runs.append(ledger.compare(world_size, args.steps, args.batch_size))
        print("\n" * (len(runs) > 1) + ledger.table(runs[-1]), flush=True)
        if args.out:
            write_json(args.out, {"runs": runs})


def bench_command(args):
    """Print the course's figures as ratios, write JSON."""
    found = bench.bench(args.only, args.repeat)
    if args.out:
        write_json(args.out, found)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m course",
        description="Count a set's points; compare and time ways to train.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shown = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}

    counted = commands.add_parser("points", help="how many points do I have?")
    counted.add_argument("set", metavar="SET", help="ps1, or a notebook's file")
    counted.set_defaults(command=points_command)

    compare = commands.add_parser(
        "compare", help="every method against one device", **shown
    )
    compare.add_argument(
        "--world-size",
        type=count,
        nargs="+",
        default=[2],
        metavar="N",
        help="numbers of ranks, one table for each",
    )
    compare.add_argument(
        "--steps",
        type=count,
        default=100,
        metavar="N",
        help="steps, from the same weights on the same minibatches",
    )
    compare.add_argument(
        "--batch-size",
        type=count,
        default=24,
        metavar="N",
        help="examples in a minibatch, at least 3 a rank",
    )
    compare.set_defaults(command=compare_command)

    timed = commands.add_parser(
        "bench", help="time what the course claims, as ratios", **shown
    )
    timed.add_argument("--only", nargs="+", metavar="NAME", help="these rows only")
    timed.add_argument(
        "--repeat", type=count, default=15, metavar="N", help="timed runs of each pair"
    )
    timed.set_defaults(command=bench_command)
    for command in (compare, timed):
        command.add_argument("--out", type=file, metavar="FILE", help="write JSON here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
