"""Train LeNet on many devices: one file to open, one command to start.

    torchrun --standalone --nproc-per-node 2 train.py --epochs 5
    torchrun --standalone --nproc-per-node 2 train.py --data fashion-mnist \
        --amp --clip 1 --accumulate 2 --checkpoint net.pt --out run.json

All numbers of ranks take the same steps: a step's rows are drawn once for all ranks,
and each rank takes its part of them. A restart goes on from --checkpoint, with any
number of ranks that divides the minibatch, if the settings are the same.

    minibatches   this rank's rows of every step of an epoch
    train_step    micro-batches, mixed precision, clipping, one update
    evaluate      what is right, over the rows of all ranks
    Keeper        the checkpoint: every so many steps; the newest one, on every rank
    train         all of it
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset, default_collate
from tqdm import tqdm

from manual_dp import init_params, load_data
from manual_dp.files.sealed import unseal
from manual_dp.models.lenet import LeNet
from manual_dp.ranks import DDP, CheckpointError, resume, save, snapshot
from manual_dp.ranks.checkpoint import MAGIC, gather_values

METHODS = {"ddp": DistributedDataParallel, "ddp-by-hand": DDP}
FREE = (
    "epochs",
    "checkpoint",
    "every",
    "out",
    "data_dir",
)  # a restart may change them


def join():
    """Meet the other ranks; return this rank's device: a GPU, or the CPU for all."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def first_on_its_host(function):
    """Return function()'s value; LOCAL_RANK 0 calls it first: it may download."""
    first = os.environ["LOCAL_RANK"] == "0"
    value = function() if first else None
    dist.barrier()
    return value if first else function()


def open_sets(args):
    """Return the images to train with, and those to test with."""
    return [
        TensorDataset(batches.X, batches.y)
        for batches in load_data(args.data, root=args.data_dir)
    ]


def take(images, rows):
    """Return the images of these numbers and their classes, as X, y."""
    return default_collate([images[int(row)] for row in rows])


