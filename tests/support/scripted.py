"""Scripts to be watched: generators that yield what they made, and then train."""

import contextlib
import io

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import watch
from manual_dp.ranks import run_ranks
from tests.support.broken_training import mean_loss, net, rows, sgd

IMAGES, LABELS = (part.float() if part.is_floating_point() else part for part in rows(48)(0))


def batches(count=4, size=6):
    """Return this rank's own rows for some steps."""
    mine = torch.arange(48)[dist.get_rank()::2]
    return [(IMAGES[one], LABELS[one]) for one in mine.split(size)[:count]]


def ddp(**options):
    return sgd(DistributedDataParallel(net(), **options))


def nothing(*_):
    """Leave all as it is."""


def train(model, optimizer, given, change=nothing, before=nothing):
    """Take a step for each of the minibatches `given`; `change` comes after backward."""
    for t, (X, y) in enumerate(given):
        before(model, optimizer)
        optimizer.zero_grad()
        mean_loss(model, X, y).backward()
        change(model, t)
        optimizer.step()


def report_on(script, watched=True):
    """Return what rank 0's report says, and the weights at the end, of each rank."""
    def rank():
        torch.manual_seed(0)
        going = script()
        made = next(going)
        with contextlib.redirect_stdout(io.StringIO()):
            seen = watch(*made) if watched else None
            list(going)
            if watched:
                seen.finish()
        found = seen.report if watched and not dist.get_rank() else None
        weights = [getattr(p, "full_tensor", lambda p=p: p)().detach()
                   for p in made[0].parameters()]
        return found and [f.code for f in found.findings], found and str(found), weights
    return run_ranks(rank, 2)
