"""Problem set 9, predict before you pay: prices, two all-reduces, the best bucket.

What is right is counted, message by message. Where a helper has arguments with a
default, another value makes a mistake: hints are told to who makes it.
"""

import math
from types import SimpleNamespace

import torch

from course.school.checks import about, close, exercise, flat, numbers, shorten
from course.school.draws import describe, rand
from course.school.ps2 import draw_tensors, run_programs, summed_in_chunks

MICRO, PICO = 1e6, 1e12  # alpha is shown in microseconds, beta in picoseconds a byte
# what to say of too many numbers, and of too many steps
HALVES = (
    "send half of what is still yours, then half of that, and so on",
    "partners send to each other in one step, twice at each of log2 M distances",
)
LEVELS = (
    "inside a node chunks go round, between nodes chunks of one chunk",
    "all rings inside nodes go round at once, and so do all rings between nodes",
)


@exercise("ps9/fit", points=2)
def fit(random, fit):
    """Hand over what was measured: two sizes without noise, then many with it."""
    for count, noise in (2, 0), (7, 0.15), (9, 0.1), (6, 0.2):
        alpha, beta = random.uniform(5e-6, 40e-6), random.uniform(3e-11, 8e-10)
        drawn = [round(2 ** random.uniform(9, 26)) for _ in range(count - 2)]
        sizes = [256, 2**26, *drawn]
        random.shuffle(sizes)
        seconds = [
            (alpha + beta * size) * random.uniform(1 - noise, 1 + noise)
            for size in sizes
        ]
        alpha, beta = _line(sizes, seconds)
        yield about(f"sizes {sizes}, seconds {shorten(seconds)}")(
            "alpha in microseconds, beta in picoseconds a byte",
            _scaled(fit(list(sizes), list(seconds)), MICRO, PICO),
            [MICRO * alpha, PICO * beta],
            {
                "alpha comes first, then beta": [MICRO * beta, PICO * alpha],
                "beta is the seconds of a byte: this is a bandwidth, bytes in a "
                "second": [MICRO * alpha, PICO / beta],
                "each error counts relative to its measurement: divide it by "
                "that": _scaled(_line(sizes, seconds, 0), MICRO, PICO),
            },
            1e-3,
        )


def _line(sizes, seconds, power=1):
    """Return alpha and beta with the least squares of errors / seconds ** power."""
    t, s = (torch.tensor(row, dtype=torch.float64)[:, None] for row in (seconds, sizes))
    rows = torch.cat([torch.ones_like(s), s], 1)
    return torch.linalg.lstsq(rows / t**power, t / t**power).solution[:, 0].tolist()


def _scaled(value, *units):
    """Return numbers in other units; anything else as it is."""
    found = flat(numbers(value))
    if len(found) != len(units) or any(type(one) not in (int, float) for one in found):
        return found
    return [number * unit for number, unit in zip(found, units)]


@exercise("ps9/allreduce_seconds", points=3)
def allreduce_seconds(random, allreduce_seconds):
    """Ask for the seconds of each way, for many world sizes and tensors."""
    alpha, beta = random.uniform(2e-6, 20e-6), random.uniform(2e-12, 9e-10)
    for way in "star", "ring", "tree", "halving-doubling":
        yield from _seconds_of_a_way(random, allreduce_seconds, way, alpha, beta)


