"""Do one device and four end equally, with the same minibatches? Ten seeds tell.

trained     LeNet after an epoch of digits; the weights, and the test accuracy
clipped     five steps with clipping and momentum, before or after the sum
main        print both for ten seeds, in float64 and in float32

python programs/same_minibatch.py      some four minutes of one core

In float32 the control stands beside it: one device, with the rows of each minibatch in
the opposite order. Where training is not stable, another machine prints other numbers.
"""

from statistics import mean, stdev

import torch

from manual_dp import (
    allreduce,
    evaluate_accuracy,
    get_params,
    init_params,
    largest_difference,
    load_data,
    train_batch,
    try_devices,
)

SEEDS, ROWS = 10, 64
ONE, FOUR = try_devices(1), try_devices(4)


def start(seed, devices, dtype):
    """Return replicas of the first weights, one on each device."""
    generator = torch.Generator().manual_seed(seed)
    params = init_params("he", generator, dtype)
    return [get_params(params, device) for device in devices]


def trained(seed, devices, lr, dtype, backwards=False):
    """Return the last replica after an epoch, and its test accuracy."""
    data, test = load_data("digits", ROWS, seed=seed, dtype=dtype)
    replicas = start(seed, devices, dtype)
    for X, y in data:
        if backwards:
            X, y = X.flip(0), y.flip(0)
        train_batch(X, y, replicas, devices, lr)
    return replicas[-1], evaluate_accuracy(replicas, test, devices)


def clipped(seed, devices, before, steps=5):
    """Take steps with clipping and momentum; return the last replica.

    The limit is half the length of the first sum. before: clip each rank's gradient,
    at its share of the limit, and then sum.
    """
    data, _ = load_data("digits", ROWS, seed=seed, dtype=torch.float64)
    replicas = start(seed, devices, torch.float64)
    velocity, limits = [0.0] * len(devices), []

    def clip(grad, limit):
        grad *= min(1, limit / grad.norm())

    def exchange(grads):
        if not limits:
            limits.append(float(sum(grads).norm()) / 2)
        (limit,) = limits
        if before:
            for grad in grads:
                clip(grad, limit / len(grads))
        allreduce(grads)
        for rank, grad in enumerate(grads):
            if not before:
                clip(grad, limit)
            velocity[rank] = 0.9 * velocity[rank] + grad
            grad.copy_(velocity[rank])

    for X, y in list(data)[:steps]:
        train_batch(X, y, replicas, devices, 0.02, exchange)
    return replicas[-1]


def main():
    """Print what ten seeds give."""
    apart = []
    for seed in range(SEEDS):
        pair = [trained(seed, d, 0.1, torch.float64)[0] for d in (ONE, FOUR)]
        apart.append(largest_difference(*pair))
    print("float64, rate 0.1, weights apart:", *(f"{x:.0e}" for x in apart))
    for lr in 0.1, 0.2:
        rows = []
        for seed in range(SEEDS):
            runs = (ONE, False), (FOUR, False), (ONE, True)
            ends = [trained(seed, d, lr, torch.float32, b) for d, b in runs]
            rows.append([accuracy for _, accuracy in ends])
            far = [largest_difference(ends[0][0], end[0]) for end in ends[1:]]
            print(
                f"float32, rate {lr}, seed {seed}:",
                *(f"{accuracy:6.3f}" for accuracy in rows[-1]),
                *(f"{x:.0e}" for x in far),
            )
        for name, i in ("four devices", 1), ("rows reversed", 2):
            gaps = [row[i] - row[0] for row in rows]
            print(
                f"  {name} less one device: mean {mean(gaps):+.3f}, standard"
                f" error {stdev(gaps) / len(gaps) ** 0.5:.3f}, largest"
                f" {max(map(abs, gaps)):.3f}"
            )
    print("clipping and momentum, five steps, weights off by")
    for before, name in (False, "the sum"), (True, "each rank's own"):
        far = [
            largest_difference(
                clipped(seed, FOUR, before), clipped(seed, ONE, False)
            )
            for seed in range(SEEDS)
        ]
        print(f"  clipping {name}: {min(far):.0e} to {max(far):.0e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
