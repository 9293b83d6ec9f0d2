"""Train a small network on handwritten digits, with a process for each rank.

    torchrun --standalone --nproc_per_node=2 train_ddp.py
    torchrun --standalone --nproc_per_node=2 train_ddp.py --checkpoint digits.pt

Each rank takes a GPU of its own; where there are too few, all take the CPU. With
--checkpoint the program saves after every epoch. Started again with the same settings,
it goes on from there; with others, such as another --lr, it names them and ends.
The test is made in evaluation mode. In training each rank draws dropout of its own.
It needs torch, scikit-learn and tqdm, and nothing of this course: copy it.

    join      meet the other ranks; return this rank's device
    digits    the data, the same on every rank
    evaluate  the accuracy over the rows of all ranks
    save      weights, optimizer, epoch and settings into a file; only rank 0 writes
    resume    put them back, if the settings are the same
    train     all of it
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm


def join():
    """Meet the other ranks; return this rank's device."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def digits(dtype):
    """Return 1,440 images and labels to train with, and 357 to test with."""
    from sklearn.datasets import load_digits

    data = load_digits()
    X = torch.from_numpy(data.images).to(dtype) / 16
    y = torch.from_numpy(data.target).long()
    return TensorDataset(X[:1440], y[:1440]), X[1440:], y[1440:]


@torch.no_grad()
def evaluate(model, X, y):
    """Return the accuracy over all ranks' rows. X, y: this rank's rows."""
    training = model.training
    model.eval()  # no dropout, and batch norm learns nothing from the test
    right = (model(X).argmax(1) == y).sum()
    model.train(training)
    counts = torch.stack([right, torch.tensor(len(y), device=right.device)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def save(path, model, optimizer, epoch, settings):
    """Let rank 0 write the file, first under another name: never half."""
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),
            "epoch": epoch,
            "optimizer": optimizer.state_dict(),
            "settings": settings,
        }
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)


def resume(path, model, optimizer, settings):
    """Put back what `save` wrote; return the next epoch, 0 without a file."""
    if not path or not os.path.exists(path):
        return 0
    device = next(model.parameters()).device
    state = torch.load(path, map_location=device, weights_only=True)
    # load_state_dict would take the file's settings, silently
    for name, value in settings.items():
        saved = state["settings"].get(name, value)
        if saved != value:
            raise ValueError(
                f"{path} is of a run with {name} {saved}, not {value}"
            )
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def train(args):
    """Train on this rank; rank 0 prints a line for each epoch."""
    device, rank, world_size = join(), dist.get_rank(), dist.get_world_size()
    dtype = torch.float64 if args.float64 else torch.float32
    data, *test = digits(dtype)
    test = [part[rank::world_size].to(device) for part in test]

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    ).to(device, dtype)
    model = DistributedDataParallel(
        net, device_ids=[device] if device.type == "cuda" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    settings = {
        name: str(value)
        for name, value in {**vars(args), **optimizer.defaults}.items()
        if name not in ("epochs", "checkpoint")
    }
    sampler = DistributedSampler(data)  # it shuffles; so the loader must not
    loader = DataLoader(data, args.batch_size // world_size, sampler=sampler)

    # DDP sorts its buckets anew after the first backward, and other buckets sum in
    # another order: a run that goes on would differ in the last digit
    model.eval()
    model(data[0][0][None].to(device)).sum().backward()
    model.zero_grad()
    model.train()
    first = resume(args.checkpoint, model, optimizer, settings)
    firsts = [None] * world_size
    dist.all_gather_object(firsts, first)
    if any(epoch != first for epoch in firsts):
        raise ValueError(
            "ranks found files of other epochs, next are "
            f"{firsts}: let all of them read one file"
        )
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        torch.manual_seed(1 + epoch * world_size + rank)  # for dropout
        total = torch.zeros((), dtype=dtype, device=device)
        # a bar on rank 0's terminal; none where the output goes into a file
        for X, y in tqdm(
            loader,
            f"epoch {epoch}",
            leave=False,
            disable=None if rank == 0 else True,
        ):
            loss = F.cross_entropy(model(X.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(y)
        dist.all_reduce(total)  # for the line below alone
        for buffer in model.buffers():  # batch norm's: rank 0's, as saved
            dist.broadcast(buffer, 0)
        # not `model`: its forward may wait for one on every other rank
        accuracy = evaluate(model.module, *test)
        if rank == 0:
            print(
                f"epoch {epoch}: loss {total.item() / len(data):.4f}, "
                f"accuracy {accuracy:.3f}",
                flush=True,
            )
        if args.checkpoint:
            save(args.checkpoint, model, optimizer, epoch, settings)


def arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--batch-size",
        type=int,
        default=96,
        help="rows of a minibatch, over all ranks",
    )
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--checkpoint", help="a file to save to, and to go on from"
    )
    parser.add_argument(
        "--float64", action="store_true", help="to compare runs"
    )
    args = parser.parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    if args.batch_size % world_size:
        parser.error(
            f"--batch-size {args.batch_size} is not divisible by {world_size}"
        )
    return args


if __name__ == "__main__":
    train(arguments())
    dist.destroy_process_group()  # after DDP is freed, or its end may wait for ever
