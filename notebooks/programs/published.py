"""What lesson 24 measures of published mistakes: their harm, and what sees them.

rows            64 rows to train on and 4,000 new ones, from the same weights
on_new_rows     the loss on new rows, and the per cent that are wrong
clipped         two ranks train with an `update`; what AdamW got, and the harm
draw_clipped    the losses of two such runs, and the lengths of their gradients
rings           run rings on ranks; what was sent, and what ranks end with
alone           the harm of a ring that gives each rank its own gradient
accumulate      the harm of a loss that is not divided, counted from 0
shifted         the harm of batch norm's statistics of rank 0 alone
judge_steps     a step's length, how often ranks meet, and what the audit says
changed         a function with some of its words replaced
half_repairs    five of the lesson's `my_step`
means           the mean that batch norm keeps, after training and in eval()
tell            the harm, from ten seeds

python programs/published.py     what `tell` prints, in some minutes
"""

import inspect
import textwrap
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from manual_dp import largest_difference
from manual_dp.audit import audit_step
from manual_dp.ranks import RankError, run_ranks

NAMES = "as published", "repaired"
SEEDS = range(10)


def rows(seed=0, count=64):
    """Return X, y to train on and X, y of 4,000 new rows; three classes."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(20, 3, generator=draw, dtype=torch.float64)
    found = []
    for number in (count, 4000):
        X = torch.randn(number, 20, generator=draw, dtype=torch.float64)
        found += [X, (X @ weights).argmax(1)]
    return found


def layer(seed=0):
    """Make the model: 63 weights."""
    torch.manual_seed(seed)
    return nn.Linear(20, 3).double()


def on_new_rows(model, X, y):
    """Return the loss, and the per cent of rows that are wrong."""
    with torch.no_grad():
        scores = model(X)
    wrong = (scores.argmax(1) != y).double().mean().item()
    return F.cross_entropy(scores, y).item(), 100 * wrong


def clipped(update, unscale_first, seed=0, lr=0.05, steps=40):
    """Train in a rank; return losses, lengths of gradients, and `on_new_rows`."""
    X, y, X_new, y_new = rows(seed)
    model = DDP(layer(seed)) if dist.is_initialized() else layer(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    scaler, losses, lengths = torch.amp.GradScaler("cpu"), [], []
    mine = slice(None)
    if dist.is_initialized():
        mine = slice(dist.get_rank(), None, dist.get_world_size())
    for _ in range(steps):
        with torch.no_grad():
            losses.append(F.cross_entropy(model(X), y).item())
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(X[mine]), y[mine])).backward()
        update(model.parameters(), optimizer, scaler, unscale_first)
        grads = [p.grad.flatten() for p in model.parameters()]
        lengths.append(torch.cat(grads).norm().item())
    return losses, lengths, *on_new_rows(model, X_new, y_new)


def draw_clipped(update):
    """Train both ways on two ranks, draw the losses; print the gradients' lengths."""
    import matplotlib.pyplot as plt

    from course.lab.figures import plot

    def both():
        return [clipped(update, first) for first in (False, True)]

    runs = run_ranks(both, 2, timeout=280)[0]
    ax = plot.axes("step", "loss on the 64 training rows", height=2.4)
    print("length of the gradient that AdamW gets, in steps 1, 10, 20, 40")
    for name, look, (losses, lengths, *_) in zip(NAMES, "-:", runs):
        print("", *(f"{lengths[i]:.1e}" for i in (0, 9, 19, 39)), f"  {name}")
        ax.plot(range(1, 41), losses, look, color=plot.INK, lw=2, label=name)
    print("after step 40: the loss on 4,000 new rows, and how many are wrong")
    for name, (*_, loss, wrong) in zip(NAMES, runs):
        print(f" {loss:.2f}, {wrong:.0f} %  {name}")
    ax.legend(frameon=False)
    plt.show()


def sends(function, *tensors):
    """Call it in a rank; return its messages: (from, to, first number, bytes)."""
    found, rank, real = [], dist.get_rank(), dist.isend

    def noted(tensor, peer):
        found.append((rank, peer, tensor.flatten()[0].item(), tensor.nbytes))
        return real(tensor, peer)

    with mock.patch.object(dist, "isend", noted):
        function(*tensors)
    return found


