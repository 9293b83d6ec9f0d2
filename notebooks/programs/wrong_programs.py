"""Five programs that train on several ranks: one is right, four are wrong.

    step            a rank's part of a step: right, or with one mistake
    train           train a small U-Net by such steps; its score after each epoch
    shares          what rank 0 multiplies each image's gradient by, in each program
    step_by_shares  the step of one process that multiplies by these numbers
    small_unet      this U-Net, in float64
    small_blobs     the images for it
    draw_two        two runs as curves
    stored_ends     the ends of the stored runs
    draw_ends       the ends of all runs as dots
    say             what ranks used, as rows of numbers
    lower           how often a run of one list ends lower than one of another
    watched         the report of a training function on three ranks

In notebooks/:

    python -m programs.wrong_programs --out results/wrong-programs.json

A gradient is a sum over images. So each program is a list of numbers, too: what
each image's gradient is multiplied by. One process that multiplies the losses
by these numbers takes the step that rank 0 of three takes. The stored runs were
made in this way: on one core, in about five minutes.

Ranks import this file anew each time they start, so what draws is imported where it is
used.
"""

import argparse
import json
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from manual_dp.files import write_json
from manual_dp.ranks import run_ranks
from programs.segmentation import UNet, blobs, iou, overlap, pixel_loss

MINIBATCH = 10
SIZES = [4, 4, 2]  # images of each rank
RATES = [2.5e-4, 5e-4, 1e-3]
SEEDS = range(10)


