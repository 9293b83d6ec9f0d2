"""The exercise of lesson 18: the bytes that a rank keeps, by ZeRO's stages.

    zero_bytes   run an answer
    EXERCISES    with what is drawn, and what is right
"""

from manual_dp.school.exercise import Exercise, differ
from manual_dp.school.tools.plain import plainly

STAGES = 0, 1, 2, 3


def zero_bytes(case, zero_bytes):
    """Ask for the four stages at some world sizes, one after the other."""
    return [plainly(zero_bytes(case["params"], world_size, stage))
            for world_size in case["world_sizes"] for stage in STAGES]


def _draw(random):
    for params in (1024, 256 * random.randint(10, 10**6), 7_500_000_000):
        # all divide: whole bytes and shards of whole weights are right, too
        yield {"params": params, "world_sizes": [1, 2, 8, 2 ** random.randint(4, 8)]}


def _bytes(case, weight, gradient, adam):
    """Return what these functions of (N, stage) give, times the weights."""
    return [case["params"] * (weight(n, stage) + gradient(n, stage) + adam(n, stage))
            for n in case["world_sizes"] for stage in STAGES]


def _from(stage, size):
    """Return a function: `size` bytes, cut into N parts from this stage on."""
    return lambda n, now: size / n if now >= stage else size


def _judge(case, got):
    wanted = _bytes(case, _from(3, 2), _from(2, 2), _from(1, 12))
    ranks = [n for n in case["world_sizes"] for _ in STAGES]
    sizes = ", ".join(map(str, case["world_sizes"]))
    yield differ(
        f"{case['params']:,} weights, {sizes} ranks, 4 stages of each", got, wanted, [
            ("nothing is shared out: from stage 1 on, Adam's 12 bytes are divided by "
             "the ranks", [16 * case["params"]] * len(wanted)),
            ("stage 1 shares out Adam's 12 bytes only: weights, gradients stay whole",
             _bytes(case, _from(1, 2), _from(1, 2), _from(1, 12))),
            ("each stage shares out one thing more, besides what was shared out before",
             _bytes(case, lambda n, s: 2 / n if s == 3 else 2,
                    lambda n, s: 2 / n if s == 2 else 2,
                    lambda n, s: 12 / n if s == 1 else 12)),
            ("here stage 0 is what stage 1 should be: count from stage 0, DDP",
             _bytes(case, _from(2, 2), _from(1, 2), _from(0, 12))),
            ("Adam has 12 bytes for each weight: the weight in 32 bits counts, too",
             _bytes(case, _from(3, 2), _from(2, 2), _from(1, 8))),
            ("weights and gradients have 16 bits here, 2 bytes each",
             _bytes(case, _from(3, 4), _from(2, 4), _from(1, 8))),
            ("this is the memory of all ranks together: what does one rank keep?",
             [n * value for n, value in zip(ranks, wanted)]),
            ("this is in gigabytes: return bytes", [value / 1e9 for value in wanted]),
            ("this is for one weight: multiply by `params`",
             [value / case["params"] for value in wanted]),
            ("return the bytes", [None] * len(wanted))])


EXERCISES = [Exercise("18/zero_bytes", 0, _draw, _judge)]
