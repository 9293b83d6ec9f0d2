"""What needs two GPUs: nccl between them, copies from one to the other, two wrappers.

    gpus       the first two; RuntimeError where there are fewer
    nccl       an all-reduce and DDP, a rank on each; bytes a second
    peer       a copy from one to the other: right? how many bytes a second?
    wrappers   seconds a step of DataParallel, of DDP, and of one GPU alone

Each takes the devices, and without them those of `gpus`. Two times the CPU will do to
run them, through gloo: the numbers then say nothing of GPUs.
"""

from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab.gpu import sharing
from course.lab.gpu.speed import NETS, timed
from course.lab.gpu.timeline import wait
from manual_dp.ranks import run_ranks


def gpus():
    """Return the first two GPUs; RuntimeError, which says how many there are."""
    count = torch.cuda.device_count()
    if count < 2:
        raise RuntimeError(f"this needs 2 GPUs, the machine has {count}")
    return [torch.device("cuda", i) for i in range(2)]


def nccl(devices=None, numbers=2**24, count=10):
    """Return what a rank on each device has: a dict.

    "sum": an all-reduce sums. "stepwise", "equal": of DDP, as `sharing.ddp`.
    "bytes": a second, out of each rank, by an all-reduce of so many float32. By a ring,
    each of two ranks sends as many bytes as its tensor has.
    """
    devices = devices or gpus()
    through = "nccl" if devices[0].type == "cuda" else "gloo"
    times = run_ranks(_times, 2, devices, numbers, count, backend=through,
                      timeout=sharing.TIMEOUT)
    rate = 4 * numbers / median(map(max, zip(*times)))
    return {"sum": sharing.sums(devices, through)["sum"],
            **sharing.ddp(devices, through, "torch's"), "bytes": rate}


def _times(devices, numbers, count):
    device = devices[dist.get_rank()]
    tensor = torch.zeros(numbers, device=device)

    def step():
        dist.all_reduce(tensor)
        wait(device)
    return timed(step, count)


def peer(devices=None, numbers=2**26, count=10):
    """Copy float32 from the first device to the second; return a dict.

    "right": every number has arrived. "direct": the driver lets one GPU read the
    other's memory; without that the copy goes through the CPU's. "bytes": a second.
    """
    source, target = devices or gpus()
    here = torch.rand(numbers, device=source)
    there = torch.empty(numbers, device=target)

    def copy():
        there.copy_(here)
        wait(source)
        wait(target)
    seconds = timed(copy, count)
    direct = (source.type == "cuda"
              and torch.cuda.can_device_access_peer(source.index, target.index))
    return {"right": torch.equal(here.cpu(), there.cpu()), "direct": direct,
            "bytes": 4 * numbers / median(seconds)}


def wrappers(devices=None, name="ResNet-18", rows=256, count=10):
    """Return {"one", "DataParallel", "DDP"}: seconds a step of the same `rows` images.

    One GPU has all rows; DataParallel and DDP split them over two. Medians; of DDP's
    ranks the slower one counts.
    """
    devices = devices or gpus()
    device, ids = devices[0], [d.index for d in devices if d.type == "cuda"]
    make, shape = NETS[name]
    found, wraps = {}, {"one": nn.Sequential,
                        "DataParallel": lambda net: nn.DataParallel(net, ids or None)}
    for label, wrap in wraps.items():
        step = _step(wrap(make().to(device)), rows, shape, devices)
        found[label] = median(timed(step, count))
    through = "nccl" if ids else "gloo"
    ranks = run_ranks(_ddp, 2, devices, name, rows // 2, count, backend=through,
                      timeout=sharing.TIMEOUT)
    return {**found, "DDP": median(map(max, zip(*ranks)))}


def _ddp(devices, name, rows, count):
    device = devices[dist.get_rank()]
    make, shape = NETS[name]
    model = DistributedDataParallel(make().to(device))
    return timed(_step(model, rows, shape, [device]), count)


def _step(model, rows, shape, devices):
    """Return a function that takes a step and waits until the devices have taken it."""
    X = torch.rand(rows, *shape, device=devices[0])
    y = torch.randint(10, (rows,), device=devices[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        for device in devices:
            wait(device)
    return step
