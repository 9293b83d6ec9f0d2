"""The command `python -m course plan`: what it takes, and what it prints."""

import argparse
import math
import sys

from course.lab.network.plan import NODELESS

HELP = """\
Predict a step of data parallel training on more devices, before paying for them.

  python -m course plan --params 25e6 --flops 4e9 --link pcie4 \\
      --world-size 1 2 4 8 64 512

It counts what the all-reduces send, prices it by the links, and lets it run beside
backward, bucket by bucket. It leaves out loading, the update, and the wait for slower
ranks: a prediction is about the best to hope for.
"""


def add_parser(commands, count, file):
    """Add `plan` to the commands; `count` and `file` read a number and a path."""
    parser = commands.add_parser(
        "plan", help="predict step time and cost on more devices", description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--params", type=_positive, required=True, metavar="N", help="weights")
    add("--flops", type=_positive, required=True, metavar="N",
        help="operations of one row's forward; a multiplication and an addition are 2")
    add("--link", type=_link, required=True, metavar="LINK",
        help="between devices: pcie4, nvlink4, eth25, eth100, eth400, ib400, or bytes "
             "a second, such as 12e9, or seconds a message before them: 5e-6,12e9")
    add("--between", type=_link, metavar="LINK",
        help="between nodes, with --per-node (as --link)")
    add("--per-node", type=count, metavar="N",
        help="devices in a node; without it, all are on one")
    add("--way", choices=NODELESS, nargs="+", default=["ring"],
        help="all-reduces inside a node, the fastest is taken (ring); between nodes "
             "these are ring and two-level")
    add("--world-size", type=count, nargs="+", default=[1, 2, 4, 8], metavar="N",
        help="numbers of devices, a line for each (1 2 4 8)")
    add("--rows", type=count, default=32, metavar="N",
        help="rows of each device in a step (32)")
    add("--batch-size", type=count, metavar="N",
        help="rows of all devices in a step, in place of --rows")
    add("--speed", type=_positive, default=1e13, metavar="N",
        help="operations a second that a device reaches: not its peak (1e13)")
    add("--itemsize", type=int, choices=(2, 4, 8), default=4,
        help="bytes of a number (4)")
    add("--states", type=int, choices=(0, 1, 2), default=1,
        help="numbers that the optimizer keeps for a weight: SGD 0, momentum 1, Adam 2 "
             "(1)")
    add("--price", type=_positive, default=1.0, metavar="P",
        help="of one device for an hour (1)")
    add("--out", type=file, metavar="FILE.svg", help="draw it here")
    parser.set_defaults(command=plan_command)


def plan_command(args):
    """Predict; print a table, draw it."""
    from course.lab.network import plan
    if args.between and not args.per_node:
        raise ValueError("--between is the link between nodes: say --per-node, too")
    if args.out and args.out.suffix != ".svg":
        raise ValueError(f"--out is drawn as SVG: its name must end in .svg, got "
                         f"{args.out.name}")
    job = plan.Job(args.params, args.flops, args.rows, args.batch_size, args.itemsize,
                   args.states)
    machine = plan.Machine(args.speed, args.link, args.between, args.per_node,
                           args.price, tuple(args.way))
    found = plan.rows(job, machine, sorted(set(args.world_size)))
    if args.out:
        from course.lab.figures import bars
        args.out.write_text(bars.plan(found)._repr_svg_(), encoding="utf-8")
    sys.stdout.write(plan.table(found) + "\n")


def _positive(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e30:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, up to 1e30")
    return value


def _link(text):
    from course.lab.network.links import link
    try:
        return link(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
