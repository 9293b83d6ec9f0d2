"""The experiments of lesson 23: each measures one number, in a case, on n ranks.

averages   what a backward of ResNet-50 under DDP notes: gradients, and averages
draw       a picture of them
waits      whether rank 0, alone, comes through a call
apart      how far ranks are apart after five steps
fails      whether DataParallel refuses a network that was moved late, or never
threads    how far threads' gradients, added up, are from one thread's
off        how far one step ends from one device's, as a part of the step
ends       how far five steps end from one GPU's, as a part of its way
parted     how far ranks part in five steps of the article's Example 1
rises      in how many steps the loss rises
wanders    how far a batch mean moves from step to step
wrong      wrong digits of networks that learn alone, or together
errors     how many more of them are wrong alone
weigh      bytes of a network's gradient, and operations for a row
downloads  how often a file is downloaded by "the main process"
uploads    how many ranks see no error when rank 0's upload fails
mixed      of how many ranks the bytes in one file are

The last three, threads and parted, are for the page "More claims".

A function takes the case, the number of ranks and the seed, and returns a number.

python programs/claims.py     the claims that are no arithmetic, with ten seeds each;
                              it takes some minutes
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.flop_counter import FlopCounterMode

from course.lab.equivalence import stepwise
from course.lab.figures import plot
from manual_dp import (
    get_params,
    init_params,
    largest_difference,
    lenet,
    loss,
    train_batch,
    try_devices,
)
from manual_dp.data import ensure_torchvision, load_data
from manual_dp.ranks import run_ranks

Adam, SGD = torch.optim.Adam, torch.optim.SGD


# who does it?


def _averages(seed):
    torch.manual_seed(seed)
    net, seen = ensure_torchvision().models.resnet50(num_classes=10), []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append("ready"))
    model = DDP(net)

    def average(state, bucket):  # as DDP does, and takes a note
        seen.append(bucket.buffer().nbytes / 2**20)
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, average)
    X, y, steps = torch.rand(2, 3, 32, 32), torch.arange(2), []
    for _ in range(2):
        seen.clear()
        F.cross_entropy(model(X), y).backward()
        steps.append([*seen])
    return steps


def averages(n, seed):
    """Return what two backwards of ResNet-50 do: "ready" for a gradient that is.

    A number is the MiB of a bucket that DDP begins to average.
    """
    return run_ranks(_averages, n, seed, timeout=300)[0]


def draw(step):
    """Draw a step: a dot for a gradient that is ready, a line for an average."""
    ax = plot.axes("gradients that are ready", width=7.2, height=1.7)
    ready = 0
    for event in step:
        if event == "ready":
            ready += 1
            ax.plot(ready, 0, ".", ms=4, color=plot.INK)
        else:
            ax.axvline(ready, color=plot.INK)
            ax.text(
                ready - 1, 0.55, f"{event:.0f} MiB", ha="right", fontsize=9
            )
    ax.set(yticks=[], ylim=(-0.6, 1), xlim=(-10, ready + 2))


def _net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)
    ).double()


def _loss(model, seed):
    """Return the loss of 32 rows of this rank."""
    own = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    X = torch.rand(32, 8, generator=own, dtype=torch.float64)
    y = torch.randint(3, (32,), generator=own)
    return F.cross_entropy(model(X), y)


def _alone(act, seed):
    model, late = DDP(_net(seed)), dist.new_group()
    optimizer = torch.optim.AdamW(model.parameters())
    _loss(model, seed).backward()
    optimizer.step()
    loss, rank = _loss(model, seed), dist.get_rank()
    acts = Thread(target=optimizer.step if act == "step" else loss.backward)
    if rank > 0:
        dist.barrier(late)
    acts.start()
    acts.join(60 if act == "step" else 1)
    found = int(acts.is_alive())
    if rank == 0:
        dist.barrier(late)  # now the others come
    acts.join()
    return found


def waits(act, n, seed):
    """Return 1 if rank 0 waits alone in `act`, "step" or "backward", otherwise 0."""
    return run_ranks(_alone, n, act, seed, timeout=120)[0]


def _five_steps(sync, seed):
    model = DDP(_net(seed + dist.get_rank()), init_sync=sync)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        _loss(model, seed).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def apart(sync, n, seed):
    """Return a weight's distance between ranks, which drew different weights."""
    ranks = run_ranks(_five_steps, n, sync, seed)
    return max(largest_difference(ranks[0], rank) for rank in ranks)


