"""Every method side by side: does it train as one device does, and at what cost?

    compare   run every method of METHODS on the same minibatches; return a report
    table     the report as text
    METHODS   a function of (shares, steps) for each method, by its label

Stepwise: in each step one device starts from the method's weights, and the two ends are
compared. What is left is rounding, at any rate. Run against run: both train on from
their own weights, and whatever the training does to a difference, it does to rounding.
The control says what that is: one device whose start differs in the last place of one
weight. A method that parts no faster than the control is right.

LeNet, float64, plain SGD. In one process `split_batch` sizes the shards, over processes
`shares` does. Each rank divides its sum by the rows of the minibatch; where DDP
takes the mean over ranks, the loss is world_size times that. A method returns a dict:
"weights", "seconds" and "stepwise" as `follow` does, "sent", the bytes that the busiest
rank sends in a step, and "counted": were these counted? If not, they are computed: for
DataParallel from the sizes of weights, rows and scores; for DDP they are 2 (N - 1) / N
of the bytes that all_reduce was given, which are counted.
"""

from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course.lab.allreduce_trace import busiest, traffic
from course.lab.equivalence import apart, most, nudge
from course.lab.notebook import bar
from course.lab.stopwatch import clock
from course.lab.timeline import all_reduces
from manual_dp.allreduce import WAYS
from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet
from manual_dp.models.lenet import LeNet
from manual_dp.parallel import DataParallel
from manual_dp.params import get_params, largest_difference, pack_grads
from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, collectives, run_ranks
from manual_dp.split import scatter
from manual_dp.train import train_batch

BOUND, LR = 1e-12, 0.05  # what is promised; the learning rate


