"""Backward and a wire, recorded; and three steps of LeNet with any wrapper.

record        backwards on two ranks: of each, rank 0's events, in whole ticks
both_ways     two records: sent after backward, and during it
draw          a panel for each record: what computes, waits, is on the wire
three_steps   train LeNet in this rank; the loop is that of lesson 9

python programs/on_the_wire.py    the ticks of lesson 10, ten times each
"""

import os
from itertools import chain, count

import torch
import torch.distributed as dist
from torch.nn import functional as F

from course.lab import timeline
from course.lab.figures.plot import COLOURS, FAINT, INK
from course.lab.slowdown import (
    EARLY,
    agreed,
    in_ticks,
    slow_network,
    slow_wire,
)
from manual_dp import init_params
from manual_dp.models.lenet import LeNet
from manual_dp.ranks import DDP, BucketDDP, run_ranks

TICK = 0.1  # seconds
LATE = 0.4  # of a tick, with EARLY: if no event is later, one run is enough
WIDTH = 64  # a layer has 64 x 64 numbers
BYTES = WIDTH * WIDTH * 4
ROWS = ["computes layer", "message waits", "on the wire"]


def record(*jobs):
    """Return rank 0's events in a backward for each job, their times in ticks.

    A job has the arguments of `one_backward`.
    """
    quiet = os.getloadavg()[0] <= os.cpu_count()  # one run may be enough
    runs = run_ranks(backwards, 2, jobs)[0]
    return [_in_ticks(job, events, quiet) for job, events in zip(jobs, runs)]


def backwards(jobs):
    """Run a backward for each job in this rank; return the events of each."""
    return [one_backward(*job) for job in jobs]


def one_backward(overlap, layers, layer, message, start=0, in_bucket=1):
    """Run one backward in this rank; return its events, in seconds.

    overlap: send during backward, or after it. layer: the ticks in which a layer
    computes. A bucket holds `in_bucket` layers, and takes `start` + `message` for each
    of them on the wire.
    """
    net = slow_network(layers, layer * TICK, WIDTH)
    kind = DDP if overlap else BucketDDP
    model = kind(net, bucket_cap_mb=in_bucket * BYTES / 2**20)
    with slow_wire(BYTES / (message * TICK), start * TICK):
        return timeline.backward(
            model, lambda: model(torch.rand(8, WIDTH)).sum().backward()
        )


def _in_ticks(job, events, quiet):
    """Return a job's events in ticks; run it again until two runs agree, if need be."""
    late = max((event.time / TICK + EARLY) % 1 for event in events)
    if quiet and late < LATE:
        return in_ticks(events, TICK)
    more = (run_ranks(backwards, 2, [job])[0][0] for _ in count())
    runs = chain([events], more)
    return agreed(lambda: next(runs), TICK)


def both_ways(layers, message):
    """Record layers of 2 ticks, a message for each, after backward and during."""
    jobs = [(overlap, layers, 2, message) for overlap in (False, True)]
    after, during = record(*jobs)
    return {"send after backward": after, "send during backward": during}


def draw(records, start=0):
    """Draw each record, of {label: events}, as a panel.

    start: the ticks at the beginning of each message that are drawn dark.
    """
    import matplotlib.pyplot as plt

    until = max(events[-1].time for events in records.values()) + 1
    waits = any(
        full < begin
        for events in records.values()
        for _, full, begin, _ in _messages(events)
    )
    rows = ROWS if waits else [ROWS[0], ROWS[-1]]
    _, axes = plt.subplots(
        len(records),
        figsize=(5.9, (0.5 + 0.4 * len(rows)) * len(records) + 0.35),
        dpi=110,
        sharex=True,
        layout="constrained",
    )
    for ax, (label, events) in zip(axes, records.items()):
        _panel(ax, events, start, len(rows) - 1)
        ax.set_title(
            f"{label}: {events[-1].time} ticks", loc="left", fontsize=11
        )
        ax.set_yticks(range(len(rows)), rows, fontsize=10.5)
        ax.set_xticks(range(0, until + 1, 1 if until < 18 else 2))
        ax.set(ylim=(len(rows) - 0.45, -0.55), xlim=(0, until))
        ax.grid(axis="x", color=FAINT)
        ax.set_axisbelow(True)
    axes[-1].set_xlabel(
        "time, in ticks from the end of forward", fontsize=10.5
    )
    plt.show()


def _messages(events):
    """Return for each message its bucket, and when it was full, left and arrived."""
    full, free, found = {}, 0, []
    for event in events:
        if event.what == "start":
            full[event.bucket] = event.time
        elif event.what == "arrive":
            ready = full[event.bucket]
            found.append((event.bucket, ready, max(ready, free), event.time))
            free = event.time
    return found


def _panel(ax, events, start, wire):
    layers, before = {}, 0
    for event in events:
        if event.what == "ready":
            number = event.name.split(".")[0].split()[-1]
            layers.setdefault(event.bucket, []).append(number)
            _bar(ax, 0, before, event.time, COLOURS[2], number)
            before = event.time
    for bucket, full, begin, arrived in _messages(events):
        first, last = layers[bucket][0], layers[bucket][-1]
        words = first if first == last else f"{first}-{last}"
        _bar(ax, 1, full, begin, FAINT, words, "left")
        _bar(ax, wire, begin, begin + start, INK)
        _bar(ax, wire, begin + start, arrived, COLOURS[1], words)
    end = events[-1].time
    _bar(ax, 0, before, end, FAINT, "rank waits" if end - before > 1 else "")


def _bar(ax, row, start, end, colour, words="", align="center"):
    if end <= start:
        return
    pale = colour == FAINT
    ax.barh(
        row,
        end - start,
        0.72,
        start,
        color=colour,
        edgecolor="white",
        hatch="///" if pale else None,
    )
    at = (start + end) / 2 if align == "center" else start + 0.2
    ax.text(
        at,
        row,
        words,
        ha=align,
        va="center",
        fontsize=10.5,
        color=INK if pale else "white",
    )


def three_steps(wrap):
    """Train LeNet on every N-th row of 12; return its weights in float64.

    Each rank draws its own first weights. wrap(net): what the loop calls.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    net = LeNet(init_params("he", generator, torch.float64))
    model = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(1)
    for _ in range(3):
        X = torch.rand(12, 1, 28, 28, generator=rows, dtype=torch.float64)
        y = torch.randint(10, (12,), generator=rows)
        F.cross_entropy(model(X[rank::n]), y[rank::n]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


if __name__ == "__main__":
    for job in (
        (False, 4, 2, 1),
        (True, 4, 2, 1),
        (False, 4, 2, 3),
        (True, 4, 2, 3),
        *((True, 8, 1, 1, 2, in_bucket) for in_bucket in (8, 4, 2, 1)),
    ):
        found = [record(job)[0][-1].time for _ in range(10)]
        print(*job, "|", *found, flush=True)
