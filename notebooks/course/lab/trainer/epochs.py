"""What a rank does in a run: epochs of steps, the test accuracy, the clock.

    train_rank    the run, as one rank sees it; returns its history
    minibatches   this rank's rows of every step of an epoch
    count_right   rows classified right, and rows, over all ranks

All methods and numbers of ranks see the same minibatches: a step's rows are drawn once
for all ranks, and each rank takes its part of them.
"""

import math
import statistics

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from course.lab.trainer import methods
from course.lab.trainer.keeper import settle
from course.lab.trainer.rows import epoch_order
from course.lab.trainer.step import Clock, make_scaler, train_step
from manual_dp.data import load_data
from manual_dp.lenet import init_params
from manual_dp.models.cifar import image_sets, take
from manual_dp.models.lenet import LeNet
from manual_dp.models.stems import build


def train_rank(plan, ticks=None, keeper=None):
    """Train as the plan says; return the history, the same on every rank.

    plan: a dict of `runs.plans`. ticks: a file to which rank 0 adds a byte a step.
    keeper: a `Keeper` of the run's checkpoint, from which it also goes on.
    """
    device = methods.device()
    train_set, test_set = open_sets(plan)
    dtype = methods.short_type(device) if plan["amp"] else torch.float32
    net = make_net(plan).to(device, real(plan))
    body = methods.Mixed(net, dtype) if plan["amp"] else net
    model = methods.wrap(body, plan["method"], plan["world_size"])
    optimizer = torch.optim.SGD(model.parameters(), plan["lr"], plan["momentum"])
    scaler, clock = make_scaler(dtype, device), Clock(device)
    history = {"loss": [], "right": [], "of": 0, "test_acc": []}
    (first, skip), before, steps = (0, 0), 0.0, len(train_set) // plan["batch_size"]
    if keeper and plan["method"] == "ddp":
        settle(model, next(minibatches(plan, train_set, 0, device)))
    if keeper and (found := keeper.go_on(plan, model, optimizer, scaler)):
        (first, skip), before, history = found
    if first >= plan["epochs"]:
        return history
    for epoch in range(first, plan["epochs"]):
        model.train()
        total = torch.full((), before, dtype=torch.float64, device=device)
        clock.last = clock.now()
        for step, parts in enumerate(minibatches(plan, train_set, epoch, device, skip),
                                     skip + 1):
            clock.lap("load")
            total += train_step(model, parts, plan["batch_size"], optimizer, scaler,
                                plan["clip"], clock)
            clock.next()
            _tick(ticks)
            if keeper and step < steps and keeper.due(epoch * steps + step, steps):
                keeper.keep(plan, model, optimizer, scaler, (epoch, step), total.item(),
                            history)
                clock.last = clock.now()  # the disk's time is no part of a step
        dist.all_reduce(total)
        history["loss"].append(_finite(total.item() / (steps * plan["batch_size"]),
                                       plan))
        right, of = count_right(net, test_set, plan["batch_size"])
        history["right"].append(right)
        history["test_acc"].append(right / of)
        history["of"], skip, before = of, 0, 0.0
        if epoch + 1 == plan["epochs"]:
            history |= _seconds(clock.laps[:-1])
        if keeper and (epoch + 1 == plan["epochs"]
                       or keeper.due((epoch + 1) * steps, steps)):
            keeper.keep(plan, model, optimizer, scaler, (epoch + 1, 0), 0.0, history)
    return history


def open_sets(plan):
    """Return the plan's training set and test set."""
    if plan["data"] in ("digits", "fashion-mnist"):
        return [TensorDataset(batches.X, batches.y)
                for batches in load_data(plan["data"], root=plan["data_dir"])]
    return image_sets(plan["data"], plan["data_dir"], plan["rows"], plan["test_rows"])


def make_net(plan):
    """Return the plan's network, its weights drawn by the plan's seed."""
    if plan["model"] == "lenet":
        return LeNet(init_params("he", torch.Generator().manual_seed(plan["seed"])))
    return build(plan["model"], plan["stem"], seed=plan["seed"])


def real(plan):
    """Return the type of the plan's weights and images."""
    return torch.float64 if plan.get("float64") else torch.float32


def minibatches(plan, images, epoch, device, done=0):
    """Yield this rank's rows of each step: a list of microbatches (X, y).

    The order is drawn anew in each epoch, by the seed, the same on every rank. What is
    left at the end and fills no minibatch waits for another epoch.
    done: steps of the epoch that are behind us, with whatever number of ranks.
    """
    order, size = epoch_order(len(images), plan["seed"], epoch), plan["batch_size"]
    for step in range(done, len(images) // size):
        rows = order[step * size:(step + 1) * size]
        X, y = take(images, rows.chunk(dist.get_world_size())[dist.get_rank()])
        X, y = X.to(device, real(plan)), y.to(device)
        yield list(zip(X.chunk(plan["accumulate"]), y.chunk(plan["accumulate"])))


@torch.no_grad()
def count_right(net, images, batch_size):
    """Return how many rows are classified right, and how many rows there are.

    Every row is counted once: rank r takes rows r, r + N, ... and counts are summed
    over the ranks. Running statistics are rank 0's.
    """
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)
    weight, rank, processes = next(net.parameters()), *_here()
    device = weight.device
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    net.eval()
    for rows in torch.arange(rank, len(images), processes).split(batch_size):
        X, y = take(images, rows)
        X, y = X.to(weight), y.to(device)
        right = (net(X).argmax(1) == y).sum()
        counts += torch.stack([right, torch.full_like(right, len(y))])
    dist.all_reduce(counts)
    return counts.tolist()


def _here():
    return dist.get_rank(), dist.get_world_size()


def _tick(path):
    if path and dist.get_rank() == 0:
        with open(path, "ab") as file:
            file.write(b".")


def _finite(loss, plan):
    if not math.isfinite(loss):
        raise ValueError(f"the training loss is {loss} at lr {plan['lr']:g}: a step "
                         "was too large; try a smaller rate")
    return loss


def _seconds(laps):
    """Return medians over the steps, without the first, which warms up."""
    laps = laps[1:] or laps
    parts = {name: statistics.median(lap[name] for lap in laps) for name in laps[0]}
    return {"steps": len(laps),
            "seconds_a_step": statistics.median(sum(lap.values()) for lap in laps),
            "seconds": parts}
