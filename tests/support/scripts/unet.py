"""Train a U-Net to find blobs in images, on the ranks that torchrun starts."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import watch
from manual_dp.models.blobs import blobs
from manual_dp.models.segment import iou, overlap
from manual_dp.models.unet import UNet


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4, help="images of a rank")
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(rows, seed):
    images, masks = blobs(rows, seed=seed, size=16)
    images = 4 * (images.unsqueeze(1).float() - 0.4)
    return TensorDataset(images, masks)


def make_loader(dataset, args):
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    return loader, sampler


def make_model(args):
    generator = torch.Generator().manual_seed(args.seed)
    net = UNet(width=4, depth=1, generator=generator)
    model = DDP(net)
    return model


def make_optimizer(model, args):
    return torch.optim.Adam(model.parameters(), lr=args.lr)


def train_epoch(model, loader, optimizer, criterion):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(2)
    for images, masks in loader:
        optimizer.zero_grad()
        scores = model(images)
        loss = criterion(scores, masks)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(images), len(images)])
    dist.all_reduce(total)
    mean = (total[0] / total[1]).item()
    if rank == 0:
        print(f"{world_size} ranks, training loss {mean:.4f}")


@torch.no_grad()
def evaluate(model, dataset):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, masks = dataset.tensors
    model.eval()
    table = overlap(model(images[rank::world_size]), masks[rank::world_size])
    model.train()
    dist.all_reduce(table)
    return iou(table)[1].item()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    train_set, test_set = load(64, seed=0), load(32, seed=1)
    loader, sampler = make_loader(train_set, args)
    model = make_model(args)
    optimizer = make_optimizer(model, args)
    watch(model, optimizer)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, criterion)
        score = evaluate(model, test_set)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: IoU of the blobs {score:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