def rings(ring, n, size=240):
    """Run it on n ranks that hold 1, 2, ...; return messages, first, last, bytes.

    ring(tensor) puts the sum in its place. bytes: that rank 0 sends.
    """

    def in_a_rank():
        tensor = torch.full((size,), dist.get_rank() + 1.0)
        return sends(ring, tensor), tensor[0].item()

    logs, last = zip(*run_ranks(in_a_rank, n))
    messages = [(a, b, number) for log in logs for a, b, number, _ in log]
    return (
        messages,
        [*range(1, n + 1)],
        last,
        sum(each for *_, each in logs[0]),
    )


def alone(seed, ranks, lr=1.0, steps=40):
    """Train as rank 0 of some does if the tutorial's ring sums up the gradients.

    It adds a rank's own gradient to itself in every second of the ranks - 1 rounds, and
    the sum is divided by the ranks.
    """
    lr = lr * (1 + (ranks - 1) // 2) / ranks
    X, y, X_new, y_new = rows(seed)
    model = layer(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X[::ranks]), y[::ranks]).backward()
        optimizer.step()
    return on_new_rows(model, X_new, y_new)


def accumulate(seed, optim, lr, right, grad_accum=8, micro=8, epochs=2):
    """Train on 512 rows in micro-batches; i_step runs through an epoch."""
    X, y, X_new, y_new = rows(seed, 512)
    model = layer(seed)
    optimizer = optim(model.parameters(), lr)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        parts = torch.randperm(len(X), generator=order).split(micro)
        for i_step, part in enumerate(parts, 1 if right else 0):
            loss = F.cross_entropy(model(X[part]), y[part])
            (loss / grad_accum if right else loss).backward()
            if i_step % grad_accum == 0:
                optimizer.step()
                optimizer.zero_grad()
    return on_new_rows(model, X_new, y_new)


def shifted(seed, ranks, shift=1.0, together=False, lr=0.3, steps=100):
    """Train behind batch norm, where rank r's rows lie r * shift higher.

    together: one batch norm for the rows of all ranks, as on one device. Return
    `on_new_rows`, of all kinds, with the statistics of rank 0.
    """
    X, y, X_new, y_new = rows(seed, 512)
    X = X + shift * (torch.arange(len(X)) % ranks).unsqueeze(1)
    X_new = X_new + shift * (torch.arange(len(X_new)) % ranks).unsqueeze(1)
    model, n = layer(seed), 1 if together else ranks
    norms = [nn.BatchNorm1d(20, affine=False).double() for _ in range(n)]
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        for rank, norm in enumerate(norms):
            loss = F.cross_entropy(model(norm(X[rank::n])), y[rank::n])
            (loss / n).backward()
        optimizer.step()
    return on_new_rows(nn.Sequential(norms[0], model).eval(), X_new, y_new)


def means():
    """In a rank: return batch norm's mean after a minibatch, and in eval().

    The rows of rank r are all r + 1. With momentum 1 a mean is the last minibatch's.
    """
    norm = nn.BatchNorm1d(1, momentum=1.0)
    model, mine = DDP(norm), torch.full((8, 1), dist.get_rank() + 1.0)
    model(mine)
    trained = norm.running_mean.item()
    model.eval()(mine)
    return trained, norm.running_mean.item()


# what judges a step


def changed(function, **words):
    """Return {name: the function with words replaced}; each value is (old, new)."""
    found = {}
    for name, (old, new) in words.items():
        scope, source = (
            dict(function.__globals__),
            inspect.getsource(function),
        )
        if old not in source:
            raise ValueError(
                f"{name}: {old!r} does not stand in the function"
            )
        exec(source.replace(old, new), scope)  # noqa: S102
        found[name.replace("_", " ")] = scope[function.__name__]
    return found


def half_repairs(step):
    """Return five half repairs of the lesson's repaired step, by their names."""
    sync, inner = "sync = i_step % grad_accum == 0", " " * 12
    under = "with nullcontext() if sync else model.no_sync():\n"
    part = "part = loss(model(X_part), y_part)\n"
    return changed(
        step,
        not_divided=("part / grad_accum", "part"),
        meets_in_the_first=(sync, "sync = i_step == 1"),
        never_cleared=("optimizer.zero_grad()", "pass"),
        meets_in_each=(sync, "sync = True"),
        forward_outside=(under + inner + part, part + inner[:8] + under),
    )


def plain_step(model, optimizer, X, y):
    """Take the right step on one device."""
    optimizer.zero_grad()
    F.cross_entropy(model(X), y).backward()
    optimizer.step()


