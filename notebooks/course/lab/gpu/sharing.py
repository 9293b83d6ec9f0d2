"""Ranks on one device: gloo lets them share it, nccl wants a GPU for each.

    sums       one all-reduce of tensors on the device: the sum? where is it?
    ddp        how far a step through a DDP goes from one device's step
    seconds    an all-reduce of tensors on the device, and of tensors on the CPU

gloo takes a GPU's tensor for an all-reduce or a broadcast. It copies it to the CPU's
memory (pinned, so that the copy runs beside other work), adds there, and copies the sum
back: what crosses between ranks passes through the CPU. Source: torch's
ProcessGroupGloo, AsyncAllreduceCUDAWork. It sends no GPU's tensor from rank to rank
(`isend`), which is why the collectives by hand refuse one. nccl refuses two ranks on
one GPU; with one rank its all-reduce is the identity.
"""

from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab.bench.turns import turns_of_ranks
from course.lab.same import apart, most
from manual_dp.lenet import init_params
from manual_dp.models.lenet import LeNet
from manual_dp.ranks import DDP, run_ranks

WRAPS = {"torch's": DistributedDataParallel, "by hand": DDP}
TIMEOUT = 240  # seconds: the first use of a GPU takes some


def backend(device, world_size):
    """Return what ranks on the one device talk through."""
    return "nccl" if device.type == "cuda" and world_size == 1 else "gloo"


def sums(devices, through):
    """Sum one tensor over the ranks; return {"sum": right on all, "stays": bool}.

    devices: one for each rank. stays: whether the sum is where the tensor was.
    """
    ranks = run_ranks(_sum, len(devices), devices, timeout=TIMEOUT, backend=through)
    right = [sum(range(1, len(devices) + 1)) + i for i in range(5)]
    return {"sum": all(numbers == right for numbers, _ in ranks),
            "stays": all(stays for _, stays in ranks)}


def _sum(devices):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    start = torch.arange(5, dtype=torch.float64) / world_size + rank + 1
    tensor = start.to(devices[rank])
    place = tensor.device
    dist.all_reduce(tensor)
    return [round(number, 9) for number in tensor.tolist()], tensor.device == place


def ddp(devices, through, wrap="by hand", rows=6, steps=3, lr=0.1):
    """Train through a DDP, a rank on each device; return {"stepwise", "equal"}.

    stepwise: how far a step ever took a rank from one step on the CPU that started
    from the same weights, in float64. equal: the ranks end with the same bits.
    wrap: "by hand" or "torch's". rows: of each rank.
    """
    paths = run_ranks(_train, len(devices), devices, wrap, rows, steps, lr,
                      timeout=TIMEOUT, backend=through)
    far, start = [], _start()
    for i, batch in enumerate(_batches(rows * len(devices), steps)):
        one = _one_step(start, *batch, lr)
        far += [apart(path[i], one) for path in paths]
        start = paths[0][i]
    equal = all(torch.equal(p, q) for path in paths
                for p, q in zip(path[-1], paths[0][-1]))
    return {"stepwise": most(far), "equal": equal}


def _train(devices, wrap, rows, steps, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = LeNet(_start()).to(devices[rank])
    model, path = WRAPS[wrap](net), []
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for X, y in _batches(rows * world_size, steps):
        X, y = X[rank::world_size], y[rank::world_size]
        F.cross_entropy(model(X.to(devices[rank])), y.to(devices[rank])).backward()
        optimizer.step()
        optimizer.zero_grad()
        path.append([p.detach().to("cpu", copy=True) for p in net.parameters()])
    return path


def _one_step(start, X, y, lr):
    net = LeNet(start)
    F.cross_entropy(net(X), y).backward()
    torch.optim.SGD(net.parameters(), lr=lr).step()
    return [p.detach() for p in net.parameters()]


def _start():
    return init_params("he", torch.Generator().manual_seed(0), torch.float64)


def _batches(rows, steps):
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(rows, 1, 28, 28, generator=generator, dtype=torch.float64),
             torch.randint(10, (rows,), generator=generator)) for _ in range(steps)]


def seconds(devices, numbers=2**22, count=7):
    """Return {"device", "cpu"}: the median seconds of an all-reduce through gloo.

    numbers: of each rank, in float32. The difference is what the way through the
    CPU's memory costs.
    """
    pairs = turns_of_ranks(len(devices), _sides, [devices, numbers], count)[1:]
    there, here = zip(*pairs)
    return {"device": median(there), "cpu": median(here)}


def _sides(devices, numbers):
    here = torch.zeros(numbers)
    there = here.to(devices[dist.get_rank()], copy=True)

    def on_device():
        dist.all_reduce(there)
        if there.is_cuda:
            torch.cuda.synchronize(there.device)
    return on_device, lambda: dist.all_reduce(here)
