"""Time what the course claims, as ratios: `python -m course bench`.

    row               what is timed                       divided by              aim
    epoch-1, -2       an epoch on one device, on two      the book's epoch        1.0
    step-2, -8        train_batch on 2, 8 replicas        a plain step     1.07, 1.25
    loader            an epoch through our loader         through d2l's           0.8
    allreduce-lenet   one all-reduce of packed gradients  eight, as in the book   0.5
    star-, ring-64MiB all-reduce of 4 x 64 MiB            copying them once       1.2
    tree-, book-64MiB the same, by other functions        copying them once
    import            import manual_dp, a new process     import torch           1.05
    launch-2, -4, -8  run_ranks of a function that does   one second    0.3, 0.6, 1.2
                      nothing, on 2, 4, 8 ranks
    launch-first      a new Python's first run_ranks      one second                3
    ring-W-M          ring_allreduce of M MiB on W ranks  dist.all_reduce         1.0
    ddp-lenet         a step through DDP by hand          through torch's DDP    1.05
    ddp-resnet18      the same, of 11 million weights     through torch's DDP    1.05
    weak-scaling      a step of one rank, alone           of two ranks, DDP       0.9
    weak-machine      the same, alone                     of two that send nothing

A launch's figures are seconds. weak-... are efficiencies, for two ranks work on twice
the rows of one: the higher, the better; of all others the lower. weak-machine is what
the cores and their memory allow, and no DDP can do better.

Both sides take turns after a round that is dropped, and each pair gives a ratio. Read
the median; min and max say how far to trust it; "minima" is one side's fastest time
over the other's. All is float32, on torch's own choice of threads, ranks on one each.

    calls, ranks    the rows: epochs and calls in this process, ranks' work
    turns           how two sides are timed
"""

import warnings
from functools import partial
from statistics import median
from types import SimpleNamespace

import torch
from torch import nn

from course.lab import book
from course.lab.bench import calls, ranks, turns
from course.lab.bench.calls import epoch
from manual_dp.allreduce import allreduce, ring_allreduce, tree_allreduce
from manual_dp.devices import try_devices
from manual_dp.models.lenet import LeNet
from manual_dp.models.resnet import resnet18
from manual_dp.ranks import DDP
from manual_dp.train import train_batch

ROWS = {  # what makes its sides, timed pairs / repeat, aim
    "epoch-1": (partial(epoch, "epoch on 1 / book's", book.train_batch, 1), 0.2, 1.0),
    "epoch-2": (partial(epoch, "epoch on 2 / book's", book.train_batch, 2), 0.2, 1.0),
    "step-2": (partial(calls.step, 2), 4, 1.07),
    "step-8": (partial(calls.step, 8), 4, 1.25),
    "loader": (partial(epoch, "our loader / d2l's", train_batch, 1), 0.2, 0.8),
    "allreduce-lenet": (calls.lenet_grads, 4, 0.5),
    "star-64MiB": (partial(calls.big, allreduce), 1, 1.2),
    "ring-64MiB": (partial(calls.big, ring_allreduce), 1, 1.2),
    "tree-64MiB": (partial(calls.big, tree_allreduce), 1, None),
    "book-64MiB": (partial(calls.big, torch.no_grad()(book.allreduce)), 1, None),
    "import": (calls.imports, 1, 1.05),
    **{f"launch-{n}": (partial(calls.launch, n), 1, aim)
       for n, aim in ((2, 0.3), (4, 0.6), (8, 1.2))},
    "launch-first": (calls.first_launch, 0.2, 3),
    **{f"ring-{n}-{mib}": (partial(ranks.ring, n, mib), 4 if mib < 16 else 1, 1.0)
       for n in (2, 4) for mib in (1, 4, 16, 64)},
    "ddp-lenet": (partial(ranks.ddp, LeNet, "LeNet", (1, 28, 28), 2), 4, 1.05),
    "ddp-resnet18": (
        partial(ranks.ddp, resnet18, "ResNet-18", (3, 32, 32), 32), 1, 1.05),
    "weak-scaling": (partial(ranks.weak, DDP, " DDP"), 4, 0.9),
    "weak-machine": (partial(ranks.weak, nn.Sequential, ""), 4, None),
}


def bench(only=None, repeat=15, root=None, batches=40, batch_size=256, numbers=2**24):
    """Time the rows, print each as a line of a table, and return all as a dict.

    only: names of rows, by default all. repeat: pairs that are timed; short rows take
    four times as many, epochs a fifth. root: the folder of Fashion-MNIST's files.
    batches, batch_size: of an epoch's slice. numbers: in each tensor of `...-64MiB`.
    A row that lacks a package is skipped, with the reason. ValueError: unknown name.
    """
    unknown = [name for name in only or () if name not in ROWS]
    if unknown:
        raise ValueError(f"no row is called {unknown[0]!r}; rows: {', '.join(ROWS)}")
    setup = SimpleNamespace(root=root, images=batches * batch_size, numbers=numbers,
                            batch_size=batch_size, device=try_devices(1)[0])
    report = {"torch": torch.__version__, "threads": torch.get_num_threads(),
              "device": setup.device.type, "rows": {}}
    print(*(f"{key} {report[key]}" for key in ("torch", "threads", "device")), sep=", ")
    print(f"{'row':15} {'what is divided by what':36} median    min    max minima  aim")
    with warnings.catch_warnings():  # d2l asks for four workers, whatever the machine
        warnings.filterwarnings("ignore", "This DataLoader will create")
        for name in only or ROWS:
            report["rows"][name] = row = _row(name, setup, repeat)
            print(_line(name, row), flush=True)
    return report


def _row(name, setup, repeat):
    make, share, aim = ROWS[name]
    try:
        what, *sides = make(setup)
    except ImportError as error:
        return {"skipped": str(error)}
    count = 1 + max(1, round(repeat * share))
    # ranks take turns among themselves; the first pair warms up
    pairs = sides[0](count) if len(sides) == 1 else turns.turns(sides, count, name)
    pairs = pairs[1:]
    ratios, (ours, theirs) = [a / b for a, b in pairs], zip(*pairs)
    return {"what": what, "aim": aim, "seconds": pairs, "median": median(ratios),
            "min": min(ratios), "max": max(ratios), "minima": min(ours) / min(theirs)}


def _line(name, row):
    if "skipped" in row:
        return f"{name:15} skipped: {row['skipped']}"
    figures = "".join(f" {row[key]:6.3f}" for key in ("median", "min", "max", "minima"))
    return f"{name:15} {row['what']:36}{figures} {row['aim'] or '-':>4}"
