"""Train a small ResNet: momentum, cosine schedule with warm-up, checkpoints."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from manual_dp.audit import watch
from manual_dp.models.resnet import Block

parser = argparse.ArgumentParser(description="ResNet on coloured stripes")
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-3, type=float)
parser.add_argument("--warmup", default=2, type=int, help="steps")
parser.add_argument("--seed", default=1, type=int)
parser.add_argument("--folder", default=None, help="of the checkpoints")


class Stripes(Dataset):
    """Offer noisy images whose class is the colour and direction of their stripes."""

    def __init__(self, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(6, (rows,), generator=generator)
        self.images = 0.5 * torch.randn(rows, 3, 8, 8, generator=generator)
        for image, target in zip(self.images, self.targets.tolist()):
            stripes = image[target % 3]
            (stripes if target < 3 else stripes.T)[::2] += 1

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return self.images[i], self.targets[i]


class ResNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(8), nn.ReLU())
        self.stages = nn.Sequential(Block(8, 8), Block(8, 16, stride=2))
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


def make_optimizer(model, args):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": args.wd},
              {"params": plain, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=args.lr, momentum=args.momentum)


def make_scheduler(optimizer, steps, args):
    warmup = LinearLR(optimizer, start_factor=0.25, total_iters=args.warmup)
    cosine = CosineAnnealingLR(optimizer, T_max=max(1, steps - args.warmup))
    return SequentialLR(optimizer, [warmup, cosine], milestones=[args.warmup])


def train(loader, model, optimizer, scheduler):
    model.train()
    for images, targets in loader:
        output = model(images)
        loss = F.cross_entropy(output, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()


def validate(loader, model):
    model.eval()
    counts = torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        for images, targets in loader:
            right = model(images).argmax(1) == targets
            counts += torch.tensor([right.sum().item(), len(targets)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "epoch": epoch,
                 "optimizer": optimizer.state_dict()}
        torch.save(state, path)
    dist.barrier()


def main():
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    model = DDP(ResNet())
    optimizer = make_optimizer(model, args)

    train_set, test_set = Stripes(64, seed=0), Stripes(32, seed=1)
    train_sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size,
                              sampler=train_sampler)
    test_loader = DataLoader(test_set, batch_size=args.batch_size,
                             sampler=DistributedSampler(test_set, shuffle=False))
    scheduler = make_scheduler(optimizer, args.epochs * len(train_loader), args)
    watch(model, optimizer, scheduler)

    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(args.folder or temporary, "checkpoint.pt")
        for epoch in range(args.epochs):
            train_sampler.set_epoch(epoch)
            train(train_loader, model, optimizer, scheduler)
            accuracy = validate(test_loader, model)
            save(path, model, optimizer, epoch)
            if rank == 0:
                lr = scheduler.get_last_lr()[0]
                print(f"epoch {epoch}: accuracy {accuracy:.3f}, next lr {lr:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
