"""Alpha and beta of this machine, from all-reduces that are timed on real ranks.

measure   seconds of torch's all-reduce of each size, the median of some runs
fit       alpha and beta that say so, by least squares of the relative error
predict   seconds of any size, by this alpha and beta
once      measure, fit by three sizes, predict five others

python notebooks/programs/alpha_beta.py --times 20 --out notebooks/results/fits.json
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from manual_dp.files import write_json
from manual_dp.ranks import run_ranks

KNOWN = [2**12, 2**18, 2**24]  # bytes, to fit by
OTHERS = [2**13, 2**15, 2**20, 2**21, 2**23]  # to predict
FEWEST = (
    5  # calls that are timed at once: a single one is early or late by half
)


def measure(world_size, sizes, repeat=15):
    """Return {size: seconds} of `dist.all_reduce` on so many ranks, the slowest's.

    sizes: bytes of a float32 tensor. The sizes take turns, so that a slow moment meets
    all of them; the first turn warms up.
    """
    ranks = run_ranks(_rank, world_size, sizes, repeat, timeout=300)
    return {
        size: median(map(max, zip(*(rank[i] for rank in ranks))))
        for i, size in enumerate(sizes)
    }


def _rank(sizes, repeat):
    tensors, found = (
        [torch.zeros(size // 4) for size in sizes],
        [[] for _ in sizes],
    )
    for turn in range(repeat + 1):
        for tensor, times in zip(tensors, found):
            calls = max(FEWEST, min(20, 2**20 // tensor.nbytes))
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor)
            if turn:
                times.append((time.perf_counter() - begin) / calls)
    return found


def fit(seconds, world_size):
    """Return (alpha, beta) of {size: seconds}: seconds, and seconds a byte.

    Each size counts by its relative error, or the largest would decide alone. Neither
    is below 0: if one would be, it is 0, and the other does it alone.
    """
    rows = torch.tensor(
        [
            [count / took for count in _ring(world_size, size)]
            for size, took in seconds.items()
        ],
        dtype=torch.float64,
    )
    ones = torch.ones(len(rows), 1, dtype=torch.float64)
    found = torch.linalg.lstsq(rows, ones).solution[:, 0].tolist()
    for other in (1, 0):
        if found[1 - other] < 0:
            column = rows[:, other]
            found[1 - other], found[other] = (
                0.0,
                (column.sum() / (column @ column)).item(),
            )
    return tuple(found)


def predict(fitted, world_size, size):
    """Return the seconds of an all-reduce of `size` bytes."""
    return sum(
        part * count for part, count in zip(fitted, _ring(world_size, size))
    )


def _ring(world_size, size):
    """Return (rounds, bytes in a row) of a ring."""
    rounds = 2 * (world_size - 1)
    return rounds, rounds * size / world_size


def once(world_size):
    """Return {size: seconds}, the fit by KNOWN, {size of OTHERS: predicted / took}."""
    took = measure(world_size, sorted(KNOWN + OTHERS))
    found = fit({size: took[size] for size in KNOWN}, world_size)
    return (
        took,
        found,
        {
            size: predict(found, world_size, size) / took[size]
            for size in OTHERS
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--times", type=int, default=20, help="for each world size"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="write JSON here"
    )
    args, fits = parser.parse_args(), []
    for _ in range(args.times):
        for n in (2, 4):
            _, (alpha, beta), ratios = once(n)
            fits.append(
                {
                    "ranks": n,
                    "alpha": float(f"{alpha:.3g}"),
                    "beta": float(f"{beta:.3g}"),
                    "ratios": [round(ratio, 3) for ratio in ratios.values()],
                }
            )
            write_json(
                args.out, {"known": KNOWN, "others": OTHERS, "fits": fits}
            )
