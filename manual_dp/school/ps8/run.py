"""How the answers of problem set 8 are run.

    train_step_amp, epoch_loss, local_sgd, once    on ranks, one launch for each case
    replay, loader_for                             in this process
    lit_lenet, schedule_steps                      see trainer.py
"""

import math
import os
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from manual_dp.lenet import lenet
from manual_dp.ranks import RankError, run_ranks
from manual_dp.school.ps5.roll import Roll
from manual_dp.school.ps6.run import ddp_steps
from manual_dp.school.ps8.trainer import (  # noqa: F401  (two of the exercises)
    L,
    lit_lenet,
    load,
    schedule_steps,
)
from manual_dp.school.tools.alarm import alarm
from manual_dp.school.tools.plain import batches, numbers, plainly, tensor
from manual_dp.school.tools.ranks import attempt, watched

# what torch imports when it is first used, and Lightning: seconds in every job
IMPORTS = ["torch._dynamo", load]
# what the notebook's first cell defines
START = dict(math=math, os=os, time=time, torch=torch, dist=dist, nn=nn, F=F,
             DataLoader=DataLoader, DistributedSampler=DistributedSampler,
             nullcontext=nullcontext, lenet=lenet, L=L,
             run_ranks=run_ranks, RankError=RankError)
# and what else it imports, for trying things out
TRIED = ("check", "largest_difference")

SECONDS = 40    # that all ranks have
WAITING = 10    # seconds, after which a rank is said to wait for ever
DOWNLOAD = 0.2  # seconds that a download takes
SLOW = 1.5      # and one before there is a group: longer than a guessed wait
LATE = 0.5      # seconds after which a rank comes that was busy elsewhere
TEXT = "first half, second half"
ERROR = "no space left on the disk"
ERRORS = {"OSError": (OSError, ERROR), "RuntimeError": (RuntimeError, ERROR),
          "ValueError": (ValueError, ERROR),
          "TimeoutError without words": (TimeoutError, "")}
FOREVER = "waits for ever"


def train_step_amp(case, train_step_amp):
    """Take steps on ranks with torch's DDP and a scaler; note the scale after each."""
    def work():
        scaler = torch.amp.GradScaler("cpu", init_scale=case["scale"],
                                      growth_interval=2)
        found = []

        def step(model, own, rows, number, optimizer):
            returned = train_step_amp(model, F.cross_entropy, own, rows, optimizer,
                                      scaler, case["max_norms"][number])
            found.append({"scale": scaler.get_scale(),
                          "returned": "nothing" if returned is None else
                          f"a {type(returned).__name__}"})
        return [{**result, **more} for result, more in
                zip(ddp_steps(case, step, Halves), found)]
    return attempt(work, len(case["steps"][0]), SECONDS)


class Halves(nn.Module):
    """A linear layer in two parameters: the gradient's norm is that of both."""

    def __init__(self, case):
        super().__init__()
        self.halves = nn.ParameterList(tensor(case["weight"]).chunk(2))
        for half, old in zip(self.halves, tensor(case["stale"]).chunk(2)):
            half.grad = old.clone()

    @property
    def weight(self):
        """Return both halves as one tensor."""
        return torch.cat(list(self.halves))

    def forward(self, X):
        """Return the scores of all rows."""
        return F.linear(X, self.weight)


def epoch_loss(case, epoch_loss, prints):
    """Ask each rank for the mean loss; then ask which steps it prints."""
    def work():
        own = case["ranks"][dist.get_rank()]
        sums, counts = tensor(own["sums"]), tensor(own["counts"], torch.int64)
        with Roll() as roll:
            mean = roll.call(epoch_loss, sums, counts)
            waited = bool(roll.absent)
        return {"waited": waited, "mean": plainly(mean), "sums": sums,
                "counts": counts}
    found = attempt(work, len(case["ranks"]), SECONDS)
    return {**found, "printed": [
        [[step for step in range(steps) if prints(rank, step, steps, lines)]
         for rank in range(len(case["ranks"]))] for steps, lines in case["epochs"]]}


def local_sgd(case, local_sgd):
    """Train on ranks; note how many messages there were before each forward."""
    def work():
        rank = dist.get_rank()
        model, before = network(case["starts"][rank]), []
        with watched() as calls:
            model.register_forward_pre_hook(lambda *_: before.append(len(calls)))
            local_sgd(model, batches(case["batches"][rank]), case["lr"], case["every"])
        return {"before": before, **numbers(dict(model.state_dict()))}
    return attempt(work, len(case["batches"]), SECONDS)


