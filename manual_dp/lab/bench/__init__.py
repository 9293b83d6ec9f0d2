"""Time what the course claims, as ratios: `python -m manual_dp bench`.

    row               what is timed                       divided by              aim
    epoch-1, -2       an epoch on one device, on two      the book's epoch        1.0
    step-2, -8        train_batch on 2, 8 replicas        a plain step     1.07, 1.25
    loader            an epoch through our loader         through d2l's           0.8
    allreduce-lenet   one all-reduce of packed gradients  eight, as in the book   0.5
    star-, ring-64MiB all-reduce of 4 x 64 MiB            copying them once       1.2
    tree-, book-64MiB the same, by other functions        copying them once
    import            import manual_dp, a new process     import torch           1.05
    launch-, ring-W-M, ddp-, weak-...: a process for each rank, see bench_ranks.py

The two sides take turns (A B, B A, A B, ...) after a round that is dropped, and each
pair gives a ratio: what slows the machine slows both. Read the median; min and max say
how far to trust it; "minima" is one side's fastest time over the other's. All is
float32, on torch's own choice of threads. A plain step: forward, backward, `sgd`.

An epoch is made from a slice. Both sides train on the same first images, each from its
own loader; d2l's is the one that the book calls, with four worker processes, and the
slice is all that it holds, so it loads nothing in vain. A loader's start and end count
once, the time between times 60,000 images / the slice. What the images show takes no
time: without Fashion-MNIST's files they are random, and the row says so.
"""

import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from manual_dp.allreduce import allreduce, ring_allreduce, tree_allreduce
from manual_dp.data import Batches, load_data
from manual_dp.devices import try_devices
from manual_dp.lab import book
from manual_dp.lab.bench import ranks
from manual_dp.lab.progress import bar
from manual_dp.lenet import init_params, lenet
from manual_dp.params import get_params, pack_grads
from manual_dp.train import sgd, train_batch


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
    pairs = []
    turns = 1 + max(1, round(repeat * share))
    if len(sides) == 1:  # ranks, which take turns among themselves
        pairs = sides[0](turns)
    else:
        for turn in bar(range(turns), name):
            seconds = [side() for side in sides]
            pairs.append(seconds[::-1] if turn % 2 else seconds)
            sides.reverse()
    pairs = pairs[1:]  # the first warms up
    ratios, (ours, theirs) = [a / b for a, b in pairs], zip(*pairs)
    return {"what": what, "aim": aim, "seconds": pairs, "median": median(ratios),
            "min": min(ratios), "max": max(ratios), "minima": min(ours) / min(theirs)}


def _line(name, row):
    if "skipped" in row:
        return f"{name:15} skipped: {row['skipped']}"
    figures = "".join(f" {row[key]:6.3f}" for key in ("median", "min", "max", "minima"))
    return f"{name:15} {row['what']:36}{figures} {row['aim'] or '-':>4}"


def _epoch(what, their_step, world_size, setup):
    n, devices = setup.images, try_devices(world_size)
    try:
        train_iter, _ = load_data("fashion-mnist", root=setup.root)
        X, y = train_iter.X[:n], train_iter.y[:n]
    except FileNotFoundError:
        what += ", random images"
        X, y = torch.rand(n, 1, 28, 28), torch.randint(10, (n,))

    def side(step, loader):
        step = partial(step, device_params=_replicas(devices), devices=devices, lr=0.05)
        return partial(_epoch_seconds, step, loader, 60_000 / n)
    return (what, side(train_batch, Batches(X, y, setup.batch_size, torch.Generator())),
            side(their_step, book.load_data(X, y, setup.batch_size)))


def _epoch_seconds(step, loader, scale):
    start = _clock()
    batches = iter(loader)
    first = _clock()
    for _ in range(len(loader)):
        step(*next(batches))
    last = _clock()
    next(batches, None)  # there is none: d2l's workers stop here
    return first - start + (last - first) * scale + _clock() - last


def _step(world_size, setup):
    X = torch.rand(setup.batch_size, 1, 28, 28, device=setup.device)
    y = torch.randint(10, (setup.batch_size,), device=setup.device)
    devices, lr = [setup.device] * world_size, 0.05
    device_params, (params,) = _replicas(devices), _replicas(devices[:1])

    def plain_step():
        total = F.cross_entropy(lenet(X, params), y, reduction="sum")
        total.backward()
        sgd(params, lr, len(X))
        return total.item() / len(X)
    return (f"train_batch on {world_size} / a plain step",
            partial(_seconds, lambda: train_batch(X, y, device_params, devices, lr)),
            partial(_seconds, plain_step))


def _lenet_grads(setup):
    replicas = _replicas([setup.device] * 4)
    packed = [pack_grads(params) for params in replicas]
    apart = [[torch.zeros_like(p) for p in ranks] for ranks in zip(*replicas)]
    return ("packed / the book's, 8 parameters",
            partial(_seconds, lambda: allreduce(packed)),
            partial(_seconds, lambda: [book.allreduce(tensors) for tensors in apart]))


def _big(function, setup):
    tensors = [torch.zeros(setup.numbers, device=setup.device) for _ in range(4)]
    copies = [tensor.clone() for tensor in tensors]
    return (f"4 x {4 * setup.numbers / 2**20:.3g} MiB / copying them once",
            partial(_seconds, lambda: function(tensors)),
            partial(_seconds, lambda: [b.copy_(a) for a, b in zip(tensors, copies)]))


def _import(setup):
    def seconds(name):
        code = f"import time; t = time.time(); import {name}; print(time.time() - t)"
        return float(subprocess.check_output([sys.executable, "-c", code],
                                             cwd=Path(__file__).parents[3]))
    return ("import manual_dp / import torch",
            partial(seconds, "manual_dp"), partial(seconds, "torch"))


def _seconds(function):
    start = _clock()
    function()
    return _clock() - start


def _clock():
    for i in range(torch.cuda.device_count()):
        torch.cuda.synchronize(i)
    return time.perf_counter()


def _replicas(devices):
    params = init_params("he", torch.Generator())
    return [get_params(params, device) for device in devices]


ROWS = {  # what makes its sides, timed pairs / repeat, aim
    "epoch-1": (partial(_epoch, "epoch on 1 / book's", book.train_batch, 1), 0.2, 1.0),
    "epoch-2": (partial(_epoch, "epoch on 2 / book's", book.train_batch, 2), 0.2, 1.0),
    "step-2": (partial(_step, 2), 4, 1.07),
    "step-8": (partial(_step, 8), 4, 1.25),
    "loader": (partial(_epoch, "our loader / d2l's", train_batch, 1), 0.2, 0.8),
    "allreduce-lenet": (_lenet_grads, 4, 0.5),
    "star-64MiB": (partial(_big, allreduce), 1, 1.2),
    "ring-64MiB": (partial(_big, ring_allreduce), 1, 1.2),
    "tree-64MiB": (partial(_big, tree_allreduce), 1, None),
    "book-64MiB": (partial(_big, torch.no_grad()(book.allreduce)), 1, None),
    "import": (_import, 1, 1.05), **ranks.ROWS,
}
