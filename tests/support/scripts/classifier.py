"""Train a classifier with dropout, batch norm and a moving average of its weights."""

import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import watch


def ddp_setup():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def spirals(rows, seed):
    """Draw points of two spirals in the plane, and which spiral each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows,), generator=generator)
    angle = 6 * torch.rand(rows, generator=generator)
    turned = angle + torch.pi * labels
    points = angle.unsqueeze(1) * torch.stack([turned.cos(), turned.sin()], dim=1) / 6
    noise = 0.05 * torch.randn(rows, 2, generator=generator)
    return TensorDataset(points + noise, labels)


def build_model(width, dropout):
    return nn.Sequential(
        nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, 2))


class Trainer:
    def __init__(self, model, train_data, test_data, optimizer, rank, args):
        self.rank = rank
        self.args = args
        self.model = DistributedDataParallel(model)
        self.train_data = train_data
        self.test_data = test_data
        self.optimizer = optimizer
        self.criterion = nn.CrossEntropyLoss()
        self.ema = AveragedModel(self.model.module,
                                 multi_avg_fn=get_ema_multi_avg_fn(args.decay))
        self.steps = 0

    def _run_batch(self, points, labels):
        self.optimizer.zero_grad()
        output = self.model(points)
        loss = self.criterion(output, labels)
        loss.backward()
        self.optimizer.step()
        self.ema.update_parameters(self.model.module)
        self.steps += 1
        return loss.item()

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        self.model.train()
        losses = [self._run_batch(points, labels) for points, labels in self.train_data]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def evaluate(self):
        network = self.ema.module
        network.eval()
        right = sum((network(points).argmax(1) == labels).sum()
                    for points, labels in self.test_data)
        return right.item() / len(self.test_data.dataset)

    def train(self):
        for epoch in range(self.args.epochs):
            loss = self._run_epoch(epoch)
            if self.rank == 0:
                accuracy = self.evaluate()
                print(f"epoch {epoch} | loss {loss:.3f} | accuracy {accuracy:.3f}")
            dist.barrier()


def main(args):
    rank, world_size = ddp_setup()
    set_seed(args.seed)
    model = build_model(args.width, args.dropout)
    set_seed(args.seed + 1 + rank)  # the ranks' dropout masks are to differ

    train_set, test_set = spirals(192, seed=0), spirals(100, seed=1)
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank)
    train_data = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_data = DataLoader(test_set, batch_size=50)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr,
                                  weight_decay=args.weight_decay)
    trainer = Trainer(model, train_data, test_data, optimizer, rank, args)
    watch(trainer.model, optimizer, trainer.ema)
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="two spirals")
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--batch_size", default=24, type=int)
    parser.add_argument("--width", default=32, type=int)
    parser.add_argument("--dropout", default=0.2, type=float)
    parser.add_argument("--lr", default=0.02, type=float)
    parser.add_argument("--weight_decay", default=0.01, type=float)
    parser.add_argument("--decay", default=0.9, type=float)
    parser.add_argument("--seed", default=42, type=int)
    main(parser.parse_args())