def compare(world_size=2, steps=100, batch_size=24):
    """Train by every method from the same weights on the same minibatches.

    Twice: on minibatches whose shards are equal, batch_size rows or a little less, and
    on some that are world_size - 1 rows smaller, which no split makes equal: over
    processes rank 0 gets three times as many rows as the others. Returns a dict that
    JSON can hold. Seconds are of the even minibatches, with one thread a process.
    """
    if not 1 <= world_size <= 64 or batch_size < 3 * world_size:
        raise ValueError(
            "world_size must be at most 64 and batch_size three rows a "
            f"rank, got {world_size} and {batch_size}"
        )
    even = batch_size - batch_size % world_size
    odd = even - (world_size - 1)
    one = odd // (world_size + 2)
    shares = {
        "even": [even // world_size] * world_size,
        "uneven": [odd - one * (world_size - 1)] + [one] * (world_size - 1),
    }
    runs, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # as every rank does
    try:
        for name, method in bar(METHODS.items(), f"{world_size} ranks"):
            runs[name] = [method(share, steps) for share in shares.values()]
    finally:
        torch.set_num_threads(threads)
    alone, last = runs["single device"], runs["torch DDP"][0]["seconds"]
    after = list(alone[0]["weights"])
    return {
        "world_size": world_size,
        "steps": steps,
        "torch": torch.__version__,
        "gpus": torch.cuda.device_count(),
        "after": after,
        "moved": largest_difference(start(), alone[0]["weights"][after[-1]][0]),
        "shards": {
            kind: {"in one process": _shards(share), "over processes": share}
            for kind, share in shares.items()
        },
        "rows": [
            {"method": name, **_row(run, alone, last)} for name, run in runs.items()
        ],
    }


def _shards(shares):
    rows = torch.empty(sum(shares))
    return [len(shard) for shard in scatter(rows, ["cpu"] * len(shares))]


def _row(run, alone, last):
    """Return a method's line of the report.

    run, alone: what the method and one device returned, on even and uneven shards.
    last: the seconds of a step of torch's DDP.
    """
    differences, equal = [], True
    for ours, theirs in zip(run, alone):
        after = []  # the difference after each step of which weights are kept
        for step, replicas in ours["weights"].items():
            [right] = theirs["weights"][step]
            after.append(most([largest_difference(own, right) for own in replicas]))
            for own in replicas:
                same = map(torch.equal, own, replicas[0])
                equal = equal and len(own) == len(replicas[0]) and all(same)
        differences.append(after)
    return {
        "stepwise": most([part["stepwise"] for part in run]),
        "difference": differences,
        "replicas": len(replicas),
        "equal": equal,
        **{key: run[0][key] for key in ("sent", "counted", "seconds")},
        "ratio": run[0]["seconds"] / last,
    }


# what all methods share: weights, minibatches, a step, taking notes


def start():
    """Draw the initial weights, the same at every call."""
    return init_params("he", torch.Generator().manual_seed(0), torch.float64)


def follow(rows, steps, step, replicas, device):
    """Call `step(X, y)` on every minibatch; return weights and seconds, a dict.

    replicas: lists of parameters, which the steps change in place. "weights": copies,
    after steps 1, 10, 100 and the last. "seconds": the median over steps. "stepwise":
    the largest distance of a replica from one device that took the same step alone,
    from the first replica's weights.
    """
    weights, seconds, stepwise = {}, [], []
    generator = torch.Generator().manual_seed(0)
    for number in range(1, steps + 1):
        X = torch.rand(rows, 1, 28, 28, dtype=torch.float64, generator=generator)
        X, y = X.to(device), torch.randint(10, (rows,), generator=generator).to(device)
        one = [p.detach().to(device, copy=True).requires_grad_() for p in replicas[0]]
        grads = torch.autograd.grad(F.cross_entropy(lenet(X, one), y), one)
        one = [p.detach() - LR * grad for p, grad in zip(one, grads)]
        begin = clock()
        step(X, y)
        seconds.append(clock() - begin)
        stepwise.append(most([apart(replica, one) for replica in replicas]))
        if number in (1, 10, 100, steps):
            weights[number] = kept = []
            for params in replicas:
                kept.append([p.detach().to("cpu", copy=True) for p in params])
    return {"weights": weights, "seconds": median(seconds), "stepwise": most(stepwise)}


def _sgd(net, rows, after_backward=None, factor=1):
    """Return a function of X and y that takes a step of torch's own plain SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)

    def step(X, y):
        optimizer.zero_grad()
        total = F.cross_entropy(net(X), y, reduction="sum")
        (factor * total / rows).backward()
        if after_backward:
            after_backward()
        optimizer.step()

    return step


# the methods


def single(shares, steps, begin=lambda params: params):
    """Train on one device: nothing is split, nothing summed over ranks."""
    [device] = try_devices(1)
    net = LeNet(begin(start())).to(device)
    run = follow(
        sum(shares), steps, _sgd(net, sum(shares)), [[*net.parameters()]], device
    )
    return {**run, "sent": 0, "counted": True}


def by_hand(allreduce, shares, steps):
    """Train replicas in this process: `train_batch` with an all-reduce of a list."""
    devices = try_devices(len(shares))
    device_params = [get_params(start(), device) for device in devices]

    def step(X, y):
        train_batch(X, y, device_params, devices, LR, allreduce)

    run = follow(sum(shares), steps, step, device_params, devices[0])
    grads = [pack_grads(params) for params in device_params]
    return {**run, "sent": busiest(traffic(allreduce, grads)), "counted": True}


def data_parallel(shares, steps):
    """Train one module through `DataParallel` by hand."""
    devices = try_devices(len(shares))
    params = start()
    net = DataParallel(LeNet(params), devices)
    run = follow(
        sum(shares), steps, _sgd(net, sum(shares)), [[*net.parameters()]], devices[0]
    )
    # device 0 sends each other one all weights, its rows, its scores' gradient
    each = [
        sum(p.numel() for p in params) + rows * (28 * 28 + 10)
        for rows in _shards(shares)[1:]
        if rows
    ]
    return {**run, "sent": 8 * sum(each), "counted": False}


def over_processes(wrap, shares, steps):
    """Train with a process for each rank: on a GPU each if there are so many.

    wrap: called in each rank with the module; returns what to call for the scores, what
    to call after backward, and the factor for the loss. `ring` stays on the CPU: gloo
    sends no GPU's tensor.
    """
    gpus = wrap is not ring and torch.cuda.device_count() >= len(shares)
    runs = run_ranks(
        _rank,
        len(shares),
        wrap,
        shares,
        steps,
        gpus,
        timeout=60 + 2 * steps,
        backend="nccl" if gpus else "gloo",
    )
    weights = {}  # each rank has one replica
    for step in runs[0]["weights"]:
        weights[step] = [run["weights"][step][0] for run in runs]
    result = {"weights": weights, "stepwise": most([run["stepwise"] for run in runs])}
    for key in ("seconds", "sent", "counted"):
        result[key] = max(run[key] for run in runs)
    return result


def ring(module):
    """Leave the module as it is; sum its gradients by the ring on isend and irecv."""

    def after_backward():
        grads = [p.grad for p in module.parameters()]
        flat = parameters_to_vector(grads)
        collectives.ring_allreduce(flat)
        vector_to_parameters(flat, grads)

    return module, after_backward, 1


def ddp(kind, module, **options):
    """Wrap the module in a DDP, which takes the mean over ranks during backward."""
    net = kind(module, **options)
    if kind is DistributedDataParallel:  # else it calls no Python, and nothing is seen
        net.register_comm_hook(None, allreduce_hook)
    return net, None, dist.get_world_size()


def _rank(wrap, shares, steps, gpus):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    module = LeNet(start()).to(device)
    net, after_backward, factor = wrap(module)
    step = _sgd(net, sum(shares), after_backward, factor)
    first = sum(shares[:rank])
    mine = slice(first, first + shares[rank])
    with all_reduces("isend") as sent, all_reduces() as summed:
        run = follow(
            sum(shares),
            steps,
            lambda X, y: step(X[mine], y[mine]),
            [[*module.parameters()]],
            device,
        )
    given = sum(sent) or 2 * (world_size - 1) * sum(summed) // world_size
    return {**run, "sent": 8 * given // steps, "counted": bool(sent)}


def _ddp(kind, **options):
    return partial(over_processes, partial(ddp, kind, **options))


METHODS = {
    "single device": single,
    "single, 1 ulp off": partial(single, begin=nudge),
    **{name: partial(by_hand, way) for name, way in WAYS.items()},
    "DataParallel by hand": data_parallel,
    "ring over processes": partial(over_processes, ring),
    "DDP, each gradient": _ddp(NaiveDDP),
    # half a MB: two buckets, the linear layers and the convolutions
    "DDP, buckets": _ddp(BucketDDP, bucket_cap_mb=0.5),
    "DDP, overlapped": _ddp(DDP, bucket_cap_mb=0.5),
    "torch DDP": _ddp(DistributedDataParallel, bucket_cap_mb=0.5),
}


# the report


def table(report, timing=True):
    """Return the report as text, a line for each method.

    timing: show differences and seconds. Without, say whether each difference is
    within 1e-12: the same text on every CPU.
    """
    marks = "".join(f"{mark:6d}" for mark in report["after"])
    wide = max(len(marks), 12)
    lines = [
        f"world size {report['world_size']}, float64, {report['steps']} steps at "
        f"rate {LR:g}; the largest change of a weight is {report['moved']:.2g}"
    ]
    for kind, shards in report["shards"].items():
        one = ", ".join(map(str, shards["in one process"]))
        many = ", ".join(map(str, shards["over processes"]))
        line = f"{kind}: {sum(shards['over processes'])} rows, shards of {one}"
        lines.append(line if many == one else f"{line}; over processes {many}")
    note, over, under = "", "", ""  # what stands of time in three lines
    if timing:
        note, over, under = "; time: a step's, / torch DDP's", "   time", " /torch"
    lines += [
        f"each one: from the same weights in every step, promised: <= {BOUND}",
        "run: each from its own weights; the control is one device, 1 ulp off",
        f"~: computed, for DDP from the bytes that all_reduce was given{note}",
        "",
        f"{'':21}{'each':>6}{'run: even':>{wide}}{'run: uneven':>{wide}}  ranks"
        f"{'bytes sent':>11}{over}",
        f"{'difference after step':21}{'one':>6}{marks:>{wide}}{marks:>{wide}}"
        f"  equal{'busiest':>11}{under}",
    ]
    for row in report["rows"]:
        line = f"{row['method']:21}{_cell(row['stepwise'], timing):>6}"
        for part in row["difference"]:
            cells = "".join(f"{_cell(difference, timing):>6}" for difference in part)
            line += f"{cells:>{wide}}"
        equal = "yes" if row["equal"] else "NO"
        if row["replicas"] == 1:
            equal = "-"
        sent = ("" if row["counted"] else "~") + f"{row['sent']:,}"
        line += f"{equal:>7}{sent:>11}"
        lines.append(line + f"{row['ratio']:7.2f}" if timing else line)
    return "\n".join(lines)


def _cell(difference, digits):
    """Say a difference, or without digits whether it is within what is promised."""
    if digits:
        return f"{difference:.0e}" if difference else "0"
    return "yes" if difference <= BOUND else "NO"
