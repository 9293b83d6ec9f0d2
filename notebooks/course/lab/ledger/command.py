"""The command `python -m course compare`: every method against one device."""

import argparse

from manual_dp.files import write_json


def add_parser(commands, count, rate, file):
    """Add `compare` to the commands; count, rate and file read what they say."""
    parser = commands.add_parser(
        "compare", help="every method against one device",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--world-size", type=count, nargs="+", default=[2], metavar="N",
        help="numbers of ranks, one table for each")
    add("--steps", type=count, default=100, metavar="N",
        help="steps, from the same weights on the same minibatches")
    add("--batch-size", type=count, default=24, metavar="N",
        help="examples in a minibatch, at least 3 a rank")
    add("--seed", type=int, default=0, metavar="N",
        help="draws weights and minibatches")
    add("--lr", type=rate, default=0.05, metavar="R", help="learning rate")
    add("--out", type=file, metavar="FILE", help="write JSON here")
    parser.set_defaults(command=run)


def run(args):
    """Hold every method of training in step against one device; print, write JSON."""
    from course.lab.ledger.compare import compare, table
    runs = []
    for world_size in args.world_size:
        runs.append(compare(world_size, args.steps, args.batch_size, args.seed,
                            args.lr))
        print("\n" * (len(runs) > 1) + table(runs[-1]), flush=True)
        if args.out:
            write_json(args.out, {"runs": runs})
