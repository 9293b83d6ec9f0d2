"""The part of `python -m manual_dp train` that starts processes for any network."""

import os
from pathlib import Path

from course.lab.trainer import joined
from course.lab.trainer.methods import METHODS
from course.lab.trainer.runs import DATA, MODELS
from manual_dp.models.stems import STEMS

BY_HAND = "by-hand"  # manual_dp.train: replicas of LeNet in one process
SIZES = [1, 2]       # of --world-size, where it is left out


def add_arguments(train, count, number, path):
    """Add the options that networks, methods and steps need to the parser."""
    data = sorted({name for names in DATA.values() for name in names})
    train.add_argument("--model", choices=MODELS, nargs="+", default=["lenet"],
                       help="what to train; a run for each")
    train.add_argument("--stem", choices=STEMS, nargs="+", default=["torchvision"],
                       help="a ResNet's first layers: torchvision's, for large images, "
                            "or those for small ones")
    train.add_argument("--data", choices=data,
                       help="what to train on; without it digits for LeNet, stand-in, "
                            "the digits in colour, for a ResNet")
    train.add_argument("--data-dir", type=Path, metavar="DIR",
                       help="folder of Fashion-MNIST's four .gz files, or of CIFAR-10")
    train.add_argument("--rows", type=count, metavar="N",
                       help="train on so many of CIFAR-10's or the stand-in's images")
    train.add_argument("--test-rows", type=count, metavar="N",
                       help="test on so many of them")
    train.add_argument("--method", choices=(BY_HAND, *METHODS), nargs="+",
                       help="how devices work together; without it by-hand, replicas "
                            "in one process, for LeNet; ddp-by-hand for a ResNet")
    train.add_argument("--accumulate", type=count, default=1, metavar="N",
                       help="microbatches in a step, one all-reduce for all of them")
    train.add_argument("--amp", action="store_true",
                       help="mixed precision: bfloat16 on a CPU, float16 with a scaler "
                            "on GPUs")
    train.add_argument("--clip", type=number, metavar="LENGTH",
                       help="the gradient's largest length in a step")
    train.add_argument("--float64", action="store_true",
                       help="weights and images with all digits")
    train.add_argument("--checkpoint", type=path, metavar="FILE",
                       help="rank 0 saves here; a restart of the job goes on from it")
    train.add_argument("--every", type=count, metavar="N",
                       help="steps from one checkpoint to the next; without it, an "
                            "epoch's")
    train.add_argument("--resume", action="store_true",
                       help="go on from another job's --checkpoint, too")
    train.add_argument("--go-on", action="store_true",
                       help="keep the runs that the file of --out holds, and run those "
                            "that it lacks")


def by_hand(args):
    """Say whether LeNet's replicas in one process are asked for, and nothing else."""
    if args.method is None:
        alone = args.model == ["lenet"] and not joined.inside()
        args.method = [BY_HAND if alone else "ddp-by-hand"]
    if joined.inside():
        _fit_torchrun(args)
    if BY_HAND not in args.method:
        return False
    if args.model != ["lenet"] or len(args.method) > 1:
        raise ValueError(f"--method {BY_HAND} trains LeNet, and alone; the others, "
                         f"{', '.join(METHODS)}, train every network")
    args.data = args.data or DATA["lenet"][0]
    if args.data not in DATA["lenet"]:
        raise ValueError(f"--model lenet trains on {' or '.join(DATA['lenet'])}, "
                         f"not on {args.data}")
    given = [flag for flag, value in (
        ("--accumulate", args.accumulate > 1), ("--amp", args.amp),
        ("--clip", args.clip), ("--rows", args.rows), ("--test-rows", args.test_rows),
        ("--go-on", args.go_on), ("--float64", args.float64),
        ("--checkpoint", args.checkpoint), ("--every", args.every),
        ("--resume", args.resume))
        if value]
    if given:
        raise ValueError(f"{given[0]} is not for --method {BY_HAND}; take one of "
                         f"{', '.join(METHODS)}")
    return True


def _fit_torchrun(args):
    """Take the number of ranks from torchrun, which has started them."""
    processes = int(os.environ["WORLD_SIZE"])
    alone = [name for name in args.method if name in (BY_HAND, "dataparallel")]
    if alone:
        raise ValueError(f"--method {alone[0]} is one process for all devices, and "
                         f"torchrun has started {processes}: take ddp or ddp-by-hand")
    if args.world_size is not SIZES and args.world_size != [processes]:
        asked = " ".join(map(str, args.world_size))
        raise ValueError(f"--world-size {asked} is not the {processes} ranks that "
                         "torchrun has started: leave it out")
    args.world_size = [processes]
