"""The command line: `python -m manual_dp train` and `python -m manual_dp audit`."""

import argparse
import math
import sys
from itertools import product
from pathlib import Path

from manual_dp.audit import command as audit_command
from manual_dp.files import write_json


def main(argv=None):
    """Run a command; return the exit status."""
    return run(_parser(), argv)


def run(parser, argv):
    """Run the command that `parser` finds in `argv`; return the exit status."""
    args = parser.parse_args(argv)
    try:
        return args.command(args) or 0
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        kept = "; finished runs are kept" if args.command is train_command else ""
        parser.exit(130, f"\ninterrupted{kept}\n")


def train_command(args):
    """Train once for each seed, world size and rate; print a table, write JSON."""
    from manual_dp.data import load_data
    from manual_dp.devices import try_devices
    from manual_dp.train import train

    # if data is missing or damaged, fail now and not after the first run
    load_data(args.data, root=args.data_dir)
    settings = {
        name: getattr(args, name)
        for name in ("data", "batch_size", "per_device", "lr", "epochs", "scale")
    }
    runs = []
    for seed, world_size, lr in product(args.seeds, args.world_size, args.lr):
        batch_size = args.batch_size * (world_size if args.per_device else 1)
        data = load_data(args.data, batch_size, seed, args.data_dir)
        run = train(
            try_devices(world_size),
            batch_size,
            lr,
            args.epochs,
            data,
            seed,
            args.scale,
            verbose=False,
            progress=_bar,
        )
        runs.append({"seed": seed, "batch_size": batch_size, "lr": lr, **run})
        if args.out:
            write_json(args.out, {"settings": settings, "runs": runs})
    print(table(runs))


def table(runs):
    """Return the runs as the lines of a table."""
    lines = ["devices  batch      lr  seed  best acc  last acc  last loss  sec/epoch"]
    for run in runs:
        acc, seconds = run["test_acc"], run["seconds"]
        lines.append(
            f"{run['world_size']:7d}  {run['batch_size']:5d}  {run['lr']:6g}  "
            f"{run['seed']:4d}  {max(acc):8.3f}  {acc[-1]:8.3f}  "
            f"{run['loss'][-1]:9.4f}  {sum(seconds) / len(seconds):9.2f}"
        )
    return "\n".join(lines)


def _bar(items, label):
    """Wrap `items` in a progress bar that shows on a terminal only."""
    try:
        from tqdm import tqdm
    except ImportError:  # the core needs torch only
        return items
    return tqdm(items, desc=label, leave=False, disable=None)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m manual_dp",
        description="Train one network on many devices, by hand.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser(
        "train",
        help="train on one device, on two, ...",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    train.add_argument(
        "--world-size",
        type=count,
        nargs="+",
        metavar="N",
        default=[1, 2],
        help="numbers of devices, one run for each",
    )
    train.add_argument(
        "--data",
        choices=("digits", "fashion-mnist"),
        default="digits",
        help="what to train on",
    )
    train.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of Fashion-MNIST's four .gz files",
    )
    train.add_argument("--epochs", type=count, default=10, metavar="N", help="epochs")
    train.add_argument(
        "--batch-size",
        type=count,
        default=256,
        metavar="N",
        help="examples in a minibatch, over all devices",
    )
    train.add_argument(
        "--per-device",
        action="store_true",
        help="each device gets --batch-size examples in a minibatch",
    )
    train.add_argument(
        "--lr",
        type=rate,
        nargs="+",
        default=[0.2],
        metavar="R",
        help="learning rates, one run for each",
    )
    train.add_argument(
        "--scale",
        type=_scale,
        default="he",
        metavar="S",
        help='spread of the initial weights: a number (the book: 0.01) or "he"',
    )
    train.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0],
        metavar="N",
        help="one run for each seed",
    )
    train.add_argument("--out", type=file, metavar="FILE", help="write JSON here")
    train.set_defaults(command=train_command)

    audit_command.add_parser(commands, count)
    return parser


def count(text):
    """Read a whole number from 1 to a million."""
    if not text.isdecimal() or not 1 <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 10^6")
    return int(text)


def rate(text):
    """Read a finite number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number >= 0")
    return value


def _scale(text):
    return text if text == "he" else rate(text)


def file(text):
    """Read the path of a file in a folder that is there."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in an existing folder")
    return path


if __name__ == "__main__":
    sys.exit(main())
