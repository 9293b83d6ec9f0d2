"""Two runs of one training, from equal weights or nearly so: how do they part?

start          ten images of noise, their labels, and the first weights
run            train on them; the loss and the weights of each step
apart          how far two runs are apart after each step
draw_losses    the printed losses of two runs
draw_apart     how far runs are apart, above the loss
mean_of_means  how wrong a step is if each rank takes a mean
step_of_means  take that wrong step on every replica

python programs/two_runs.py                  all that the lesson says of ten starts;
                                             it takes seven minutes
python programs/two_runs.py limits uneven    these parts of it: limits, uneven, parting
                                             or growth
"""

import sys

import torch

from course.lab.equivalence import nudge, stepwise
from course.lab.figures import plot
from manual_dp import (
    allreduce,
    get_params,
    init_params,
    largest_difference,
    lenet,
    load_data,
    loss,
    pack_grads,
    sgd,
    split_batch,
    train_batch,
    try_devices,
)

STEPS = 80  # of the runs on the page; ten starts are run for longer


def start(seed=0, dtype=torch.float64):
    """Return X, y and the first weights: the same numbers for each dtype."""
    generator = torch.Generator().manual_seed(seed)
    params = init_params("he", generator, torch.float64)
    X = torch.rand(10, 1, 28, 28, generator=generator, dtype=torch.float64)
    y = torch.randint(10, (10,), generator=generator)
    return X.to(dtype), y, [p.to(dtype) for p in params]


def run(X, y, params, world_size, lr, steps=STEPS, step=train_batch):
    """Train on `world_size` devices; return the losses, and the last one's weights."""
    devices = try_devices(world_size)
    replicas = [get_params(params, device) for device in devices]
    losses, weights = [], []
    for _ in range(steps):
        losses.append(step(X, y, replicas, devices, lr))
        weights.append([p.detach().clone() for p in replicas[-1]])
    return losses, weights


def apart(run, other):
    """Return the largest difference of a weight between two runs, after each step."""
    return [largest_difference(p, q) for p, q in zip(run[1], other[1])]


def draw_losses(runs):
    """Draw the losses of {label: run}."""
    import matplotlib.pyplot as plt

    ax = plot.axes("step", "printed loss")
    for (label, (losses, _)), style in zip(runs.items(), "-:"):
        steps = range(1, len(losses) + 1)
        ax.plot(steps, losses, style, color=plot.INK, lw=2, label=label)
    ax.legend(frameon=False, loc="lower left", fontsize=11)
    ax.set_ylim(0)
    plt.show()


