"""What must be tuned again when minibatches become k times larger? Twenty seeds tell.

learning_rate   from base_lr up to world_size * base_lr, step by step
scheduled       a warm-up and then a fall to 0; both counted in steps
train_at        train a network for each seed; loss, accuracy, steps to 90 %
cases           what is tried: rates, warm-ups, schedules
draw_rates      the test accuracy at each rate, a panel for each k

python programs/larger.py --out results/digits-larger.json

Minibatches of k x 16 digits, a network of two layers with 32 hidden units, float32: so
small that twenty trainings take some seconds, and all of them a few minutes.
One device does the work: with the same minibatches, k devices take the same steps.
"""

import argparse
from functools import lru_cache, partial
from statistics import mean, stdev

import torch
from torch.nn import functional as F

from manual_dp.data import load_data
from manual_dp.files import write_json

ROWS, EPOCHS, SEEDS = 16, 5, 20
SIZES, RATES = (1, 2, 4, 8), (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
HIGH, WARM_UPS = (0.16, 0.32, 0.64), (12, 36)  # k = 8: rates, steps


def learning_rate(step, base_lr, world_size, warmup_steps):
    """Return the rate of one step; steps count from 0."""
    full = world_size * base_lr
    if step >= warmup_steps:
        return full
    return base_lr + (full - base_lr) * step / warmup_steps


def scheduled(step, base_lr, world_size, warmup_steps, end):
    """Return the rate of a step: up, then in a straight line down to 0 at `end`."""
    left = (end - step) / (end - warmup_steps)
    rate = learning_rate(step, base_lr, world_size, warmup_steps)
    return rate * max(0, min(1, left))


@lru_cache(None)
def _images():
    train, test = load_data("digits")
    return train.X.flatten(1), train.y, test.X.flatten(1), test.y


def train_at(rate, k, seeds, epochs=EPOCHS, look=False):
    """Train a network for each seed, on minibatches of k * 16 rows, all at once.

    rate(step) is the rate of a step. Returns three lists with a number for each seed:
    the mean training loss of the last epoch; the share of the test images that are
    right at its end; and the first step after which 90 in a hundred were right, or
    None. look: for this, test after each 128 rows. (All None without it.)
    """
    X, y, X_test, y_test = _images()
    draws = [torch.Generator().manual_seed(seed) for seed in seeds]
    params = []
    for size in (784, 32), (32, 10):  # as "he" of init_params
        params.append(torch.stack([_normal(size, draw) for draw in draws]))
        params.append(torch.zeros(len(draws), 1, size[1]))
    for p in params:
        p.requires_grad_()
    step, steps = 0, [None] * len(draws)
    for _ in range(epochs):
        total = torch.zeros(len(draws))
        order = torch.stack(
            [torch.randperm(len(X), generator=g) for g in draws]
        )
        for rows in order.split(k * ROWS, dim=1):
            scores = _scores(X[rows], *params)
            losses = F.cross_entropy(scores.mT, y[rows], reduction="none")
            means = losses.mean(dim=1)  # of each seed's minibatch
            grads = torch.autograd.grad(means.sum(), params)
            lr = float(rate(step))
            with torch.no_grad():
                for p, grad in zip(params, grads):
                    p -= lr * grad
            total += losses.detach().sum(dim=1)
            step += 1
            if look and None in steps and step % (8 // k or 1) == 0:
                for i, share in enumerate(_accuracy(X_test, y_test, params)):
                    if steps[i] is None and share >= 0.9:
                        steps[i] = step
    mean_losses = [round(loss, 4) for loss in (total / len(X)).tolist()]
    return mean_losses, _accuracy(X_test, y_test, params), steps


def _normal(size, draw):
    drawn = torch.randn(size[::-1], generator=draw)
    return drawn.T * (2 / size[0]) ** 0.5


def _scores(X, first, bias, second, other):
    """Return each network's scores: (seeds, rows, classes)."""
    return (X @ first + bias).relu() @ second + other


@torch.no_grad()
def _accuracy(X, y, params):
    right = _scores(X, *params).argmax(dim=2) == y
    return [round(share, 4) for share in right.double().mean(dim=1).tolist()]


def cases():
    """Return pairs: what is noted of a case, and the rate of each of its steps."""
    for k in SIZES:
        for lr in RATES:
            yield {"k": k, "lr": lr}, lambda step, lr=lr: lr
    for lr in HIGH:
        for steps in WARM_UPS:
            noted = {"k": 8, "lr": lr, "warmup_steps": steps}
            yield (
                noted,
                partial(
                    learning_rate,
                    base_lr=lr / 8,
                    world_size=8,
                    warmup_steps=steps,
                ),
            )
    for k in SIZES:
        for part in sorted(
            {1, k}
        ):  # the numbers of one device, and those of k
            epoch = -(-1438 // (ROWS * part))  # steps
            up, end = round(epoch / 2), EPOCHS * epoch
            for lr in (0.02, 0.04):
                noted = {"k": k, "lr": k * lr, "warmup_steps": up, "end": end}
                yield (
                    noted,
                    partial(
                        scheduled,
                        base_lr=lr,
                        world_size=k,
                        warmup_steps=up,
                        end=end,
                    ),
                )


def draw_rates(grid):
    """Draw the test accuracy at each rate; grid: {(k, rate): case}."""
    import matplotlib.pyplot as plt

    from course.lab.figures import plot

    panels = plot.axes(
        "learning rate",
        title=f"{SEEDS} seeds, and their mean. Dashed: k x 0.02",
        width=7.6,
        panels=len(SIZES),
    )
    panels[0].set_ylabel("test accuracy, five epochs")
    for ax, k, colour in zip(panels, SIZES, plot.COLOURS):
        rows = [grid[k, rate]["test_acc"] for rate in RATES]
        ax.plot(RATES, rows, "o", ms=2, color=colour, alpha=0.4)
        ax.plot(RATES, list(map(mean, rows)), color=colour, lw=1.8)
        ax.axvline(0.02 * k, color=plot.INK, ls="--", lw=1)
        ax.set_title(f"k = {k}: {ROWS * k} rows", fontsize=10, color=plot.INK)
        ax.set_xscale("log")
        ax.set_xticks(
            RATES, [f"{rate:g}"[1:] for rate in RATES], fontsize=7.5
        )
        ax.minorticks_off()
        ax.set_ylim(0, 1)
    plt.show()


def error(values):
    """Return the standard error of a mean."""
    return stdev(values) / len(values) ** 0.5


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, metavar="FILE")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    runs = []
    for noted, rate in cases():
        seeds, look = range(SEEDS), "end" not in noted
        found = train_at(rate, noted["k"], seeds, look=look)
        runs.append(
            noted | dict(zip(("loss", "test_acc", "steps_to_90"), found))
        )
    settings = {"rows": ROWS, "epochs": EPOCHS, "seeds": SEEDS}
    write_json(out, {"settings": settings, "runs": runs})