def _seconds_of_a_way(random, allreduce_seconds, way, alpha, beta):
    """Ask for the seconds of one way."""
    counts = [1, 2, 4, 2 ** random.randint(3, 12)]
    if way != "halving-doubling":
        counts += [3, random.randint(5, 7), random.randint(9, 4000)]
    asked = []  # (world size, bytes of the tensor)
    for n in counts:
        numels = random.randint(10**4, 10**9), random.randint(1, 50), 4 * n + 1, 0
        asked += [(n, 4 * numel) for numel in numels]

    def priced(steps=len, factor=1, up=True):  # what has a default is a mistake
        halves = [_messages(way, n, size // 4, up) for n, size in asked]
        return [
            2 * MICRO * (steps(half) * alpha + 4 * factor * sum(half) * beta)
            for half in halves
        ]

    got = [allreduce_seconds(way, n, size, alpha, beta) for n, size in asked]
    right = priced()
    yield about(f"alpha {alpha:.4g} s, beta {beta:.4g} s a byte, way {way!r}")(
        f"microseconds for (world_size, size) {', '.join(map(str, asked))}",
        _scaled(got, *[MICRO] * len(asked)),
        right,
        {
            "this is one half: sums come in, and go out again": [t / 2 for t in right],
            "alpha is paid in each step, not once": priced(steps=bool),
            "`size` is in bytes already: no factor of 4": priced(factor=4),
            "round up, to whole numbers and whole steps: all wait for the "
            "longest": priced(up=False),
        },
    )


def _messages(way, n, numel, up=True):
    """Return the numbers in the longest message of each step, of one half."""
    whole = math.ceil if up else float
    levels = range(math.ceil(math.log2(n)) if up else int(math.log2(n)))
    if way == "halving-doubling":
        return [whole(numel / 2 ** (level + 1)) for level in levels]
    longest = whole(numel / n) if way == "ring" else numel
    return [longest] * (len(levels) if way == "tree" else n - 1)


@exercise("ps9/halving_doubling", points=4)
def halving_doubling(random, halving_doubling):
    """Run it without guests, then with."""

    def bounds(k, sizes):
        power = 2 ** (k.bit_length() - 1)
        guests, numel = k > power, sum(sizes)
        return (
            2 * (power.bit_length() - 1) + 2 * guests,
            2 * (power - 1) * -(-numel // power) + guests * numel,
            2 * (k - 1),
        )

    several = sorted(draw_tensors(random), key=lambda held: len(held) & len(held) - 1)
    yield from run_programs(several, halving_doubling, summed_in_chunks, bounds, HALVES)


@exercise(
    "ps9/two_level",
    points=4,
    cases=[(4, 2), (6, 3), (8, 4), (6, 2), (3, 3), (3, 1), (1, 1)],
)
def two_level(random, two_level, *, k, g):
    """Run it on nodes; what leaves a node is counted, too."""
    nodes, numel = k // g, random.randint(k, 3 * k)
    chunk = -(-numel // g)
    outside = 2 * (nodes - 1) * -(-chunk // nodes)  # of each rank
    most = g * outside

    def bounds(k, sizes):
        return 2 * (g + nodes - 2), 2 * (g - 1) * chunk + outside, 2 * (k - 1)

    def between(held, done):
        out = [0] * nodes
        for _, sender, receiver, count in done["messages"]:
            if sender // g != receiver // g:
                out[sender // g] += count
        right = f"at most {most}"
        return about(f"{describe(held)}, {g} in a node")(
            "the numbers in the tensors are right; numbers out of each node",
            right if max(out) <= most else str(out),
            right,
            {"sum inside the node first: then only sums leave it": True},
        )

    yield from run_programs(
        [[rand(random, numel) for _ in range(k)]],
        lambda rank, k, tensor: two_level(rank, k, tensor, g),
        summed_in_chunks,
        bounds,
        LEVELS,
        between,
    )


MISTAKES = {  # in best_cap: {hint: arguments of _best}
    "a bucket that holds just `cap` bytes is not too large": {"strict": True},
    "a bucket is ready when its last gradient is, not its first": {"begun": True},
    "of several caps with the same end, the largest is wanted": {"largest": False},
}


@exercise("ps9/finish", points=3)
def finish(random, finish, best_cap):
    """Ask when the last of some buckets has come, then for the best cap."""
    several = [_situation(random, count) for count in [1, *range(4, 10)] * 4]
    for one in several:
        buckets = list(zip(one.ready, one.sizes))
        short = _end(one, buckets, steps=1)
        one.say = about(f"ready {one.ready}, sizes {one.sizes}, {one.link}, N {one.n}")
        yield one.say(
            "finish",
            finish([*one.ready], [*one.sizes], one.link, one.n),
            _end(one, buckets),
            {
                "buckets share the link: one is sent when the one before it has "
                "arrived": _end(one, buckets, queue=False),
                "each bucket has 2 (N - 1) steps, and each of these costs alpha": short,
                "a step sends 1 / N of a bucket": _end(one, buckets, chunks=1),
            },
        )
    found = [
        best_cap([*one.ready], [*one.sizes], one.link, one.n, [*one.caps])
        for one in several
    ]
    hints = {}
    for hint, how in MISTAKES.items():
        hints[hint] = close(numbers(found), [_best(one, **how) for one in several])
    for one, cap in zip(several, found):
        yield one.say(f"best_cap of {one.caps}", cap, _best(one), hints)


def _situation(random, count):
    """Draw gradients; divisors are powers of two, so that equal ends are just equal."""
    sizes = [random.randint(1, 60) for _ in range(count)]
    full = {sum(sizes[i : i + 3]) for i in range(count)}
    return SimpleNamespace(
        sizes=sizes,
        ready=sorted(random.sample(range(1, 200), count)),
        n=random.choice([2, 4, 8]),
        caps=random.sample([*full, 800, 900, 1000], 4),
        link=SimpleNamespace(
            alpha=random.randint(2, 24) / 8, bandwidth=random.choice([2.0, 4.0])
        ),
    )


def _buckets(one, cap, strict=False, begun=False):
    """Return (ready, size) of each bucket that gradients fill."""
    full = []
    for start, size in zip(one.ready, one.sizes):
        held = full[-1][1] + size if full else cap + 1
        if held > cap or strict and held == cap:
            full.append((start, size))
        else:
            full[-1] = full[-1][0] if begun else start, held
    return full


def _end(one, buckets, queue=True, steps=None, chunks=None):
    """Return when the last of these buckets has arrived."""
    now, rounds = 0, 2 * (one.n - 1)
    for start, size in buckets:
        sent = rounds / (chunks or one.n) * size
        took = (steps or rounds) * one.link.alpha + sent / one.link.bandwidth
        now = max(now, start) + took if queue else max(now, start + took)
    return now


def _best(one, largest=True, **how):
    """Return the cap with the earliest end, and of several such caps the largest."""

    def key(cap):
        return _end(one, _buckets(one, cap, **how)), -cap if largest else cap

    return min(one.caps, key=key)
