"""Train a ResNet on CIFAR-10, with a process for each rank.

    torchrun --standalone --nproc_per_node=2 resnet_ddp.py [--cifar10 data --model resnet50]

Without options it trains a small network on scikit-learn's digits, in seconds on CPUs. Copy it.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def join():
    """Meet the other ranks; return this rank's device."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def digits():
    """Return 1,437 rows to train with and 360 to test with, X: (n, 3, 32, 32)."""
    from sklearn.datasets import load_digits
    X, y = map(torch.from_numpy, load_digits(return_X_y=True))
    X = nn.functional.interpolate(X.float().view(-1, 1, 8, 8) / 8 - 1, size=32).repeat(1, 3, 1, 1)
    test = torch.arange(len(X)) % 5 == 0
    return TensorDataset(X[~test], y[~test]), TensorDataset(X[test], y[test])


def cifar10(root):
    """Return CIFAR-10's two sets; one rank of each machine fetches, the others wait."""
    from torchvision import datasets, transforms
    if int(os.environ["LOCAL_RANK"]) == 0:
        datasets.CIFAR10(root, download=True)
    dist.barrier()
    steps = [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
    return [datasets.CIFAR10(root, train, transforms.Compose(steps)) for train in (True, False)]


def build(name):
    """Return "small" or a ResNet of torchvision, untrained, for ten classes."""
    if name == "small":
        layers = [layer for inputs, outputs in ((3, 16), (16, 32), (32, 64)) for layer in
                  (nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                   nn.BatchNorm2d(outputs), nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    from torchvision import models
    net = getattr(models, name)(weights=None, num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)  # it was 7x7, stride 2
    net.maxpool = nn.Identity()
    return net


def ratio(above, below, device):
    """Divide the sum over the ranks of one number by that of another."""
    sums = torch.tensor([above, below], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def learn(model, loader, optimizer, device):
    """Train for an epoch on this rank's rows; return the mean loss of all rows."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    for X, y in loader:
        loss = nn.functional.cross_entropy(model(X.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(y)
    return ratio(loss_sum.item(), len(loader.sampler), device)


@torch.no_grad()
def evaluate(net, loader, device):
    """Return the accuracy over the rows of all ranks."""
    training = net.training
    net.eval()
    right = sum((net(X.to(device)).argmax(1).cpu() == y).sum().item() for X, y in loader)
    net.train(training)
    return ratio(right, len(loader.dataset), device)


def train(args):
    """Train on this rank; rank 0 prints a line for each epoch."""
    device, rank, world_size = join(), dist.get_rank(), dist.get_world_size()
    train_set, test_set = cifar10(args.cifar10) if args.cifar10 else digits()
    torch.manual_seed(0)
    model = DistributedDataParallel(build(args.model).to(device))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size // world_size, sampler=sampler,
                        num_workers=args.workers, pin_memory=device.type == "cuda")
    mine = DataLoader(Subset(test_set, range(rank, len(test_set), world_size)), 256)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        torch.manual_seed(1 + epoch * world_size + rank)  # each rank draws its own
        optimizer.param_groups[0]["lr"] = args.lr * (1 - epoch / args.epochs)
        loss = learn(model, loader, optimizer, device)
        for buffer in model.buffers():  # batch norm's running means: rank 0's, for all
            dist.broadcast(buffer, 0)
        accuracy = evaluate(model.module, mine, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {accuracy:.3f}")


def arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar10", metavar="FOLDER", help="where its files are, or go")
    for name, value in (("model", "small"), ("epochs", 10), ("batch-size", 96),
                        ("lr", 0.2), ("workers", 0)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    args = parser.parse_args()
    if args.batch_size % int(os.environ["WORLD_SIZE"]):
        parser.error(f"--batch-size {args.batch_size} is not divisible by the ranks")
    return args


if __name__ == "__main__":
    train(arguments())
    dist.destroy_process_group()  # after DDP is freed, or its end may wait for ever