def wrapped():
    """Make a rank's model and optimizer."""
    model = DDP(layer())
    return model, torch.optim.SGD(model.parameters(), 1.0)


def meetings(model):
    """Count the all-reduces of a model of DDP's, in a list that grows."""
    found = []

    def hook(_, bucket):
        if bucket.is_last():
            found.append(1)
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, hook)
    return found


def judged(step, X, y, ranks):
    """Return how far the step is from one device's, how often ranks met, findings."""

    def in_a_rank():
        model, optimizer = wrapped()
        met = meetings(model)
        step(model, optimizer, X, y)
        return [p.detach() for p in model.parameters()], len(met)

    weights, met = zip(*run_ranks(in_a_rank, ranks))
    one = layer()
    first = [p.detach().clone() for p in one.parameters()]
    plain_step(one, torch.optim.SGD(one.parameters(), 1.0), X, y)
    right = [p.detach() for p in one.parameters()]
    off = max(largest_difference(mine, right) for mine in weights)
    report = audit_step(
        wrapped, lambda t: (X, y), step, ranks, reference=plain_step
    )
    says = [one.says for one in report.findings] + report.look_at
    return off / largest_difference(right, first), max(met), says


def judge_steps(steps, ranks, count=64):
    """Print what is found of each step: {name: step(model, optimizer, X, y)}."""
    X, y, *_ = rows(0, count)
    for name, step in steps.items():
        try:
            off, met, says = judged(step, X, y, ranks)
        except RankError as error:
            print(f"{name}: {str(error).splitlines()[0][:60]}")
            continue
        off = "right" if off < 1e-9 else f"{100 * off:.0f} % off"
        times = (
            "once"
            if met == 1
            else f"{met} times for one step: once is enough"
        )
        print(f"{name}: {off}, met {times}")
        said = "audit: " + ("; ".join(says) or "no finding")
        print(textwrap.indent(textwrap.fill(said, 70), "    "))


# what the lesson says of ten seeds


def update(params, optimizer, scaler, unscale_first):
    """Clip as minGPT-ddp does, or after the scale was divided out."""
    if unscale_first:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(params, 1.0)
    scaler.step(optimizer)
    scaler.update()


def compared(label, wrong, right, column):
    """Print the means of one column of results, and in how many seeds wrong is more."""
    pairs = [(a[column], b[column]) for a, b in zip(wrong, right)]
    means = [sum(column) / len(pairs) for column in zip(*pairs)]
    more = sum(a > b for a, b in pairs)
    ranges = [f"{min(c):.2f} to {max(c):.2f}" for c in zip(*pairs)]
    print(
        f"{label}: {means[0]:.2f} ({ranges[0]}), right {means[1]:.2f} ({ranges[1]}), "
        f"more in {more} of {len(pairs)}",
        flush=True,
    )


def tell(seeds=SEEDS):
    """Print the harm of each, from some seeds."""
    for lr in (0.005, 0.02, 0.05, 0.1, 0.2):
        wrong, right = (
            [clipped(update, first, seed, lr)[2:] for seed in seeds]
            for first in (False, True)
        )
        for column, what in enumerate(
            ("loss on new rows", "% of new rows wrong")
        ):
            compared(
                f"clipped too early, rate {lr}: {what}", wrong, right, column
            )
    for ranks in (2, 4, 6):
        wrong, right = (
            [alone(seed, n) for seed in seeds] for n in (ranks, 1)
        )
        compared(
            f"each of {ranks} ranks alone: % of new rows wrong",
            wrong,
            right,
            1,
        )
    for optim, lr in ((torch.optim.SGD, 1), (torch.optim.AdamW, 0.03)):
        for grad_accum in (2, 4, 8):
            wrong, right = (
                [
                    accumulate(seed, optim, lr, good, grad_accum)
                    for seed in seeds
                ]
                for good in (False, True)
            )
            label = f"counted from 0, {optim.__name__}, rate {lr}, {grad_accum} parts"
            compared(f"{label}: % of new rows wrong", wrong, right, 1)
    for ranks in (2, 4, 6):
        for shift in (0.0, 0.5, 1.0):
            wrong, right = (
                [shifted(seed, ranks, shift, together) for seed in seeds]
                for together in (False, True)
            )
            label = f"batch norm, {ranks} ranks, {shift} apart"
            compared(f"{label}: % of new rows wrong", wrong, right, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tell()
