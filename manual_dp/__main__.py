"""The command line: `python -m manual_dp train`, compare, plan, bench, audit."""

import argparse
import math
import os
import sys
from itertools import product
from pathlib import Path

from manual_dp.audit import command as audit_command
from manual_dp.files import write_json
from manual_dp.lab.ledger import command as compare_command
from manual_dp.lab.network import command as plan_command
from manual_dp.lab.progress import bar
from manual_dp.lab.trainer import command as trainer_command


def main(argv=None):
    """Run a command; return the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return args.command(args) or 0
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted; finished runs are kept\n")


def train_command(args):
    """Train once for each seed, world size and rate; print a table, write JSON."""
    if not trainer_command.by_hand(args):
        return train_on_ranks(args)
    from manual_dp.data import load_data
    from manual_dp.devices import try_devices
    from manual_dp.train import train

    load_data(args.data, root=args.data_dir)  # fails here rather than in a run
    settings = {name: getattr(args, name) for name in
                ("data", "batch_size", "per_device", "lr", "epochs", "scale")}
    runs = []
    for seed, world_size, lr in product(args.seeds, args.world_size, args.lr):
        batch_size = args.batch_size * (world_size if args.per_device else 1)
        data = load_data(args.data, batch_size, seed, args.data_dir)
        run = train(try_devices(world_size), batch_size, lr, args.epochs, data, seed,
                    args.scale, verbose=False, progress=bar)
        runs.append({"seed": seed, "batch_size": batch_size, "lr": lr, **run})
        if args.out:
            write_json(args.out, {"settings": settings, "runs": runs})
    print(table(runs))


def train_on_ranks(args):
    """Train any network by any method; print what the runs say, write JSON."""
    from manual_dp.lab import trainer
    if trainer.joined.inside():
        runs = trainer.joined.train(args)
        if os.environ["RANK"] == "0":
            print(trainer.table(trainer.summary(runs)))
        return
    plans = trainer.plans(args)
    old = trainer.kept(args.out) if args.go_on and args.out else []
    runs = [run for run in old if not any(trainer.done(plan, [run]) for plan in plans)]
    keeper = trainer.checkpointed(args)
    for plan in plans:
        runs.append(trainer.done(plan, old) or trainer.run(plan, keeper))
        if args.out:
            write_json(args.out, trainer.report(runs))
    print(trainer.table(trainer.summary(runs)))


def table(runs):
    """Return the runs as the lines of a table."""
    lines = ["devices  batch      lr  seed  best acc  last acc  last loss  sec/epoch"]
    for run in runs:
        acc, seconds = run["test_acc"], run["seconds"]
        lines.append(f"{run['world_size']:7d}  {run['batch_size']:5d}  {run['lr']:6g}  "
                     f"{run['seed']:4d}  {max(acc):8.3f}  {acc[-1]:8.3f}  "
                     f"{run['loss'][-1]:9.4f}  {sum(seconds) / len(seconds):9.2f}")
    return "\n".join(lines)


def bench_command(args):
    """Print the course's figures as ratios, or what the GPUs can show."""
    if args.gpu:
        from manual_dp.lab.gpu import bench as gpu
        report = gpu.run(args.only)
        print(gpu.table(report))
        if args.out:
            write_json(args.out, report)
        return int(any("failed" in row for row in report["rows"].values()))
    from manual_dp.lab.bench import bench
    report = bench(args.only, args.repeat, args.data_dir)
    if args.out:
        write_json(args.out, report)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m manual_dp",
        description="Train one network on many devices, by hand.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train on one device, on two, ...",
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    train.add_argument("--world-size", type=_count, nargs="+", metavar="N",
                       default=trainer_command.SIZES,
                       help="numbers of devices, one run for each")
    trainer_command.add_arguments(train, _count, _rate, _file)
    train.add_argument("--epochs", type=_count, default=10, metavar="N", help="epochs")
    train.add_argument("--batch-size", type=_count, default=256, metavar="N",
                       help="examples in a minibatch, over all devices")
    train.add_argument("--per-device", action="store_true",
                       help="each device gets --batch-size examples in a minibatch")
    train.add_argument("--lr", type=_rate, nargs="+", default=[0.2], metavar="R",
                       help="learning rates, one run for each")
    train.add_argument("--scale", type=_scale, default="he", metavar="S",
                       help='spread of the initial weights: a number (the book: 0.01) '
                            'or "he"')
    train.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N",
                       help="one run for each seed")
    train.add_argument("--out", type=_file, metavar="FILE", help="write JSON here")
    train.set_defaults(command=train_command)

    compare_command.add_parser(commands, _count, _rate, _file)
    bench = commands.add_parser("bench", help="time what the course claims, as ratios",
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    bench.add_argument("--only", nargs="+", metavar="NAME", help="these rows only")
    bench.add_argument("--gpu", action="store_true",
                       help="what this machine's GPUs can show, in place of the ratios")
    bench.add_argument("--repeat", type=_count, default=15, metavar="N",
                       help="timed runs of each pair")
    bench.add_argument("--data-dir", type=Path, metavar="DIR",
                       help="folder of Fashion-MNIST's four .gz files")
    bench.add_argument("--out", type=_file, metavar="FILE", help="write JSON here")
    bench.set_defaults(command=bench_command)
    plan_command.add_parser(commands, _count, _file)
    audit_command.add_parser(commands, _count, _file)
    return parser


def _count(text):
    if not text.isdecimal() or not 1 <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 10^6")
    return int(text)


def _rate(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number >= 0")
    return value


def _scale(text):
    return text if text == "he" else _rate(text)


def _file(text):
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in an existing folder")
    return path


if __name__ == "__main__":
    sys.exit(main())
