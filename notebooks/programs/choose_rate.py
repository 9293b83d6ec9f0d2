"""Which rate does step 3 of the lesson's recipe take? Five sets of ten seeds tell.

rates     the old rate, twice, four times, up to k times
schedule  the rate of each step: constant, or up and then down to 0
choose    the smallest rate that is near the best one
main      print what each set of seeds takes

python programs/choose_rate.py      about a minute of one core

The network, its digits and the rows of each device are those of larger.py.
"""

from functools import partial
from statistics import mean

import torch

from programs.larger import EPOCHS, error, scheduled, train_at

OLD, SETS, SEEDS = 0.02, 5, 10
STEPS = {8: 12, 16: 6}  # k devices: the steps of an epoch


def rates(k):
    """Return the rates to try: 1, 2, 4 and so on up to k times the old one."""
    return [OLD * 2**i for i in range(k.bit_length())]


def schedule(lr, k, falls):
    """Return the rate of each step. falls: half an epoch up, then down to 0."""
    if not falls:
        return lambda step: lr
    return partial(
        scheduled,
        base_lr=lr / k,
        world_size=k,
        warmup_steps=STEPS[k] // 2,
        end=EPOCHS * STEPS[k],
    )


def choose(found):
    """Return the rate that step 3 takes, and the best one.

    found: {rate: test accuracies}, with the same seeds for each rate. The best rate has
    the highest mean. Step 3 takes the smallest rate whose mean difference from it is at
    most two standard errors.
    """
    best = max(found, key=lambda rate: mean(found[rate]))
    for rate in sorted(found):
        gaps = [b - a for a, b in zip(found[rate], found[best])]
        if mean(gaps) <= 2 * error(gaps):
            return rate, best


def main():
    """Print the means of all seeds, and what each set of ten takes."""
    seeds = range(SETS * SEEDS)
    for k in STEPS:
        for falls in False, True:
            found = {
                lr: train_at(schedule(lr, k, falls), k, seeds)[1]
                for lr in rates(k)
            }
            print(
                f"{k} devices,", "up and down" if falls else "constant rate"
            )
            print(
                "  all seeds:", *(f"{r}: {mean(found[r]):.1%}" for r in found)
            )
            for start in seeds[::SEEDS]:
                part = {r: found[r][start : start + SEEDS] for r in found}
                rate, best = choose(part)
                less = 100 * (mean(part[best]) - mean(part[rate]))
                print(
                    f"  seeds from {start:2}: takes {rate},"
                    f" {less:.1f} points below {best}, the best"
                )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