def minibatches(args, images, epoch, weight, done=0):
    """Yield this rank's rows of each step: a list of micro-batches (X, y).

    The epoch's order knows nothing of ranks. What fills no minibatch at its end waits
    for another epoch. done: steps behind us. weight: has the images' device and type.
    """
    generator = torch.Generator().manual_seed(args.seed * 10**6 + epoch)
    order, size = (
        torch.randperm(len(images), generator=generator),
        args.batch_size,
    )
    for step in range(done, len(images) // size):
        rows = order[step * size : (step + 1) * size]
        X, y = take(
            images, rows.chunk(dist.get_world_size())[dist.get_rank()]
        )
        X, y = (
            X.to(weight, non_blocking=True),
            y.to(weight.device, non_blocking=True),
        )
        yield list(zip(X.chunk(args.accumulate), y.chunk(args.accumulate)))


def train_step(model, micro_batches, args, optimizer, scaler):
    """Take one step; return the sum of the losses of this rank's rows, a tensor.

    The ranks' gradients meet in the last micro-batch alone. Every row of the minibatch
    counts 1 / batch_size: the wrapper's mean divides by world_size once too often.
    """
    total, last, world_size = (
        0.0,
        len(micro_batches) - 1,
        dist.get_world_size(),
    )
    short = (
        torch.float16 if scaler.is_enabled() else torch.bfloat16
    )  # GPU, CPU
    for i, (X, y) in enumerate(micro_batches):
        with model.no_sync() if i < last else contextlib.nullcontext():
            with torch.autocast(X.device.type, short, args.amp):
                loss = F.cross_entropy(model(X), y, reduction="sum")
            scaler.scale(loss * world_size / args.batch_size).backward()
        total = total + loss.detach().double()
    scaler.unscale_(
        optimizer
    )  # the clipped length is that of the ranks' mean
    if args.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return total


@torch.no_grad()
def evaluate(net, images, batch_size):
    """Return (right, rows) over all ranks; each row counts once.

    net: not its wrapper, whose forward may wait for ranks that have other rows.
    """
    weight = next(net.parameters())
    counts = torch.zeros(2, dtype=torch.int64, device=weight.device)
    net.eval()
    mine = torch.arange(dist.get_rank(), len(images), dist.get_world_size())
    for rows in mine.split(batch_size):
        X, y = take(images, rows)
        right = (net(X.to(weight)).argmax(1) == y.to(weight.device)).sum()
        counts += torch.stack([right, torch.full_like(right, len(y))])
    net.train()
    dist.all_reduce(counts)
    return counts.tolist()


class Keeper:
    """Keep a run in the file args.checkpoint: weights, optimizer, scaler, history.

    A host may have a disk of its own: the newest file that any rank finds is for all.
    """

    def __init__(self, args, model, optimizer, scaler):
        self.args, self.path = args, args.checkpoint
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self.settings = {
            name: str(value)
            for name, value in vars(args).items()
            if name not in FREE
        }

    def save(self, epoch, step, total, history):
        """Let rank 0 write what comes next, `step` of `epoch`, and all until then."""
        save(
            self.path,
            snapshot(self.model, self.optimizer, epoch, step)
            | {
                "scaler": self.scaler.state_dict(),
                "history": history,
                "totals": gather_values(total),
                "settings": self.settings,
            },
        )

    def go_on(self):
        """Put the newest file back; return (epoch, step, total, history), or None."""
        data = unseal(self.path, MAGIC)[0] if self.path.exists() else None
        places = gather_values(
            data and [_unpacked(data)[name] for name in ("epoch", "step")]
        )
        if not any(places):
            return None
        box, ranks = [data], dist.get_world_size()
        dist.broadcast_object_list(
            box, places.index(max(filter(None, places)))
        )
        state = _unpacked(box[0])
        for name, value in self.settings.items():
            if state["settings"].get(name) != value:
                raise CheckpointError(
                    f"{self.path} is of a run with {name} "
                    f"{state['settings'].get(name)}, not {value}"
                )
        # another number of ranks: each takes over the random state of an old one
        old = state["random"]
        state["random"] = [old[rank % len(old)] for rank in range(ranks)]
        epoch, step = resume(state, self.model, self.optimizer)
        self.scaler.load_state_dict(state["scaler"])
        total = sum(state["totals"][dist.get_rank() :: ranks])
        return epoch, step, total, state["history"]


def _unpacked(data):
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def settle(model, X):
    """Let torch's DDP pack its buckets for good, which it does after a first backward.

    Another packing adds in another order: the last bits after a stop would be others.
    """
    before = {
        name: value.clone() for name, value in model.state_dict().items()
    }
    for _ in range(2):
        model(X).sum().backward()
    model.load_state_dict(before)
    model.zero_grad()


def train(args):
    """Train on this rank; rank 0 prints a line for each epoch, and writes --out."""
    device = join()
    first = dist.get_rank() == 0
    train_set, test_set = first_on_its_host(lambda: open_sets(args))
    steps = len(train_set) // args.batch_size
    net = LeNet(init_params("he", torch.Generator().manual_seed(args.seed)))
    net = net.to(device, torch.float64 if args.float64 else torch.float32)
    model, weight = METHODS[args.method](net), next(net.parameters())
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)
    scaler = torch.amp.GradScaler(
        device.type, enabled=args.amp and device.type == "cuda"
    )
    keeper = args.checkpoint and Keeper(args, model, optimizer, scaler)
    if keeper and args.method == "ddp":
        settle(model, next(minibatches(args, train_set, 0, weight))[0][0])
    begin, done, before = 0, 0, 0.0
    history = {
        "loss": [],
        "right": [],
        "of": len(test_set),
        "seconds_a_step": [],
    }
    if keeper and (found := keeper.go_on()):
        begin, done, before, history = found
    for epoch in range(begin, args.epochs):
        total = torch.full((), before, dtype=torch.float64, device=device)
        clock, laps = time.perf_counter(), []
        for parts in tqdm(
            minibatches(args, train_set, epoch, weight, done),
            f"epoch {epoch}",
            steps,
            False,
            initial=done,
            disable=None if first else True,
        ):  # none in a file
            total += train_step(model, parts, args, optimizer, scaler)
            if device.type == "cuda":
                torch.cuda.synchronize()  # its kernels run on while Python goes on
            done, now = done + 1, time.perf_counter()
            laps.append(now - clock)
            clock = now
            if (
                keeper
                and args.every
                and done % args.every == 0
                and done < steps
            ):
                keeper.save(epoch, done, total.item(), history)
                clock = time.perf_counter()
        dist.all_reduce(total)
        right, of = evaluate(net, test_set, args.batch_size)
        loss = total.item() / (steps * args.batch_size)
        history["loss"].append(loss)
        history["right"].append(right)
        history["seconds_a_step"].append(statistics.median(laps or [0]))
        done, before = 0, 0.0
        if keeper:
            keeper.save(epoch + 1, 0, 0.0, history)
        if first:
            print(
                f"epoch {epoch}: loss {loss:.4f}, right {right} of {of}",
                flush=True,
            )
    if first and args.out:
        run = {
            name: x
            for name, x in vars(args).items()
            if not isinstance(x, Path)
        }
        run |= {"world_size": dist.get_world_size(), **history}
        args.out.write_text(json.dumps(run, indent=1) + "\n")


def arguments():
    """Read the command line; say what does not go together."""
    parser = argparse.ArgumentParser()
    for name, kind, default, text in [
        ("epochs", int, 5, "passes over the data"),
        ("batch-size", int, 96, "rows of a minibatch, over all ranks"),
        (
            "accumulate",
            int,
            1,
            "micro-batches in a step, one all-reduce for all",
        ),
        ("lr", float, 0.1, "learning rate"),
        ("momentum", float, 0.9, "of SGD"),
        ("clip", float, None, "the gradient's largest length in a step"),
        ("seed", int, 0, "of the weights and of the order of rows"),
        ("data-dir", Path, None, "folder of the data's files"),
        ("checkpoint", Path, None, "a file to save to, and to go on from"),
        (
            "every",
            int,
            None,
            "steps between two checkpoints, beside each epoch's",
        ),
        ("out", Path, None, "write settings and history here, as JSON"),
    ]:
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=default,
            help=f"{text} ({default})",
        )
    parser.add_argument(
        "--data", choices=("digits", "fashion-mnist"), default="digits"
    )
    parser.add_argument("--method", choices=METHODS, default="ddp")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--float64", action="store_true", help="all digits")
    args = parser.parse_args()
    parts = int(os.environ["WORLD_SIZE"]) * args.accumulate
    if args.batch_size % parts:
        parser.error(
            f"--batch-size {args.batch_size} is not divisible by ranks times "
            f"--accumulate, {parts}"
        )
    return args


if __name__ == "__main__":
    train(arguments())
    dist.destroy_process_group()  # after DDP: the last to hold the group waits for it
