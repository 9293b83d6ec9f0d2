"""Train a ResNet on CIFAR-10, with a process for each rank. One file; copy it.

    torchrun --standalone --nproc-per-node 2 resnet_ddp.py --cifar10 FOLDER --bf16

FOLDER holds the binary version of CIFAR-10: data_batch_1.bin to data_batch_5.bin and
test_batch.bin. Without --cifar10 it trains on scikit-learn's digits, in a minute.

Any number of ranks takes the same minibatches, cropped and flipped in the same way: all
ranks draw the whole minibatch, and each trains on its part. What differs is batch norm,
which sees the rows of its rank only. With --sync-norm it sees all.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def join():
    """Meet the other ranks; return this rank's device: a GPU, or the CPU for all."""
    gpus, ranks = (
        torch.cuda.device_count(),
        int(os.environ["LOCAL_WORLD_SIZE"]),
    )
    if gpus < ranks:
        if gpus and os.environ["LOCAL_RANK"] == "0":
            print(
                f"{ranks} ranks, {gpus} GPU: all are on the CPU",
                file=sys.stderr,
            )
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


# data: two sets (X, y), X whole numbers from 0 to 255, (n, 3, 32, 32)


def digits():
    """Return 1,437 rows to train with and 360 to test with."""
    from sklearn.datasets import load_digits

    X, y = map(torch.from_numpy, load_digits(return_X_y=True))
    X = F.interpolate(X.float().view(-1, 1, 8, 8) * 15, size=32).repeat(
        1, 3, 1, 1
    )
    test = torch.arange(len(X)) % 5 == 0
    return (X[~test].byte(), y[~test]), (X[test].byte(), y[test])


def cifar10(folder):
    """Return the 50,000 images to train with and the 10,000 to test with."""

    def read(*names):
        rows = np.concatenate(
            [np.fromfile(folder / f"{name}.bin", np.uint8) for name in names]
        ).reshape(-1, 1 + 3 * 32 * 32)
        return (
            torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)),
            torch.from_numpy(rows[:, 0].astype(np.int64)),
        )

    return read(*(f"data_batch_{i}" for i in range(1, 6))), read("test_batch")


def scale(X, device):
    """Return images as numbers near 0, on the device."""
    X = X.pin_memory() if device.type == "cuda" else X
    X = X.to(device, non_blocking=True).float()
    return (X - 120) / 64  # about the mean and the spread of all pixels


