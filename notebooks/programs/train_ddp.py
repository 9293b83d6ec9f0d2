"""Train a small network on handwritten digits, with a process for each rank.

    torchrun --standalone --nproc_per_node=2 train_ddp.py
    torchrun --standalone --nproc_per_node=2 train_ddp.py --checkpoint digits.pt

Each rank takes a GPU of its own; where there are too few, all take the CPU. With
--checkpoint the program saves after every epoch. Started again with the same settings,
it goes on from there; with others, such as another --lr, it names them and ends.
The test is made in evaluation mode. In training each rank draws dropout of its own.
It needs torch and scikit-learn, and nothing of this course: copy it.

    join            meet the other ranks; return this rank's device
    digits          the data, the same on every rank
    evaluate        the accuracy over the rows of all ranks
    share_buffers   give every rank the buffers of rank 0, such as batch norm's
    settle_buckets  let DDP do before training what it does once, after a backward
    save            weights, optimizer, epoch and settings into a file; rank 0 writes
    resume          put them back, if the settings are the same
    same_settings   refuse a file of a run with other settings
    same_epoch      refuse to go on if ranks would begin with different epochs
    train           all of it
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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

    images, labels = load_digits(return_X_y=True)
    X, y = torch.tensor(images, dtype=dtype) / 16, torch.tensor(labels)
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


def share_buffers(model):
    """Give every rank the buffers of rank 0, since rank 0 writes the checkpoint.

    In training, batch norm on each rank has taken in that rank's rows alone.
    """
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def settle_buckets(model, X):
    """Let DDP do before training what it does once, after the first backward.

    It packs the gradients into new buckets then, and other buckets add up in another
    order. Without this call a run that goes on would begin with the first buckets
    once more, and end with other last digits than a run that never stopped.
    """
    model.eval()  # so that batch norm does not take in X
    model(X).sum().backward()
    model.zero_grad()
    model.train()


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
    same_settings(path, state["settings"], settings)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def same_settings(path, saved, settings):
    """Refuse a file of other settings: its learning rate would be taken."""
    for name, value in settings.items():
        if saved.get(name, value) != value:
            raise ValueError(
                f"{path} is of a run with {name} {saved[name]}, not {value}"
            )


def same_epoch(first):
    """Refuse to go on unless all ranks begin with the same epoch."""
    firsts = [None] * dist.get_world_size()
    dist.all_gather_object(firsts, first)  # all get all ranks' answers
    if any(epoch != first for epoch in firsts):
        raise ValueError(
            "ranks found files of other epochs, next are "
            f"{firsts}: let all of them read one file"
        )


def train(args):
    """Train on this rank; rank 0 prints a line for each epoch."""
    device, rank, world_size = join(), dist.get_rank(), dist.get_world_size()
    dtype = torch.float64 if args.float64 else torch.float32
    data, *test = digits(dtype)
    test = [part[rank::world_size].to(device) for part in test]
    sampler = DistributedSampler(data)  # it shuffles; so the loader must not
    loader = DataLoader(data, args.batch_size // world_size, sampler=sampler)

    torch.manual_seed(0)  # the first weights
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = DistributedDataParallel(net.to(device, dtype))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    settings = {**vars(args), **optimizer.defaults}
    del settings["epochs"], settings["checkpoint"]  # these may change

    settle_buckets(model, data.tensors[0][:1].to(device))
    first = resume(args.checkpoint, model, optimizer, settings)
    same_epoch(first)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        torch.manual_seed(1 + epoch * world_size + rank)  # dropout's masks
        total = torch.zeros((), dtype=dtype, device=device)
        for X, y in loader:
            loss = F.cross_entropy(model(X.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(y)
        dist.all_reduce(total)
        share_buffers(model)
        accuracy = evaluate(model.module, *test)
        if rank == 0:
            line = f"epoch {epoch}: loss {total / len(data):.4f}"
            print(f"{line}, accuracy {accuracy:.3f}", flush=True)
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
    dist.destroy_process_group()  # last, when train has returned and DDP is gone