def fails(moved, n, seed):
    """Return 1 if DataParallel's forward refuses a network that was wrapped first.

    moved: whether `.to` came then. The device "meta", whose tensors have shapes and
    no numbers, plays the first GPU. The forward is torch's, and so is the test in
    it. Only the rows are not cut.
    """
    model = nn.DataParallel(_net(seed))
    if moved:
        model.to("meta")
    model.device_ids, model.src_device_obj = [0], torch.device("meta")
    model.scatter = lambda inputs, kwargs, ids: ((inputs,), (kwargs,))
    try:
        model(torch.rand(32, 8, dtype=torch.float64, device="meta"))
    except RuntimeError:
        return 1
    return 0


def threads(whole, n, seed):
    """Return how far n threads' gradients, added up, are from one's of all 64 rows.

    whole: with the gradients of all threads, otherwise without the last one's.
    """
    draw = torch.Generator().manual_seed(seed)
    params = init_params("he", draw, torch.float64)
    X = torch.rand(64, 1, 28, 28, generator=draw, dtype=torch.float64)
    y = torch.randint(10, (64,), generator=draw)

    def gradient(rows):
        own = get_params(params, torch.device("cpu"))
        loss(lenet(X[rows], own), y[rows]).sum().backward()
        return [p.grad for p in own]

    rows = torch.arange(64)
    with ThreadPoolExecutor(n) as pool:
        parts = list(pool.map(gradient, rows.chunk(n)))
    kept = parts if whole else parts[:-1]
    return largest_difference([sum(p) for p in zip(*kept)], gradient(rows))


# did the number of rows stay?


def _nothing(grads):
    """Exchange nothing."""


def off(exchange, n, seed):
    """Return how far a step of LeNet on n devices ends from one device's, at most."""
    draw = torch.Generator().manual_seed(seed)
    params = init_params(0.01, draw, torch.float64)
    X = torch.rand(256, 1, 28, 28, generator=draw, dtype=torch.float64)
    y = torch.randint(10, (256,), generator=draw)
    step = (
        train_batch if exchange else partial(train_batch, allreduce=_nothing)
    )
    return stepwise(X, y, params, try_devices(n), 0.2, 1, step)


def _two_convolutions(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)
    ).double()


