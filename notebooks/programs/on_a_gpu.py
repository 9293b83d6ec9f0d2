"""What one GPU can show, and what needs two: a table, and JSON with `--out FILE`.

    step      `train_batch` on the device beside `train_batch` on the CPU
    sums      an all-reduce between ranks: the right sum? on the device still?
    ddp       steps through torch's DDP beside one step on the CPU
    images    images a second in training, and the device's peak memory
    skip      mixed precision: a gradient that is inf on one rank, and all skip the step

    python notebooks/programs/on_a_gpu.py --out gpu.json

Each function takes devices and runs on the CPU as well. Ranks that share one GPU go
through gloo, which adds in the CPU's memory; with a GPU for each rank it is nccl.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from manual_dp.files import write_json
from manual_dp.files.vision import ensure_torchvision
from manual_dp.lenet import init_params
from manual_dp.models.lenet import LeNet
from manual_dp.models.resnet import resnet18
from manual_dp.params import get_params, largest_difference
from manual_dp.ranks import run_ranks
from manual_dp.train import train_batch


def resnet50():
    """Return torchvision's network, with first layers for images of 32 x 32."""
    net = ensure_torchvision().models.resnet50(num_classes=10)
    net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = torch.nn.Identity()
    return net


NETS = {
    "LeNet": (LeNet, (1, 28, 28)),
    "ResNet-18": (resnet18, (3, 32, 32)),
    "ResNet-50": (resnet50, (3, 32, 32)),
}
LR, SCALE = 0.1, 2.0**10


def step(devices, rows=9, steps=3):
    """Return how far a step in float64 ever took a replica from one on the CPU."""
    here, far = [_start()], []
    for X, y in _batches(rows, steps):
        there = [get_params(here[0], device) for device in devices]
        train_batch(X, y, there, devices, LR)
        train_batch(X, y, here, [torch.device("cpu")], LR)
        far += [
            largest_difference(get_params(replica, "cpu"), here[0])
            for replica in there
        ]
    return max(far)


def sums(devices):
    """Return whether every rank ends with the sum, on the device where its tensor was."""
    return all(_ranks(_sum, devices))


def _sum(devices):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(5.0, device=devices[rank]) + rank
    dist.all_reduce(tensor)
    right = world_size * torch.arange(5.0) + sum(range(world_size))
    return torch.equal(tensor.cpu(), right) and tensor.device == devices[rank]


def ddp(devices, rows=6, steps=3):
    """Return how far a step through torch's DDP ever took a rank from one on the CPU."""
    paths, start, far = _ranks(_ddp, devices, rows, steps), _start(), []
    for i, (X, y) in enumerate(_batches(rows * len(devices), steps)):
        train_batch(X, y, [start], [torch.device("cpu")], LR)
        far += [largest_difference(path[i], start) for path in paths]
        start = get_params(paths[0][i], "cpu")
    return max(far)


def _ddp(devices, rows, steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net, path = LeNet(_start()).to(devices[rank]), []
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for X, y in _batches(rows * world_size, steps):
        X, y = (part[rank::world_size].to(devices[rank]) for part in (X, y))
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        path.append(
            [p.detach().to("cpu", copy=True) for p in net.parameters()]
        )
    return path


def images(device, name, rows, steps=10, mixed=False):
    """Return (images a second, MiB at the peak): the median step after two to warm up.

    mixed: float16 with a scaler on a GPU, bfloat16 on the CPU, which counts no memory.
    """
    make, shape = NETS[name]
    net, gpu = make().to(device), device.type == "cuda"
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed and gpu)
    X, y = (
        torch.rand(rows, *shape, device=device),
        torch.arange(rows, device=device) % 10,
    )
    seconds = []
    for _ in range(steps + 2):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(
            device.type,
            enabled=mixed,
            dtype=torch.float16 if gpu else torch.bfloat16,
        ):
            loss = F.cross_entropy(net(X), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if gpu else 0
    return rows / median(seconds[2:]), peak


def skip(devices):
    """Return each rank's (did its weight move?, new scale / old) after rank 0's inf."""
    return _ranks(_skip, devices)


def _skip(devices):
    device = devices[dist.get_rank()]
    model = DistributedDataParallel(
        torch.nn.Linear(3, 1, bias=False).to(device)
    )
    [weight], before = (
        model.parameters(),
        model.module.weight.detach().clone(),
    )
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    factor = float("inf") if dist.get_rank() == 0 else 1.0
    scaler.scale(
        factor * model(torch.ones(2, 3, device=device)).sum()
    ).backward()
    scaler.step(optimizer)
    scaler.update()
    return not torch.equal(weight, before), scaler.get_scale() / SCALE


def _ranks(function, devices, *args):
    apart = devices[0].type == "cuda" and len(set(devices)) == len(devices)
    return run_ranks(
        function,
        len(devices),
        devices,
        *args,
        timeout=240,
        backend="nccl" if apart else "gloo",
    )


def _start():
    params = init_params(
        "he", torch.Generator().manual_seed(0), torch.float64
    )
    return get_params(params, "cpu")


def _batches(rows, steps):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.rand(
                rows, 1, 28, 28, generator=generator, dtype=torch.float64
            ),
            torch.randint(10, (rows,), generator=generator),
        )
        for _ in range(steps)
    ]


def report(
    gpus,
    networks=(("LeNet", 256), ("ResNet-18", 64), ("ResNet-50", 64)),
    steps=10,
):
    """Return {what: figure} on the first device, and on two if there are two."""
    found = {
        f"train_batch on {k} replicas, off the CPU's": step(gpus[:1] * k)
        for k in (1, 2, 4)
    }
    for where, devices in {
        "sharing it": gpus[:1] * 2,
        "apart": gpus[:2],
    }.items():
        if len(devices) == 2:
            found[f"2 ranks {where}: the sum is right"] = sums(devices)
            found[f"2 ranks {where}: DDP, off the CPU's"] = ddp(devices)
            found[f"2 ranks {where}: skip after an inf"] = skip(devices)
    for name, rows in networks:
        places = [(gpus[0], False), (gpus[0], True)]
        if name != "ResNet-50":  # half a minute a step
            places.insert(0, (torch.device("cpu"), False))
        for place, mixed in places:
            rate, peak = images(place, name, rows, steps, mixed)
            label = f"{name}, {rows} rows, {place}" + ", mixed" * mixed
            found[f"{label}: images a second"] = rate
            found[f"{label}: MiB at the peak"] = peak
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write JSON here"
    )
    args = parser.parse_args()
    cards = [
        torch.device("cuda", i) for i in range(torch.cuda.device_count())
    ]
    if not cards:
        parser.error(
            f"torch {torch.__version__} sees no GPU; nvidia-smi lists them"
        )
    figures = {
        "GPU": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        **report(cards),
    }
    for what, figure in figures.items():
        print(
            f"{what:48}",
            f"{figure:.4g}" if isinstance(figure, float) else figure,
        )
    if args.out:
        write_json(args.out, figures)
