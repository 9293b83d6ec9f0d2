"""Run a program of the article as it is printed, on a CPU and without a network.

    python as_printed.py article/example_1.py
    torchrun --standalone --nproc_per_node=2 as_printed.py article/example_2.py

Not a letter of the program is changed. It runs in this process, in which a few names
mean something else: CIFAR10 makes up its images, loaders have no workers, a small
network takes the place of resnet50, and nccl and a GPU's number mean gloo and the CPU.
At the end each rank prints a line of JSON: what it saw the program do.

    Images     stands for torchvision.datasets.CIFAR10
    resnet50   ask torchvision for what the program asks for; return a small network
    on_cpu     hide GPUs; let numbers of GPUs, and nccl, mean the CPU
    plainly    let loaders load in this process: a worker costs more than these images
    listen     note updates, rates, and which data set is read
"""

import json
import os
import runpy
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from manual_dp.files.vision import ensure_torchvision

seen = {
    "rank": int(os.environ.get("RANK", 0)),
    "downloads": 0,
    "weights": 0,
    "warnings": [],
    "rows": 0,
    "rate": 0,
    "updates": 0,
    "train set read": 0,
    "test set read": 0,
}


class Images(Dataset):
    """Be as many rows as CIFAR-10 has: always the same image of noise."""

    def __init__(self, root, train, transform, download):
        from PIL import Image

        seen["downloads"] += download
        self.train, self.rows = train, 50_000 if train else 10_000
        noise = torch.randint(
            256, (32, 32, 3), generator=torch.Generator().manual_seed(0)
        )
        self.X = transform(Image.fromarray(noise.byte().numpy()))

    def __len__(self):
        """Return how many rows there are."""
        return self.rows

    def __getitem__(self, i):
        """Return image and label i."""
        return self.X, i % 10


def resnet50(**asked):
    """Ask torchvision for the network, note what it says; return a small one."""
    with warnings.catch_warnings(record=True) as caught, torch.device("meta"):
        warnings.simplefilter("always")
        net = real_resnet50(**asked)
    seen["weights"] = sum(p.numel() for p in net.parameters())
    seen["warnings"] += [str(warning.message) for warning in caught]
    small = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 10))
    small.register_forward_pre_hook(
        lambda net, args: seen.update(rows=max(seen["rows"], len(args[0])))
    )
    return small


def on_cpu():
    """Hide the GPUs that there are; let a GPU's number mean the CPU, and nccl gloo."""
    torch.cuda.is_available, torch.cuda.device_count = (
        lambda: False,
        lambda: 0,
    )

    def cpu_for_numbers(real):
        def to(self, *where, **options):
            return real(
                self,
                *("cpu" if type(to) is int else to for to in where),
                **options,
            )

        return to

    nn.Module.to = cpu_for_numbers(nn.Module.to)
    torch.Tensor.to = cpu_for_numbers(torch.Tensor.to)
    torch.cuda.set_device = lambda gpu: None
    start, wrap = dist.init_process_group, DistributedDataParallel.__init__
    dist.init_process_group = lambda backend, **options: start(
        "gloo", **options
    )
    DistributedDataParallel.__init__ = lambda self, net, device_ids: wrap(
        self, net
    )


def plainly():
    """Let a loader load in this process, whatever workers it is to have."""
    make = DataLoader.__init__

    def plain(self, *args, num_workers=0, **options):
        make(self, *args, **options)

    DataLoader.__init__ = plain


def listen():
    """Note each update with its rate, and which data set a loader reads."""
    step, read = torch.optim.SGD.step, DataLoader.__iter__

    def noted_step(self, *args):
        seen["updates"] += 1
        seen["rate"] = self.param_groups[0]["lr"]
        return step(self, *args)

    def noted_read(self):
        seen[f"{'train' if self.dataset.train else 'test'} set read"] += 1
        return read(self)

    torch.optim.SGD.step, DataLoader.__iter__ = noted_step, noted_read


if __name__ == "__main__":
    torchvision = ensure_torchvision()
    real_resnet50 = torchvision.models.resnet50
    torchvision.models.resnet50 = resnet50
    torchvision.datasets.CIFAR10 = Images
    on_cpu()
    plainly()
    listen()
    torch.manual_seed(0)  # the programs set none: so each run prints the same
    runpy.run_path(sys.argv[1], run_name="__main__")
    print(json.dumps(seen) + "\n", end="", flush=True)
