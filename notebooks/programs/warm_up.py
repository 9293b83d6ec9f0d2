"""Does a warm-up help? Larger minibatches of digits, at rates that are and are not high.

    learning_rate   from base_lr up to world_size * base_lr, step by step
    losses          train with one rate a step; the mean loss of each epoch

    python programs/warm_up.py --out results/digits-warm-up.json

Minibatches of 8 x 16 rows, float32, five epochs of 12 steps. One device does the work:
with the same minibatches, eight would take the same steps.
"""

import argparse
from functools import partial

import torch

from manual_dp import get_params, init_params, load_data, train_batch
from manual_dp.files import write_json

WORLD_SIZE, ROWS, EPOCHS = 8, 16, 5
BASES = (0.02, 0.04, 0.08, 0.16)
WARM_UPS = (0, 12)  # steps: none, or the first epoch


def learning_rate(step, base_lr, world_size, warmup_steps):
    """Return the rate of one step; steps count from 0."""
    full = world_size * base_lr
    if step >= warmup_steps:
        return full
    return base_lr + (full - base_lr) * step / warmup_steps


def losses(rate, seed, epochs=EPOCHS):
    """Return the mean training loss of each epoch; rate(step) is the rate of a step."""
    data, _ = load_data("digits", WORLD_SIZE * ROWS, seed=seed)
    start = init_params("he", torch.Generator().manual_seed(seed))
    replicas, step, found = [get_params(start, "cpu")], 0, []
    for _ in range(epochs):
        total = 0.0
        for X, y in data:
            total += len(X) * train_batch(X, y, replicas, ["cpu"], rate(step))
            step += 1
        found.append(total / len(data.X))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, metavar="FILE")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    runs = [
        {
            "seed": seed,
            "base_lr": base,
            "warmup_steps": steps,
            "loss": losses(
                partial(
                    learning_rate,
                    base_lr=base,
                    world_size=WORLD_SIZE,
                    warmup_steps=steps,
                ),
                seed,
            ),
        }
        for seed in range(3)
        for base in BASES
        for steps in WARM_UPS
    ]
    write_json(
        out,
        {
            "settings": {"rows": WORLD_SIZE * ROWS, "epochs": EPOCHS},
            "runs": runs,
        },
    )
