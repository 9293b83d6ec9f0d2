"""The command line: `python -m course compare`, bench."""

import argparse
import sys
from pathlib import Path

from course.lab.ledger import command as compare
from manual_dp.__main__ import count, file, rate, run
from manual_dp.files import write_json


def main(argv=None):
    """Run a command; return the exit status."""
    return run(_parser(), argv)


def bench_command(args):
    """Print the course's figures as ratios, or what the GPUs can show."""
    if args.gpu:
        from course.lab.gpu import bench as gpu
        report = gpu.run(args.only)
        print(gpu.table(report))
        if args.out:
            write_json(args.out, report)
        return int(any("failed" in row for row in report["rows"].values()))
    from course.lab.bench import bench
    report = bench(args.only, args.repeat, args.data_dir)
    if args.out:
        write_json(args.out, report)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m course",
        description="Compare and time ways to train on many devices.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    compare.add_parser(commands, count, rate, file)
    bench = commands.add_parser("bench", help="time what the course claims, as ratios",
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    bench.add_argument("--only", nargs="+", metavar="NAME", help="these rows only")
    bench.add_argument("--gpu", action="store_true",
                       help="what this machine's GPUs can show, in place of the ratios")
    bench.add_argument("--repeat", type=count, default=15, metavar="N",
                       help="timed runs of each pair")
    bench.add_argument("--data-dir", type=Path, metavar="DIR",
                       help="folder of Fashion-MNIST's four .gz files")
    bench.add_argument("--out", type=file, metavar="FILE", help="write JSON here")
    bench.set_defaults(command=bench_command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