def _walk(seed, rows, steps, lr, kind, wrap=DDP):  # rows: of a rank in a step
    n, rank = dist.get_world_size(), dist.get_rank()
    draw = torch.Generator().manual_seed(seed)
    X, y = torch.rand(2, 2560, 3, 4, 4, generator=draw).double()
    model = wrap(_two_convolutions(seed))
    optimizer = kind(model.parameters(), lr)
    for t in range(steps):
        first = rows * (t * n + rank)
        mine = slice(first, first + rows)
        optimizer.zero_grad()
        F.mse_loss(model(X[mine]), y[mine]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@lru_cache(None)
def _end(n, seed, rows, steps, lr, kind):
    return run_ranks(_walk, n, seed, rows, steps, lr, kind)[0]


def ends(case, n, seed):
    """Return how far n GPUs end from one, in percent of one GPU's way.

    case: the rows of a rank in a step ("shared": 64 // n), what the rate 0.001 is
    multiplied with ("n" or 1), and the optimizer. One GPU takes 64 rows a step, so
    if ranks keep 64, it takes n steps for each of theirs.
    """
    rows, factor, kind = case
    rows, lr = (64 // n if rows == "shared" else rows), 0.001
    many = _end(n, seed, rows, 5, lr * (n if factor == "n" else 1), kind)
    at_once = min(64, rows * n)
    one = _end(1, seed, at_once, 5 * rows * n // at_once, lr, kind)
    start = _end(1, seed, at_once, 0, lr, kind)
    return 100 * ((many - one).norm() / (one - start).norm()).item()


def parted(wrap, n, seed):
    """Return how far ranks are from rank 0 after five steps, in percent of its way.

    The article's Example 1: each rank takes 64 rows of its own, with Adam. There
    nothing wraps the model; here `wrap` is nn.Sequential, which changes nothing, or
    DDP. The ranks begin at the same weights.
    """
    first, *others = run_ranks(_walk, n, seed, 64, 5, 0.001, Adam, wrap)
    start = _end(1, seed, 64, 0, 0.001, Adam)
    apart = max((one - first).norm() for one in others)
    return 100 * (apart / (first - start).norm()).item()


def rises(lr, n, seed):
    """Return in how many of 20 steps the loss rises: 64 rows of each of n GPUs.

    As on n GPUs under DDP, a step takes the gradient of all rows, the same each time.
    """
    draw = torch.Generator().manual_seed(seed)
    X, y = torch.randn(2, 64 * n, 3, 4, 4, generator=draw)
    net, losses = _two_convolutions(seed).float(), []
    optimizer = Adam(net.parameters(), lr)
    for _ in range(21):
        optimizer.zero_grad()
        loss = F.mse_loss(net(X), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(after > before for before, after in zip(losses, losses[1:]))


def _wander(rows, seed):
    norm = nn.BatchNorm1d(64, momentum=1.0).double()  # keeps the last mean
    model, means = DDP(norm), []
    own = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    for _ in range(100):
        model(torch.rand(rows, 64, generator=own, dtype=torch.float64))
        means.append(norm.running_mean.clone())
    return torch.stack(means).std(0).mean().item()


def wanders(together, n, seed):
    """Return how much less or more a batch mean wanders than on one GPU with 32 rows.

    In percent: with 32 rows on each of n GPUs, or, together, all of them on one.
    """
    gpus, rows = (1, 32 * n) if together else (n, 32)
    last = run_ranks(_wander, gpus, rows, seed)[-1]
    one = run_ranks(_wander, 1, 32, seed + 50)[0]
    return 100 * abs(last / one - 1)


# which rows?


@lru_cache(None)
def _digits(seed):
    """Return X and y of 120 digits of 14 x 14 pixels, and of 359 new ones."""
    train, test = load_data("digits", seed=seed)
    X, X_test = (F.avg_pool2d(part.X, 2).flatten(1) for part in (train, test))
    return X[:120], train.y[:120], X_test, test.y


def wrong(own_rows, together, n, seed, steps=200):
    """Train n networks side by side; return how many new digits one gets wrong.

    own_rows: each has every n-th image, otherwise all have the first one's. A step
    takes 16 of them at random. together: with the mean of the networks' gradients.
    """
    X, y, X_test, y_test = _digits(seed)
    torch.manual_seed(seed)
    W1 = (torch.randn(196, 32) / 14).repeat(n, 1, 1)
    W2 = (torch.randn(32, 10) / 32**0.5).repeat(n, 1, 1)
    b1, b2 = torch.zeros(n, 1, 32), torch.zeros(n, 1, 10)
    params = [p.requires_grad_() for p in (W1, b1, W2, b2)]

    def scores(rows):
        return (rows @ W1 + b1).relu() @ W2 + b2

    for _ in range(steps):
        i = n * torch.randint(len(X) // n, (n, 16))
        i = i + torch.arange(n)[:, None] if own_rows else i[:1].expand(n, -1)
        losses = F.cross_entropy(
            scores(X[i]).transpose(1, 2), y[i], reduction="none"
        )
        losses.mean(1).sum().backward()
        with torch.no_grad():
            for p in params:
                mean = p.grad.mean(0, keepdim=True)
                p -= 0.1 * (mean if together else p.grad)
                p.grad = None
    right = scores(X_test.expand(n, -1, -1)).argmax(2) == y_test
    return (~right).sum().item() / n


def errors(own_rows, n, seed):
    """Return how many more of 359 new digits a network gets wrong alone."""
    alone, mean = (wrong(own_rows, each, n, seed) for each in (False, True))
    return alone - mean


# what does a row cost?


@lru_cache(None)
def weigh(name, pixels):
    """Return the bytes of a network's gradient, and the operations for a square image."""
    with torch.device("meta"):  # shapes without numbers
        model = getattr(ensure_torchvision().models, name)(num_classes=10)
        two = torch.rand(2, 3, pixels, pixels)
    with FlopCounterMode(display=False) as counter:
        model(two).sum().backward()
    size = 4 * sum(p.numel() for p in model.parameters())
    return size, counter.get_total_flops() / 2


# who touches the file?


def _download(when, path):
    """Do as the Blog does; return the number that the launcher gave this rank."""
    if when == "before the group":
        dist.destroy_process_group()  # run_ranks has opened it
    if not dist.is_initialized() or dist.get_rank() == 0:
        with open(path, "ab") as file:
            file.write(b"x")  # in place of a download
    if dist.is_initialized():
        dist.barrier()
    return os.environ.get("RANK")


def downloads(when, n, seed):
    """Return how often n ranks download a file: before the group is open, or in it.

    when: "before the group", "in the group", or "no ranks", which is one process.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "data")
        if when == "no ranks":
            _download(when, path)
        else:
            run_ranks(_download, n, when, path)
        return path.stat().st_size


def _upload(way, path):
    error = [None]
    if dist.get_rank() == 0:
        try:
            path.write_bytes(b"x")  # in place of an upload
        except OSError as raised:
            error = [str(raised)]
    if way == "told":
        dist.broadcast_object_list(error)
    return error[0] is None


def uploads(way, n, seed, fails=True):
    """Return how many of n ranks see no error when rank 0 uploads alone.

    way: "alone", or "told", if rank 0 says to all how it went.
    """
    with TemporaryDirectory() as folder:
        there = Path(folder, "missing" if fails else "")
        return sum(run_ranks(_upload, n, way, there / "weights"))


def _write(way, path):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = path if way == "one name" else f"{path}.{rank}"
    with open(mine, "wb", buffering=0) as file:
        for turn in range(2 * n):  # each rank in turn, and once more
            dist.barrier()
            if turn % n == rank:
                file.write(bytes([rank]) * 1000 * (rank + 1))
    if mine != path:
        os.replace(mine, path)
    dist.barrier()
    return len({*Path(path).read_bytes()})


def mixed(way, n, seed):
    """Return of how many ranks the bytes are that stand in the file of n ranks.

    way: "one name", or "own names": then each renames its own file at the end.
    """
    with TemporaryDirectory() as folder:
        return max(run_ranks(_write, n, way, f"{folder}/data"))


CASES = {  # own case, control
    "2. rank 0 waits": (waits, "step", "backward"),
    "3. distance of ranks": (apart, True, False),
    "distance of threads' sum": (threads, True, False),
    "6. more wrong digits alone": (errors, True, False),
    "8. % away, old rate": (ends, ("shared", 1, Adam), (64, 1, Adam)),
    "9. % away, N x the rate": (ends, ("shared", "n", Adam), (64, "n", SGD)),
    "9. 64 rows, Adam; 64 // N, SGD": (
        ends,
        (64, "n", Adam),
        ("shared", "n", SGD),
    ),
    "% of the way that ranks part": (parted, nn.Sequential, DDP),
    "10. steps in which the loss rises": (rises, 0.001, 0.1),
    "11. % that a mean wanders": (wanders, False, True),
    "downloads of one file": (downloads, "before the group", "in the group"),
    "ranks that see no error of an upload": (uploads, "alone", "told"),
    "ranks whose bytes are in one file": (mixed, "one name", "own names"),
}


if __name__ == "__main__":
    for name, (measure, *cases) in CASES.items():
        for n in (2, 3, 4, 8):
            for words, case in zip(("own case", "control"), cases):
                found = [measure(case, n, seed) for seed in range(10)]
                print(
                    f"{name}, {n} GPUs, {words}: {min(found):.3g} to "
                    f"{max(found):.3g}",
                    flush=True,
                )
