"""Problem set 9, predict before you pay: prices, two all-reduces, the best bucket.

What is right is counted, message by message. Where a helper has arguments with a
default, another value makes a mistake: hints are told to who makes it.
"""

import math
from functools import partial
from itertools import product
from types import SimpleNamespace

import torch

from course.lab.rounds import RoundsError, run_rounds
from course.school.checks import about, close, exercise, flat, numbers, shorten
from course.school.draws import LAST, describe, rand
from course.school.ps2 import draw_tensors, run_programs, summed_in_chunks

MICRO, PICO = 1e6, 1e12  # alpha is shown in microseconds, beta in picoseconds a byte
# how not to round the numbers of a message: not at all, down, to whole bytes
ROUNDED = float, math.floor, lambda count: math.ceil(4 * count) / 4
# what to say of too many numbers, and of too many steps
HALVES = (
    "send half of what is still yours, then half of that, and so on",
    "partners send to each other in one step, twice at each of log2 M distances",
)
LEVELS = (
    "inside a node chunks go round, between nodes chunks of one chunk",
    "all rings inside nodes go round at once, and so do all rings between nodes",
)


@exercise("ps9/fit", points=1)
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
                "each error is divided by its measurement twice: once is meant, and "
                "then comes the square": _scaled(_line(sizes, seconds, 2), MICRO, PICO),
                "1 / t stands at the squared error: there it must be 1 / t "
                "squared": _scaled(_line(sizes, seconds, 0.5), MICRO, PICO),
                "two measurements without noise gave the right line. Of more, each one "
                "counts: the sum of all squared relative errors is to be small": noise
                > 0,
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
        numels = random.randint(1, 50), 4 * n + 1, 0, random.randint(10**4, 10**9)
        asked += [(n, 4 * numel) for numel in numels]

    # another value than the default is a mistake
    def priced(steps=len, factor=1, whole=math.ceil, levels=math.ceil):
        halves = [_messages(way, n, size // 4, whole, levels) for n, size in asked]
        return [
            2 * MICRO * (steps(half) * alpha + 4 * factor * sum(half) * beta)
            for half in halves
        ]

    got = [
        _one(_scaled(allreduce_seconds(way, n, size, alpha, beta), MICRO))
        for n, size in asked
    ]
    right = priced()
    off = False  # the prices that they are, if something is not rounded up
    for whole, levels in product((math.ceil, *ROUNDED), (math.ceil, math.floor)):
        seconds = priced(whole=whole, levels=levels)
        if close(got, seconds):
            off = seconds
    hints = {
        "this is one half: sums come in, and go out again": [t / 2 for t in right],
        "alpha is paid in each step, not once": priced(steps=bool),
        "`size` is in bytes already: no factor of 4": priced(factor=4),
        "round up, to whole numbers and whole steps: all wait for the longest": off,
        "a step whose messages are all empty costs alpha, too": priced(
            steps=lambda half: sum(map(bool, half))
        ),
    }
    for (n, size), one, wanted in zip(asked, got, right):
        given = f"{n} ranks, size {size}, alpha {alpha:.4g} s, beta {beta:.4g} s a byte"
        also = {**hints, "one rank needs no steps: it has the sum": n == 1}
        yield about(given)(f"microseconds of {way!r}", one, wanted, also, whole=got)


def _one(values):
    """Return the only one of values, or all of them."""
    return values[0] if len(values) == 1 else values


def _messages(way, n, numel, whole, levels):
    """Return the numbers in the longest message of each step, of one half.

    whole, levels: how the numbers of a message are rounded, and how a logarithm is.
    """
    levels = levels(math.log2(n))
    if way == "halving-doubling":
        return [whole(numel / 2 ** (level + 1)) for level in range(levels)]
    longest = whole(numel / n) if way == "ring" else numel
    return [longest] * (levels if way == "tree" else n - 1)


@exercise("ps9/halving_doubling", points=5)
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
    powers = [held for held in several if not len(held) & len(held) - 1]
    for draws in powers, several[len(powers) :]:
        if draws is not powers:
            yield from _partners(halving_doubling, draws)
        yield from run_programs(
            draws, halving_doubling, summed_in_chunks, bounds, HALVES
        )


def _partners(program, draws):
    """Compare whether each rank's partner is there, where N is no power of two."""
    for held in draws:
        missing = False
        try:
            run_rounds(program, held)
        except RoundsError as error:
            missing = error.kind == "no such rank" and str(error)
        except Exception:  # it comes again in run_programs
            pass
        yield about(describe(numbers(held)))(
            "does a rank send to one that is not there?",
            missing,
            False,
            {
                "N is no power of two here, so rank ^ distance may be N or more: the "
                "ranks from M on are guests, without partners": True
            },
        )


@exercise(
    "ps9/two_level",
    points=3,
    cases=[(4, 2), (6, 2), (6, 3), (8, 4), (3, 3), (3, 1), (1, 1)],
)
def two_level(random, two_level, *, k, g):
    """Run it on nodes; what leaves a node is counted, too."""
    nodes, numel = k // g, random.randint(k, 3 * k)
    chunk = -(-numel // g)
    part = -(-chunk // nodes)
    outside = 2 * (nodes - 1) * part  # of each rank

    def bounds(k, sizes):
        return 2 * (g + nodes - 2), 2 * (g - 1) * chunk + outside, 2 * (k - 1)

    yield from run_programs(
        [[rand(random, numel) for _ in range(k)]],
        lambda rank, k, tensor: two_level(rank, k, tensor, g),
        partial(_on_levels, g),
        bounds,
        LEVELS,
        partial(_between, g, part, g * outside),
    )


def _on_levels(g, held, after, *others):
    """Yield how the ranks' tensors are not the sum; g ranks are in a node."""
    k, total = len(held), [sum(column) for column in zip(*held)]
    nodes, right = k // g, []  # of rank i's chunk i: how many parts are right
    for rank, row in enumerate(after):
        mine, wanted = (_in_chunks(values, g)[rank % g] for values in (row, total))
        right.append(
            sum(map(close, _in_chunks(mine, nodes), _in_chunks(wanted, nodes)))
        )
    chunk, part = ({count} == set(right) for count in (nodes, 1))
    if chunk or part:
        yield about(f"{describe(held)}, {g} in a node")(
            "all tensors",
            after,
            [total] * k,
            {
                "rank i of each node has the sum of chunk i, and that is all: hand the "
                "chunks round inside the node": chunk,
                "each rank has the sum of one part of its chunk: hand the parts round "
                "between the nodes, then the chunks inside": True,
            },
            LAST,
        )
    yield from summed_in_chunks(held, after, *others)


def _in_chunks(values, count):
    chunks = torch.tensor(values, dtype=torch.float64).tensor_split(count)
    return [chunk.tolist() for chunk in chunks]


def _between(g, part, most, held, done):
    """Compare what leaves each node with `most`; a message has a `part` at most."""
    out, steps, longest = [0] * (len(held) // g), [], 0
    for step, sender, receiver, count in done["messages"]:
        if sender // g != receiver // g:
            out[sender // g] += count
            steps.append(step)
            longest = max(longest, count)
    right = f"at most {most}"
    return about(f"{describe(held)}, {g} in a node")(
        "the numbers in the tensors are right; numbers out of each node",
        right if max(out) <= most else str(out),
        right,
        {
            "numbers leave a node in the first step: sum inside it first. Ranks 0 to "
            "g - 1 are node 0, the next g ranks node 1": g > 1
            and min(steps, default=0) == 1,
            f"up to {longest} numbers go between nodes at once: cut each chunk into M "
            f"parts, of {part} numbers at most": longest > part,
        },
    )


MISTAKES = {  # in best_cap: {hint: arguments of _best, for each that it is meant for}
    "a bucket that holds just `cap` bytes is full": [{"strict": True}],
    "a gradient that does not fit belongs to the bucket all the same: this is closed "
    "when it holds `cap` bytes or more, not before": [{"at_most": True}],
    "the last bucket is missing: it leaves, too, full or not": [{"forgot": True}],
    # two of which the numbers look alike: with both, the largest cap is the best
    "a bucket is ready when its last gradient is: not with its first, nor at the end "
    "of backward": [{"begun": True}, {"late": True}],
    "of several caps with the same end, the largest is wanted": [
        {"largest": False},
        {"largest": None},
    ],
}


@exercise("ps9/finish", points=4)
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
                "a bucket need not wait until all are ready": _end(
                    one, [(one.ready[-1], size) for size in one.sizes]
                ),
                "a bucket leaves when it is ready, not before": _end(
                    one, [(0, size) for size in one.sizes]
                ),
                "N - 1 steps add up, N - 1 more hand the sums round": _end(
                    one, buckets, halves=1
                ),
            },
        )
    found = [
        best_cap([*one.ready], [*one.sizes], one.link, one.n, [*one.caps])
        for one in several
    ]
    hints = {}
    for hint, mistakes in MISTAKES.items():
        hints[hint] = any(
            close(numbers(found), [_best(one, **how) for one in several])
            for how in mistakes
        )
    strange = any(cap not in one.caps for one, cap in zip(several, found))
    hints["this is none of `caps`: return the cap, not when it ends"] = strange
    hints["look at your buckets of the example in the task: are they 120 and 40?"] = (
        True
    )
    for one, cap in zip(several, found):
        yield one.say(f"best_cap of {one.caps}", cap, _best(one), hints)


def _situation(random, count):
    """Draw gradients; divisors are powers of two, so that equal ends are just equal."""
    sizes = [random.randint(1, 60) for _ in range(count)]
    full = {sum(sizes[i : i + n]) for n in (1, 2, 3) for i in range(count)}
    caps = [*full, 800, 900, 1000] if count % 2 else [*full]  # some hold all gradients
    return SimpleNamespace(
        sizes=sizes,
        ready=sorted(random.sample(range(1, 200), count)),
        n=random.choice([2, 4, 8]),
        caps=random.sample(caps, min(6, len(caps))),
        link=SimpleNamespace(
            alpha=random.randint(2, 24) / 8, bandwidth=random.choice([2.0, 4.0])
        ),
    )


def _buckets(one, cap, strict=False, at_most=False, begun=False, forgot=False):
    """Return (ready, size) of each bucket that gradients fill."""
    buckets = [(one.ready[0], 0)]
    for start, size in zip(one.ready, one.sizes):
        first, held = buckets[-1]
        full = held > cap if strict else held >= cap
        if held and (full or at_most and held + size > cap):
            buckets.append((start, size))
        else:
            buckets[-1] = first if begun and held else start, held + size
    return buckets[: len(buckets) - forgot]


def _end(one, buckets, queue=True, steps=None, chunks=None, halves=2):
    """Return when the last of these buckets has arrived."""
    now, rounds = 0, halves * (one.n - 1)
    for start, size in buckets:
        sent = rounds / (chunks or one.n) * size
        took = (steps or rounds) * one.link.alpha + sent / one.link.bandwidth
        now = max(now, start) + took if queue else max(now, start + took)
    return now


def _best(one, largest=True, late=False, **how):
    """Return the cap with the earliest end, and of several such caps the largest.

    largest: False for the smallest, None for the first in the list.
    """
    sign = {True: -1, False: 1, None: 0}[largest]

    def key(cap):
        buckets = _buckets(one, cap, **how)
        if late:
            buckets = [(one.ready[-1], size) for _, size in buckets]
        return _end(one, buckets), sign * cap

    return min(one.caps, key=key)