def network(state):
    """Return a network with batch normalisation; its numbers are those of `state`."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4),
                          nn.Linear(4, 4)).double()
    model.load_state_dict({name: tensor(values) for name, values in state.items()},
                          strict=False)
    return model


def replay(case, replay):
    """Replay events of ranks whose gradients pull at weights, each in its own way."""
    w0, asked = tensor(case["w0"]), []

    def gradient(rank, w):
        asked.append(rank)
        return pull(case, rank, w)
    w, staleness = replay([tuple(event) for event in case["events"]], gradient, w0,
                          case["lr"])
    return {"w": w, "staleness": staleness, "w0": w0, "asked": asked}


def pull(case, rank, w):
    """Return a rank's gradient at the weights w."""
    return tensor(case["strengths"][rank]) * (w - tensor(case["goals"][rank]))


class Augmented(Dataset):
    """Rows whose augmentation draws from torch's global generator, as transforms do."""

    def __init__(self, rows):
        self.rows, self.process = rows, os.getpid()

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        """Return the row's number and what its augmentation has drawn."""
        if not 0 <= row < self.rows:
            raise IndexError(f"rows are 0 to {self.rows - 1}, got {row}")
        if os.getpid() != self.process:
            raise RuntimeError("rows are read in this process alone: num_workers=0")
        return int(row), torch.rand((), dtype=torch.float64).item()


def loader_for(case, loader_for):
    """Look at the loaders of some ranks, seeds and epochs; and what else they touch."""
    dataset, found = Augmented(case["rows"]), {}
    for seed, epoch, rank in case["asked"]:
        def make(seed=seed, epoch=epoch, rank=rank):
            return loader_for(dataset, rank, case["world_size"], seed, epoch)
        found[f"{seed} {epoch} {rank}"] = [_look(make, state)
                                           for state in range(case["looks"])]
    return found


def _look(make, state):
    """Return what a loader yields, and what the training's own draws are meanwhile."""
    torch.manual_seed(state)
    rows, draws = [], [torch.rand(()).item()]
    for row, noise in make():
        rows.append([int(row), float(noise)])
        draws.append(torch.rand(()).item())
    draws.append(torch.rand(()).item())
    torch.manual_seed(state)
    return {"rows": rows, "same": draws == [torch.rand(()).item() for _ in draws]}


def once(case, once):
    """Download alone and on ranks: with a group, then without; count who downloads."""
    with tempfile.TemporaryDirectory() as folder:
        def work():
            me = dist.get_rank(), dist.get_world_size()
            with Roll() as roll:
                found = []
                for number, (name, group, fails, late) in enumerate(case["situations"]):
                    with _without_names() if group else nullcontext():
                        found.append(_download(
                            once, Path(folder, name), f"{number}", fails,
                            roll.call if group else _without_group, me, late,
                            DOWNLOAD if group or fails else SLOW))
                return found
        with _without_names():
            alone = _download(once, Path(folder, "alone"), "alone", None,
                              _without_group)
        return {"alone": alone, **attempt(work, case["world_size"], SECONDS)}


@contextmanager
def _without_names():
    """Keep from a block what says in the environment who this process is."""
    with patch.dict(os.environ):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)
        yield


def _without_group(function):
    """Call it where there is no process group, or no longer one."""
    if dist.is_initialized():
        dist.destroy_process_group()
    function()
    return True


def _download(once, path, meeting, fails, call, me=(0, 1), late=False,
              seconds=DOWNLOAD):
    """Call `once` in one situation, by `call`; return what this process has seen.

    fails: None, or which of ERRORS ends the download. me: rank and world size. late:
    whether all ranks but 0 come when rank 0 has long begun. seconds: it takes.
    """
    folder, calls = path.parent, []

    def download(place):
        calls.append(str(place))
        _write(place, fails, seconds)

    def ask():
        with alarm(TimeoutError(FOREVER), WAITING):
            once(download, str(path))
        return True
    _meet(folder, f"{meeting}-begins", *me)
    time.sleep(LATE if late and me[0] else 0)
    try:  # a rank that is left waiting for others says None
        said = "" if call(ask) else FOREVER
    except NotImplementedError:
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    seen = path.read_text() if path.is_file() else ""
    _meet(folder, f"{meeting}-ends", *me)
    return {"calls": len(calls), "said": said, "waits": FOREVER in said, "file": seen}


def _write(place, fails, seconds):
    """Write a file slowly; or half of it, until something fails."""
    with open(place, "w") as file:
        file.write(TEXT[:10])
        file.flush()
        time.sleep(seconds)
        if fails:
            kind, words = ERRORS[fails]
            raise kind(words)
        file.write(TEXT[10:])


def _meet(folder, name, rank, world_size):
    """Wait until all ranks are here; by files, since there may be no group."""
    (folder / f"{name}-{rank}").touch()
    while not all((folder / f"{name}-{r}").exists() for r in range(world_size)):
        time.sleep(0.002)
