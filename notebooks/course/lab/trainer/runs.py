"""Which runs are asked for; start them, one after another.

    plans    a plan for each run: a dict of settings, checked
    run      start a plan's ranks, show how far they are, return what they found
    kept     the runs that a file holds already
    done     the one among them that a plan asks for, if there is one
    checkpointed   what keeps a run's checkpoint, if that is asked for
"""

import contextlib
import json
import os
import tempfile
import threading
from itertools import product

from course.lab.progress import bar
from course.lab.trainer import methods
from course.lab.trainer.epochs import open_sets, train_rank
from course.lab.trainer.keeper import Keeper
from manual_dp.files import cifar10
from manual_dp.models import stems
from manual_dp.ranks import run_ranks

MODELS = ("lenet", *stems.NAMES)
DATA = {"lenet": ("digits", "fashion-mnist"),
        **dict.fromkeys(stems.NAMES, ("stand-in", "cifar10"))}
LIMIT = 10**6  # seconds: a run may take days; a rank that dies ends it at once


def plans(args):
    """Return the plans of all runs that the command line asks for.

    Opens the data, so that a missing file is told before anything runs. Raises
    ValueError for what does not go together.
    """
    found = [_plan(args, *choice) for choice in product(
        args.model, args.stem, args.method, args.lr, args.seeds, args.world_size)
        if choice[0] != "lenet" or choice[1] == args.stem[0]]
    if args.checkpoint and len(found) > 1:
        raise ValueError(f"--checkpoint is for one run, these are {len(found)}: name "
                         "one network, method, rate, seed and world size")
    for plan in found:
        _check(plan, args)
    sizes = {data: _sizes(plan) for data, plan in
             {plan["data"]: plan for plan in found}.items()}
    for plan in found:
        plan["rows"], plan["test_rows"] = sizes[plan["data"]]
        if plan["data"] == "cifar10":
            plan["form"] = cifar10.form(plan["data_dir"])
        if plan["rows"] < plan["batch_size"]:
            raise ValueError(f"--batch-size {plan['batch_size']} is more than the "
                             f"{plan['rows']} images to train with")
    return found


def run(plan, keeper=None):
    """Train as the plan says; return the plan and the history in one dict."""
    processes = methods.ranks(plan["method"], plan["world_size"])
    steps = plan["epochs"] * (plan["rows"] // plan["batch_size"])
    label = f"{plan['model']}, {plan['method']}, {plan['world_size']} ranks"
    with tempfile.TemporaryDirectory() as folder, _following(folder, steps, label):
        history, *_ = run_ranks(train_rank, processes, plan, f"{folder}/ticks",
                                keeper, timeout=LIMIT,
                                backend=methods.backend(processes))
    return named(plan) | history


def checkpointed(args, job=None):
    """Return the Keeper that the command line asks for, None if it asks for none."""
    if args.checkpoint is None:
        return None
    return Keeper(args.checkpoint.absolute(), args.every, job, args.resume)


def kept(path):
    """Return the runs in the file, none if there is no file.

    Raises ValueError if it is no file of `report`.
    """
    if not os.path.exists(path):
        return []
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["runs"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} holds no runs of this command: name another file, or "
                         "leave out --go-on") from None


def done(plan, runs):
    """Return the run of exactly this plan, None if none is among them."""
    asked = named(plan).items()
    return next((run for run in runs
                 if all(run.get(name) == value for name, value in asked)), None)


def named(plan):
    """Return the plan without the folder: a file names no place of one machine."""
    return {name: value for name, value in plan.items() if name != "data_dir"}


@contextlib.contextmanager
def _following(folder, steps, label):
    """Move a progress bar as the ranks' file grows."""
    done, path = threading.Event(), f"{folder}/ticks"

    def follow():
        for step in bar(range(1, steps + 1), label):
            while not done.is_set() and _size(path) < step:
                done.wait(0.2)
            if done.is_set():
                return
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _size(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def _plan(args, model, stem, method, lr, seed, world_size):
    resnet = model != "lenet"
    return {"model": model, "stem": stem if resnet else None,
            "data": args.data or DATA[model][0], "form": None,
            "data_dir": args.data_dir and str(args.data_dir),
            "rows": args.rows, "test_rows": args.test_rows,
            "method": method, "world_size": world_size, "lr": lr, "momentum": 0.9,
            "batch_size": args.batch_size * (world_size if args.per_device else 1),
            "accumulate": args.accumulate, "amp": args.amp, "clip": args.clip,
            "epochs": args.epochs, "seed": seed, "float64": args.float64 or None}


def _check(plan, args):
    model, data, parts = plan["model"], plan["data"], plan["world_size"]
    if data not in DATA[model]:
        raise ValueError(f"--model {model} trains on {' or '.join(DATA[model])}, "
                         f"not on {data}")
    if model == "lenet" and (args.rows or args.test_rows):
        raise ValueError("--rows and --test-rows are for stand-in and cifar10; "
                         f"--model lenet takes all of {data}")
    if args.float64 and args.amp:
        raise ValueError("--float64 wants all digits and --amp few: take one of them")
    if args.checkpoint is None and (args.resume or args.every):
        flag = "--resume" if args.resume else "--every"
        raise ValueError(f"{flag} is for a run with --checkpoint FILE")
    if args.scale != "he":
        raise ValueError("--scale is for --method by-hand; the others draw the weights "
                         "as torch does")
    parts *= plan["accumulate"]
    if plan["batch_size"] % parts:
        raise ValueError(f"--batch-size {plan['batch_size']} must be divisible by "
                         f"ranks times --accumulate, {plan['world_size']} x "
                         f"{plan['accumulate']}")
    if plan["batch_size"] == parts and plan["stem"] == "torchvision":
        raise ValueError("one row at a time gives torchvision's stem nothing to "
                         "normalise in its last layers: raise --batch-size, or use "
                         "--stem cifar")


def _sizes(plan):
    """Return how many images there are to train and to test with."""
    if plan["data"] == "cifar10":
        cifar10.fetch(plan["data_dir"])  # here alone: ranks only read
    return [len(images) for images in open_sets(plan)]