def crop_and_flip(X, generator):
    """Shift each image by up to four pixels, mirror half of them."""
    n = torch.arange(len(X))[:, None, None]
    down, right = torch.randint(9, (2, len(X), 1), generator=generator)
    rows, columns = torch.arange(32) + down, torch.arange(32) + right
    flip = torch.rand(len(X), 1, generator=generator) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    X = F.pad(X, (4, 4, 4, 4)).permute(0, 2, 3, 1)
    return X[n, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def minibatches(args, X, y, epoch, rank, world_size):
    """Yield this rank's part of each minibatch of an epoch; what fills none is left."""
    generator = torch.Generator().manual_seed(args.seed * 10**6 + epoch)
    order = torch.randperm(len(X), generator=generator)
    for rows in order[: len(X) - len(X) % args.batch_size].split(
        args.batch_size
    ):
        images = X[rows] if args.plain else crop_and_flip(X[rows], generator)
        yield images.chunk(world_size)[rank], y[rows].chunk(world_size)[rank]


# the network of He et al. 2016, section 4.2: 20 layers, 0.27 million weights


class Block(nn.Module):
    """Two convolutions, and a path around them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.stride, self.wider = (
            (1, 0) if inputs == outputs else (2, outputs - inputs)
        )
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, X):
        """Add to X what the convolutions make of it."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(X)))))
        around = F.pad(
            X[:, :, :: self.stride, :: self.stride],
            (0, 0, 0, 0, 0, self.wider),
        )
        return F.relu(y + around)


def resnet20():
    """Return the network, untrained."""
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *map(Block, widths, widths[1:]),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(
                layer.weight, mode="fan_out", nonlinearity="relu"
            )
    return net


def learning_rate(args, step, steps):
    """Return the rate of a step: a rise over the first tenth, then half a cosine."""
    rise = steps // 10
    if step < rise:
        return args.lr * (step + 1) / rise
    return (
        args.lr * (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2
    )


def sum_over_ranks(numbers, device):
    """Return the sums of a list of numbers over all ranks."""
    sums = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return sums.tolist()


@torch.no_grad()
def evaluate(net, X, y, device, bf16):
    """Return the share of rows that are right, over all ranks; each row counts once."""
    for (
        buffer
    ) in net.buffers():  # after a step each rank has running means of its own
        dist.broadcast(buffer, 0)
    net.eval()
    right = 0
    for rows in torch.arange(
        dist.get_rank(), len(X), dist.get_world_size()
    ).split(250):
        with torch.autocast(device.type, torch.bfloat16, bf16):
            y_hat = net(scale(X[rows], device))
        right += (y_hat.argmax(1).cpu() == y[rows]).sum().item()
    net.train()
    return sum_over_ranks([right], device)[0] / len(X)


def train(args):
    """Train on this rank; rank 0 prints a line for each look and keeps the files."""
    device, rank, world_size = join(), dist.get_rank(), dist.get_world_size()
    (X, y), test_set = cifar10(args.cifar10) if args.cifar10 else digits()
    X, y = X[: args.rows], y[: args.rows]
    torch.manual_seed(args.seed)
    net = resnet20().to(device)
    if args.sync_norm:  # on CPUs torch has none
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = DistributedDataParallel(net)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]  # biases, norms
    optimizer = torch.optim.SGD(
        [
            {"params": decayed, "weight_decay": args.weight_decay},
            {"params": others},
        ],
        args.lr,
        0.9,
        nesterov=True,
    )
    history, steps = [], len(X) // args.batch_size
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(
            args.checkpoint, map_location=device, weights_only=True
        )
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        history = state["history"]
    for epoch in range(len(history) // args.looks, args.epochs):
        losses, start = [], time.perf_counter()
        parts = minibatches(args, X, y, epoch, rank, world_size)
        for step, (images, classes) in enumerate(parts, 1):
            done = epoch * steps + step - 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, done, args.epochs * steps)
            with torch.autocast(device.type, torch.bfloat16, args.bf16):
                y_hat = model(scale(images, device))
                loss = F.cross_entropy(
                    y_hat, classes.to(device, non_blocking=True)
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if (
                step * args.looks // steps > (step - 1) * args.looks // steps
            ):  # look
                total = sum_over_ranks([torch.stack(losses).mean()], device)[
                    0
                ]
                seconds = time.perf_counter() - start
                history.append(
                    {
                        "images": (done + 1) * args.batch_size,
                        "loss": total / world_size,
                        "right": evaluate(net, *test_set, device, args.bf16),
                        "seconds": seconds,
                    }
                )
                losses, start = [], time.perf_counter()
                if rank == 0:
                    print(history[-1], flush=True)
        if rank == 0:
            keep(args, net, optimizer, history)


def keep(args, net, optimizer, history):
    """Write the checkpoint and the history; a file is whole or not there."""
    if args.checkpoint:
        part = args.checkpoint.with_suffix(".part")
        torch.save(
            {
                "net": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "history": history,
            },
            part,
        )
        os.replace(part, args.checkpoint)
    if args.out:
        settings = {
            name: value
            for name, value in vars(args).items()
            if not isinstance(value, Path)
        }
        args.out.write_text(
            json.dumps(
                settings
                | {"world_size": dist.get_world_size(), "history": history},
                indent=1,
            )
            + "\n"
        )


def arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser()
    for name, value, text in (
        ("epochs", 10, "passes over the data"),
        ("looks", 1, "tests in an epoch"),
        ("batch-size", 128, "rows of a minibatch, over all ranks"),
        ("lr", 0.1, "the highest rate"),
        ("weight-decay", 1e-4, "of weights"),
        ("seed", 0, "of weights, order and crops"),
    ):
        parser.add_argument(
            f"--{name}", type=type(value), default=value, help=text
        )
    parser.add_argument(
        "--cifar10", type=Path, help="the folder with its files"
    )
    parser.add_argument("--rows", type=int, help="train on the first so many")
    parser.add_argument(
        "--checkpoint", type=Path, help="a file to keep, and to go on from"
    )
    parser.add_argument(
        "--out", type=Path, help="write settings and history, as JSON"
    )
    for name, text in (
        ("bf16", "16 bits where they do no harm"),
        ("sync-norm", "batch norm over all ranks"),
        ("plain", "no crop"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    args = parser.parse_args()
    if args.batch_size % int(os.environ["WORLD_SIZE"]):
        parser.error(
            f"--batch-size {args.batch_size} is not divisible by the ranks"
        )
    return args


if __name__ == "__main__":
    train(arguments())
    dist.destroy_process_group()  # after DDP is freed, or its end may wait for ever
