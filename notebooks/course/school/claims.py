"""Exercises of the lesson on claims: controls, which must be able to fail.

What the lesson counts and prices is counted and priced here once more.
"""

from functools import cache
from itertools import count

import torch
from torch.utils.flop_counter import FlopCounterMode

from course.school.checks import about, exercise, numbers


@cache
def _weigh():
    """Return the bytes of ResNet-50's gradient, and operations for a 32 x 32 row."""
    from manual_dp.data import ensure_torchvision

    with torch.device("meta"):  # which draws no weights, but is slow to compute with
        model = ensure_torchvision().models.resnet50(num_classes=10)
    model.to_empty(device="cpu")
    with FlopCounterMode(display=False) as counter:
        model(torch.rand(2, 3, 32, 32)).sum().backward()
    size = 4 * sum(p.numel() for p in model.parameters())
    return size, counter.get_total_flops() / 2


def _speedup(rows, n):
    """Return how many times faster n GPUs take a step of so many rows than one."""

    def seconds(n):
        size, operations = _weigh()
        compute = rows / n * operations / 10e12
        ring = 2 * (n - 1) * (5.7e-6 + size / n / 31.5e9)
        return compute / 3 + max(compute * 2 / 3, ring)

    return seconds(1) / seconds(n)


@exercise("claims/sampled")
def sampled(random, sampled):
    """Look at the lists: how long are they, and is every row on a rank?"""
    for rows, n in ((8, 2), (random.randint(9, 11), 4), (10, 3), (5, 8)):
        yield from _dealt(sampled(rows, n), rows, n)


def _dealt(got, rows, n):
    """Compare the lists of n ranks, for so many rows."""
    say, share = about(f"sampled({rows}, {n})"), -(-rows // n)
    lists = isinstance(got, (list, tuple)) and not any(
        isinstance(order, (int, float)) for order in got
    )
    orders = [numbers(list(order)) for order in got] if lists else got
    yield say(
        "rows that each rank has",
        list(map(len, orders)) if lists else orders,
        [share] * n,
        {
            "return the lists themselves, one a rank: the cell counts": not lists,
            "every rank has all rows: no sampler has dealt them": [rows] * n,
            "drop_last leaves rows out: then no row is on two ranks, whoever deals": [
                rows // n
            ]
            * n,
            "there is one list for each of the n ranks": lists and len(orders) != n,
        },
    )
    yield say(
        f"numbers that are no row: rows are 0 to {rows - 1}",
        sum(not 0 <= row < rows for order in orders for row in order),
        0,
        {"rows count from 0: let the sampler draw them from range(rows)": True},
    )
    yield say(
        "rows that no rank has",
        len(set(range(rows)).difference(*orders)),
        0,
        {"ranks shuffle with seeds of their own: one seed for all ranks": True},
    )


@exercise("claims/crossing")
def crossing(random, crossing):
    """Ask for the rows on several numbers of GPUs."""
    for n in random.sample(range(2, 9), 3):
        got = crossing(n)
        right, any_faster = (
            next(rows for rows in count(n, n) if _speedup(rows, n) >= times)
            for times in (0.8 * n, 0.8)
        )
        uneven = next(rows for rows in count(1) if _speedup(rows, n) >= 0.8 * n)
        yield about(f"{n} GPUs")(
            f"the smallest `rows`, equally many on each GPU, that are at least "
            f"{0.8 * n:.1f} times as fast",
            got,
            right,
            {
                "count in steps of n: each GPU has equally many rows": uneven,
                "these are one row a GPU too few: there it is still below": right - n,
                "these are the rows of one GPU: `rows` are all GPUs' together": right
                // n,
                "0.8 times as fast is slower than one GPU: it is 0.8 * n": any_faster,
                "fewer rows suffice: try each multiple of n": isinstance(got, int)
                and got > right,
            },
        )
