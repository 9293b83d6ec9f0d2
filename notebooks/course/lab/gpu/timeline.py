"""When does a device do what: the parts of a step, and a clock that does not wait.

    parts    seconds of forward, backward, all-reduce and update
    clocks   one piece of work on two clocks: one waits for the device, one does not

On a GPU an operation's call returns as soon as the work is queued: Python's clock then
shows how long it took to ask. `torch.cuda.synchronize()` waits until all is done. An
event needs no waiting: the GPU itself notes the time when it comes to the event's place
in the queue. On the CPU a call returns when the work is done, and the clocks agree.
"""

import time
from statistics import median

import torch

from course.lab.laps import PARTS as LAPS
from manual_dp.allreduce import allreduce
from manual_dp.lenet import init_params, lenet, loss
from manual_dp.params import get_params, pack_grads
from manual_dp.train import sgd

PARTS = LAPS[1:]  # nothing is loaded here


def parts(device, world_size=2, rows=256, steps=10, lr=0.01):
    """Return {part: seconds}, medians over the steps of `train_batch` taken apart.

    world_size replicas of LeNet share the device, in float32. "whole" is the step from
    its first mark to its last, on the same clock; the parts add up to it.
    """
    generator = torch.Generator().manual_seed(0)
    params = init_params("he", generator)
    replicas = [get_params(params, device) for _ in range(world_size)]
    X = torch.rand(rows, 1, 28, 28, generator=generator).to(device).chunk(world_size)
    y = torch.randint(10, (rows,), generator=generator).to(device).chunk(world_size)
    rounds = []
    for _ in range(steps + 1):  # the first one warms up
        step = _step(X, y, replicas, rows, lr)
        marks = [_mark(device)]
        for part in step:
            part()
            marks.append(_mark(device))
        rounds.append(marks)
    wait(device)
    columns = zip(*(_between(marks) for marks in rounds[1:]))
    return {part: median(column) for part, column in zip((*PARTS, "whole"), columns)}


def _step(X, y, replicas, rows, lr):
    """Clear the gradients; return the parts of a step, each as a function to call."""
    grads, totals = [pack_grads(params) for params in replicas], []

    def forward():
        totals.extend(loss(lenet(a, params), b).sum()
                      for a, b, params in zip(X, y, replicas))

    def backward():
        for total in totals:
            total.backward()

    def update():
        for params in replicas:
            sgd(params, lr, rows)
    return forward, backward, lambda: allreduce(grads), update


def _mark(device):
    """Mark this place in the device's queue; on the CPU, note the time."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(marks):
    """Return the seconds from each mark to the next, and from the first to the last."""
    pairs = [*zip(marks, marks[1:]), (marks[0], marks[-1])]
    if isinstance(marks[0], float):
        return [end - begin for begin, end in pairs]
    return [begin.elapsed_time(end) / 1000 for begin, end in pairs]


def clocks(device, size=2048, products=20, tries=5):
    """Return {"asked", "done"}: seconds of some matrix products, medians of `tries`.

    asked: until the calls have returned. done: until the device has the results.
    """
    matrix = torch.rand(size, size, device=device) / size
    rounds = []
    for _ in range(tries + 1):  # the first one warms up
        wait(device)
        begin = time.perf_counter()
        for _ in range(products):
            matrix @ matrix
        asked = time.perf_counter() - begin
        wait(device)
        rounds.append((asked, time.perf_counter() - begin))
    return dict(zip(("asked", "done"), map(median, zip(*rounds[1:]))))


def wait(device):
    """Wait until the device has done all that it was asked; a CPU has already."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