def step(net, optimizer, X, y, program="right"):
    """Take this rank's part of a step; return its part of the loss.

    X, y: the whole minibatch, on all ranks alike.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(len(X)).chunk(n)[rank]
    if program == "same rows":
        rows = rows - rows[0]  # each rank begins at row 0
    losses = pixel_loss(net(X[rows]), y[rows])
    # all ranks' losses sum to n times the mean; the n goes when ranks average
    loss = losses.sum() * n / len(X)
    if program == "mean of means":
        loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    if program != "not synchronised":
        grads = [p.grad for p in net.parameters()]
        flat = parameters_to_vector(grads)
        dist.all_reduce(flat)
        if program != "sum for mean":
            flat = flat / n
        vector_to_parameters(flat, grads)
    optimizer.step()
    return losses.detach().sum().item() / len(X)


def train(take, lr, seed=0, epochs=8):
    """Train a small U-Net; return its IoU on new images after each epoch.

    take(net, optimizer, X, y) takes a step with a minibatch. The optimizer is
    SGD with momentum 0.9; lr falls to 0 in even steps, one an epoch.
    """
    (X, y), (X_test, y_test) = small_blobs(120), small_blobs(60, seed=1)
    net = small_unet(seed=seed)
    order = torch.Generator().manual_seed(100 + seed)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    scores = []
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = lr * (1 - epoch / epochs)
        for rows in torch.randperm(len(X), generator=order).split(MINIBATCH):
            take(net, optimizer, X[rows], y[rows])
        with torch.no_grad():
            scores.append(iou(overlap(net(X_test), y_test))[1].item())
    return scores


def shares(sizes):
    """Return {program: what rank 0 multiplies each image's gradient by}.

    sizes: images of each rank, neighbours in the minibatch.
    """
    total, ranks = sum(sizes), len(sizes)
    sizes = torch.tensor(sizes)

    def each(counts):
        """Give every image the number of its rank."""
        counts = torch.tensor(counts, dtype=torch.float64)
        return counts.repeat_interleave(sizes)

    right = each([1 / total] * ranks)
    # in "same rows", every rank with more than i images takes image i
    takers = sum((torch.arange(total) < size).double() for size in sizes)
    return {
        "right": right,
        "same rows": right * takers,
        "mean of means": each([1 / size / ranks for size in sizes.tolist()]),
        "not synchronised": each([ranks / total] + [0] * (ranks - 1)),
        "sum for mean": right * ranks,
    }


def step_by_shares(share, net, optimizer, X, y):
    """Take a step with image i's gradient multiplied by share[i]."""
    optimizer.zero_grad()
    (share @ pixel_loss(net(X), y)).backward()
    optimizer.step()


def small_blobs(rows, seed=0):
    """Generate images of 16 x 16 pixels, in a network's range, and their masks."""
    X, y = blobs(rows, seed, size=16)
    return 4 * (X.unsqueeze(1) - 0.4), y


def small_unet(norm=None, seed=0):
    """Make a U-Net of 4 channels, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return UNet(width=4, norm=norm, generator=generator).double()


def draw_two(runs):
    """Draw the scores of two runs after each epoch; print the last ones."""
    import matplotlib.pyplot as plt

    from course.lab.figures import plot

    ax = plot.axes("epoch", "score on new images", height=2.6)
    for name, scores, style in zip("AB", runs, "-:"):
        print(f"{scores[-1]:.2f} at the end: program {name}")
        epochs = range(1, len(scores) + 1)
        ax.plot(
            epochs,
            scores,
            style,
            color=plot.INK,
            lw=2.2,
            label=f"program {name}",
        )
    ax.legend(frameon=False)
    plt.show()


def stored_ends(path):
    """Read the stored runs: {(program, rate): the last scores of its seeds}."""
    runs = json.loads(Path(path).read_text(encoding="utf-8"))["runs"]
    return {(run["program"], run["rate"]): run["ends"] for run in runs}


def draw_ends(ends):
    """Draw the end of every run as a dot, a panel for each rate, a row a program.

    ends: {(program, rate): the scores of its seeds}.
    """
    import matplotlib.pyplot as plt

    from course.lab.figures import plot

    names = list(dict.fromkeys(program for program, _ in ends))
    panels = plot.axes(width=7.2, height=3.2, panels=len(RATES))
    for ax, lr in zip(panels, RATES):
        for place, name in enumerate(names):
            scores = ends[name, lr]
            middle = (len(scores) - 1) / 2
            rows = [
                place + 0.075 * (seed - middle) for seed in range(len(scores))
            ]
            ax.plot(scores, rows, "o", color=plot.INK, ms=4, clip_on=False)
        ax.set_yticks(
            range(len(names)), names if lr == RATES[0] else [""] * len(names)
        )
        ax.set(
            xlim=(-0.03, 0.9), ylim=(len(names) - 0.5, -0.5), xlabel="score"
        )
        ax.set_title(f"rate {lr}", fontsize=10, color=plot.INK)
    plt.show()


def say(name, rows, misfit):
    """Print what each rank used, and one device: a row of numbers, and the misfit."""
    print(name)
    labels = [f"rank {r}" for r in range(len(rows) - 1)] + ["one device"]
    for label, row, rest in zip(labels, rows.tolist(), misfit.tolist()):
        numbers = " ".join(f"{round(number, 2) + 0.0:5.2f}" for number in row)
        print(f"  {label:10} used {numbers}   misfit {rest:.0%}")


def lower(scores, others):
    """Return the part of all pairs in which a score is lower; ties count half."""
    pairs = [(a < b) + 0.5 * (a == b) for a in scores for b in others]
    return sum(pairs) / len(pairs)


def watched(train, *args):
    """Run train(*args), which returns its watch, on three ranks; return the report."""

    def quietly():
        with redirect_stdout(None):  # rank 0 prints the report as well
            heard = train(*args)
            heard.finish()  # as the end of a script does
        return heard.report

    return run_ranks(quietly, 3)[0]


def main(out):
    """Train every program at every rate with every seed; write the last scores."""
    runs = []
    for program, share in shares(SIZES).items():
        take = partial(step_by_shares, share)
        for lr in RATES:
            ends = [round(train(take, lr, seed)[-1], 3) for seed in SEEDS]
            runs.append({"program": program, "rate": lr, "ends": ends})
    machine = f"one CPU core, torch {torch.__version__}"
    write_json(out, {"machine": machine, "seeds": [*SEEDS], "runs": runs})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    main(parser.parse_args().out)
