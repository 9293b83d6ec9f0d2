"""Eight mistakes in one small training, and what two audits say of each.

    make_model, make_batch, step    the training, in the three functions of `audit_step`
    reports                         what `watch` and `audit_step` report of a mistake
    table                           print it, a line for each mistake

In notebooks/, in three minutes on two cores:

    python -m programs.eight_mistakes --seeds 10
"""

import argparse
import textwrap
from contextlib import redirect_stdout
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from manual_dp.audit import audit_step, watch
from manual_dp.ranks import run_ranks

INDENT = {"initial_indent": " " * 12, "subsequent_indent": " " * 16}
MISTAKES = (
    "module",
    "weights",
    "own loss",
    "penalty",
    "scaled",
    "batch norm",
    "labels",
    "rate",
)


def make_model(mistake, seed=0):
    """Return a model and its optimizer, on a rank."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(9) if mistake == "batch norm" else nn.Identity()
    net = nn.Sequential(nn.Linear(6, 9), norm, nn.Tanh(), nn.Linear(9, 3))
    rate = 10 if mistake == "rate" else 0.1
    return DDP(net), torch.optim.SGD(net.parameters(), rate)


def make_batch(t, seed=0):
    """Return the whole minibatch of step t."""
    draw = torch.Generator().manual_seed(100 * seed + t)
    X = torch.rand(16, 6, generator=draw)
    return X, (3 * X[:, 0]).long()


def step(mistake, model, optimizer, X, y):
    """Take a step with this rank's rows of X and y; mistake: in MISTAKES, or ""."""
    rank, n = dist.get_rank(), dist.get_world_size()
    if mistake == "labels":
        y = y.roll(1)
    X, y = X[rank::n], y[rank::n]
    if mistake == "scaled":
        X = (X - X.mean(0)) / X.std(0)
    y_hat = model.module(X) if mistake == "module" else model(X)
    weight = X.new_tensor([1, 2, 3]) if mistake == "weights" else None
    if mistake == "own loss":
        loss = -y_hat.log_softmax(1)[range(len(y)), y].sum()
    else:
        loss = F.cross_entropy(y_hat, y, weight)
    if mistake == "penalty" and rank == 0:
        loss = loss + 0.01 * model.module[0].weight.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def watched(mistake, seed):
    """Take three steps on a rank; return what `watch` reports on rank 0."""
    model, optimizer = make_model(mistake, seed)
    with redirect_stdout(None), watch(model, optimizer) as heard:
        for t in range(3):
            step(mistake, model, optimizer, *make_batch(t, seed))
    return heard.report


def reports(mistake, world_size, seed=0):
    """Return the reports of `watch` and of `audit_step` on three steps."""
    parts = (
        partial(make_model, mistake, seed),
        partial(make_batch, seed=seed),
        partial(step, mistake),
    )
    heard = run_ranks(watched, world_size, mistake, seed)[0]
    return heard, audit_step(*parts, world_size)


def table(world_size, seed=0):
    """Print the codes of both; below them, what is not in every report."""
    print("mistake     watch             audit_step, beside one device")
    for mistake in MISTAKES:
        heard, beside = reports(mistake, world_size, seed)
        codes = [
            report.findings[0].code if report.findings else "-"
            for report in (heard, beside)
        ]
        print(f"{mistake:12}{codes[0]:18}{codes[1]}")
        deaf = [f"watch: {words}" for words in heard.not_looked_at[:-1]]
        deaf += [
            f"audit_step: {words}" for words in beside.not_looked_at[:-1]
        ]
        for words in deaf:
            print(textwrap.fill(f"not looked at by {words}", 70, **INDENT))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--world-size", type=int, default=2, metavar="N")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    args = parser.parse_args()
    for seed in range(args.seeds):
        print(f"\nseed {seed}, {args.world_size} ranks")
        table(args.world_size, seed)
