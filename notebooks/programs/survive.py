"""Train on digits, and survive: ranks that die, hosts that come and go, the job's end.

    torchrun --nnodes 1:2 --nproc-per-node 2 ... survive.py --checkpoint digits.pt

It saves after every `--every` steps, and when SIGTERM comes. Started again it goes on
from there, in the middle of an epoch, with any number of ranks that divides 96.
The other arguments of torchrun: lesson 20. It needs torch and scikit-learn.

    network      the first weights and the optimizer, the same on every rank
    digits       1,440 images and their labels
    order_of     in which order an epoch reads them
    save         rank 0 writes the file
    resume       every rank reads it
    announce     who a rank is, for night.py
    train        on this rank
    alone        the same training in one process, which nobody disturbs
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS, BATCH = 1440, 96  # of an epoch; of a step, over all ranks


def network():
    """Return the network, in float64, and its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    net = net.double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def digits():
    """Return the images and labels to train with."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return torch.tensor(X[:ROWS]) / 16, torch.tensor(y[:ROWS])


def order_of(epoch):
    """Return the order of the rows. It depends on the epoch, not on the ranks."""
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(ROWS, generator=generator).tolist()


def rows_to_go(order, seen, rank, world_size):
    """Return what this rank reads of an epoch, after all ranks have read `seen` rows."""
    return order[seen:][rank::world_size]


def save(path, net, optimizer, place):
    """Let rank 0 write the file, first under another name: never half."""
    if dist.get_rank() == 0:
        state = {"net": net.state_dict(), "sgd": optimizer.state_dict()}
        by = {"ranks": dist.get_world_size(), "pid": os.getpid()}
        torch.save(state | place | by, f"{path}.new")
        os.replace(f"{path}.new", path)


def resume(path, net, optimizer):
    """Put back what `save` wrote; return epoch, rows seen in it, and their loss."""
    if not os.path.exists(path):
        return 0, 0, 0.0
    state = torch.load(path)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["sgd"])
    return state["epoch"], state["seen"], state["total"]


def announce(epoch, seen):
    """Print who this rank is, and where it begins, in one piece."""
    host, local = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
    who = host, local, dist.get_rank(), dist.get_world_size()
    line = " ".join(map(str, (*who, epoch, seen, os.getpid())))
    print(line + "\n", end="", flush=True)


def train(path, epochs, every, pause=0.0):
    """Train, from the file on if there is one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    told = []  # SIGTERM is noted here, and the step goes on
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))

    net, optimizer = network()
    epoch, seen, total = resume(path, net, optimizer)
    model, (X, y) = DDP(net), digits()
    announce(epoch, seen)
    while epoch < epochs:
        rows = rows_to_go(order_of(epoch), seen, rank, world_size)
        for i in range(0, len(rows), BATCH // world_size):
            mine = rows[i : i + BATCH // world_size]
            loss = F.cross_entropy(model(X[mine]), y[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            news = loss.new_tensor([loss.item() * len(mine), len(told)])
            dist.all_reduce(news)  # all ranks decide by the same numbers
            total, seen = total + news[0].item(), seen + BATCH
            if news[1] or seen % (every * BATCH) == 0:
                place = {"epoch": epoch, "seen": seen, "total": total}
                save(path, net, optimizer, place)
            if news[1]:
                sys.exit(143)  # what a shell says of SIGTERM: not finished
        if rank == 0:
            print(f"epoch {epoch}: loss {total / ROWS:.4f}", flush=True)
        epoch, seen, total = epoch + 1, 0, 0.0


def alone(epochs):
    """Return the weights of one process that trains in the same way, undisturbed."""
    (net, optimizer), (X, y) = network(), digits()
    for epoch in range(epochs):
        for rows in torch.tensor(order_of(epoch)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
    return net.state_dict()


@record  # what this rank dies of goes into the file of TORCHELASTIC_ERROR_FILE
def main():
    """Read the command line and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--every", type=int, default=5, help="steps")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds a step, to watch it"
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.checkpoint, args.epochs, args.every, args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