def draw_apart(found):
    """Draw a column for each rate of {rate: (losses, {label: differences})}."""
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(
        2,
        len(found),
        figsize=(6.4, 4.4),
        dpi=110,
        sharex=True,
        sharey="row",
        layout="constrained",
    )
    for (lr, (losses, differences)), (top, bottom) in zip(
        found.items(), rows.T
    ):
        steps = range(1, len(losses) + 1)
        for (label, gap), form in zip(differences.items(), ("-", "o")):
            every = 1 if form == "-" else 4
            top.semilogy(
                steps[::every],
                gap[::every],
                form,
                ms=4,
                mfc="white",
                label=label,
                color=plot.INK,
            )
        bottom.plot(steps, losses, color=plot.INK)
        top.set_title(f"rate {lr}", fontsize=11, color=plot.INK)
        bottom.set_xlabel("step", color=plot.INK)
        for ax in (top, bottom):
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(color=plot.FAINT)
    rows[0, 0].set_ylabel("largest difference\nof a weight", color=plot.INK)
    rows[1, 0].set_ylabel("loss of one device", color=plot.INK)
    figure.legend(
        *rows[0, 0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=2,
        frameon=False,
    )
    plt.show()


def parting(
    lr=0.1,
    dtype=torch.float32,
    world_size=4,
    seeds=range(10),
    steps=100,
    seen=0.05,
):
    """Print how far losses part from those of one device, and when one sees it."""
    print(
        f"rate {lr}, {dtype}: losses differ from those of one device by at most "
        f"this (and by {seen} or more from this step on)"
    )
    found = {}
    for seed in seeds:
        X, y, params = start(seed, dtype)
        right, wrong = {"step": train_batch}, {"step": step_of_means}
        others = {
            f"{world_size} devices": ((X, y, params, world_size), right),
            "one, nudged": ((X, y, nudge(params), 1), right),
            "one, rows reversed": ((X.flip(0), y.flip(0), params, 1), right),
            "mean, by ranks": ((X, y, params, world_size), wrong),
        }
        alone, _ = run(X, y, params, 1, lr, steps)
        line = f"  seed {seed}"
        for name, (other, how) in others.items():
            losses, _ = run(*other, lr, steps, **how)
            far = [abs(a - b) for a, b in zip(alone, losses)]
            first = next((i for i, d in enumerate(far, 1) if d >= seen), None)
            line += f"  {name}: {max(far):.1e} ({first or '-'})"
            found.setdefault(name, []).append((max(far), first))
        print(line, flush=True)
    for name, pairs in found.items():
        far, first = zip(*pairs)
        line = f"  all: {name}: {min(far):.1e} to {max(far):.1e}"
        if None not in first:
            line += f", from step {min(first)} to {max(first)} on"
        print(line)


def growth(lr=0.1, world_size=4, steps=150, seeds=range(10)):
    """Print by what factor a step multiplies a difference while training is rough."""
    print(
        f"rate {lr}, float64, {world_size} devices; factors from step 5 to 100"
    )
    for seed in seeds:
        X, y, params = start(seed)
        alone = run(X, y, params, 1, lr, steps)
        gaps = [
            apart(run(X, y, *other, lr, steps), alone)
            for other in ((params, world_size), (nudge(params), 1))
        ]
        above = [i for i, value in enumerate(alone[0], 1) if value >= 0.1]
        rough = max(above, default=0)  # the loss is above 0.1 until this step
        end = min(rough, 100)
        factors = [(gap[end - 1] / gap[4]) ** (1 / (end - 5)) for gap in gaps]
        later = [gap[-1] / gap[min(rough + 9, steps - 1)] for gap in gaps]
        print(
            f"  seed {seed}: {factors[0]:.2f}, control {factors[1]:.2f}; rough until "
            f"step {rough}; from ten steps later to the end {later[0]:.2f}-fold; ends "
            f"at {gaps[0][-1]:.0e}, control {gaps[1][-1]:.0e}"
        )


def limits(
    world_size=4,
    seeds=range(10),
    cases=((0.05, 5), (0.1, 100), (0.2, 5), (1.0, 5)),
):
    """Print the largest difference that the stepwise test sees in right code."""
    devices = try_devices(world_size)
    for dtype in torch.float64, torch.float32:
        for lr, steps in cases:
            far = [
                stepwise(*start(seed, dtype), devices, lr, steps)
                for seed in seeds
            ]
            print(
                f"{dtype}, rate {lr}, {steps} steps: "
                f"{min(far):.0e} to {max(far):.0e}"
            )


def mean_of_means(X, y, params, world_size=4):
    """Return by which part of it a step is wrong, if each rank takes a mean."""
    moves = []
    for k in (1, world_size):
        _, [weights] = run(X, y, params, k, 0.1, 1, step_of_means)
        parts = zip(weights, params)
        moves.append(torch.cat([(p.cpu() - q).flatten() for p, q in parts]))
    return float((moves[1] - moves[0]).norm() / moves[0].norm())


def step_of_means(X, y, device_params, devices, lr):
    """Take a wrong step: a mean on each rank, and the mean of these over ranks."""
    grads = [pack_grads(replica) for replica in device_params]
    total = 0.0
    for a, b, replica in zip(*split_batch(X, y, devices), device_params):
        losses = loss(lenet(a, replica), b)
        losses.mean().backward()
        total += losses.sum().item()
    allreduce(grads)
    for replica in device_params:
        sgd(replica, lr, len(devices))
    return total / len(X)


def uneven(seeds=range(10)):
    """Print how wrong the mean of means is, for noise and for digits."""
    noise = [mean_of_means(*start(seed)) for seed in seeds]
    digits = []
    for seed in seeds:
        batches = load_data("digits", 64, seed, dtype=torch.float64)[0]
        X, y = [*batches][-1]
        digits.append(mean_of_means(X, y, start(seed)[2]))
    for rows, found in ("3, 3, 3, 1", noise), ("8, 8, 8, 6", digits):
        print(
            f"mean of means, {rows} rows: {min(found):.0%} to {max(found):.0%}"
        )


def main(parts):
    """Print these parts, or all."""
    known = {
        "limits": limits,
        "uneven": uneven,
        "parting": lambda: [parting(lr) for lr in (0.02, 0.1)],
        "growth": growth,
    }
    for part in parts or known:
        known[part]()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
