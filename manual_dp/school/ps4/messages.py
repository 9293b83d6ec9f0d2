"""What problem set 4 says of the all-reduces that were counted.

    one_each     one for each parameter that wants a gradient
    in_buckets   one for each bucket, the last layer's first
    quiet        none in no_sync, where gradients add up on their rank; then one each

Each takes `steps`, what the ranks return for one step, and what truth.alone yields; it
yields what is not so, as messages for the learner.
"""

from itertools import accumulate

from manual_dp.school.exercise import differ
from manual_dp.school.ps4.truth import sizes
from manual_dp.school.ps4.words import some

FROZEN, TIED, SPARE = 42, 36, 3  # how many numbers these have
UNNAMED = "nothing was sent: call dist.all_reduce, by this name"


def one_each(case, number, steps, _):
    """Compare with an all-reduce for each parameter."""
    wanted = list(sizes(case).values())
    for rank, step in enumerate(steps):
        got = step["messages"]
        if sorted(map(str, got)) == sorted(map(str, wanted)):
            continue
        left_out = [name for name, numel in sizes(case).items() if numel not in got]
        yield differ(
            f"rank {rank} of {case['world_size']}, step {number + 1}; numbers in each "
            "all-reduce, in any order", got, wanted, [
                ("a no_sync block that ended in an error before this step is still in "
                 "force: use try and finally", case["steps"][number]["interrupted"]),
                (UNNAMED, []),
                ("of dist, all_reduce is all that is needed",
                 any(isinstance(size, str) for size in got)),
                (f"{FROZEN} is the frozen weight: it wants no gradient", FROZEN in got),
                (f"{TIED} is the tied weight: two layers share one parameter, which is "
                 "sent once", got.count(TIED) == 2 and len(got) == len(wanted) + 1),
                ("all hooks reduce the same parameter: use the hook's argument",
                 len(got) == len(wanted) and len(set(got)) == 1),
                ("these are packed; here each gradient is sent by itself",
                 [sum(wanted)]),
                ("a gradient that is None is sent too, as zeros",
                 bool(left_out) and {"side.weight", "spare.weight"} >= {*left_out}),
                (f"left out: {', '.join(left_out)}", bool(left_out)),
                ("some are sent more than once", len(got) > len(wanted))])


def in_buckets(case, number, steps, _):
    """Compare with an all-reduce for each bucket, the last layer's first."""
    (cap,) = case["steps"][number]["arguments"]
    numels = list(sizes(case).values())[::-1]
    wanted = pack(numels, cap)
    for rank, step in enumerate(steps):
        got = step["messages"]
        yield differ(
            f"rank {rank} of {case['world_size']}, step {number + 1}, bucket_bytes "
            f"{cap}, float64 gradients of {numels} numbers (last first); numbers in "
            "each all-reduce", got, wanted, [
                (UNNAMED, []),
                ("one all-reduce for each parameter: pack them first", numels),
                ("one bucket for all", [sum(numels)]),
                ("the last parameter's gradient is packed first",
                 pack(numels[::-1], cap)),
                ("the last bucket has to be sent too, full or not", wanted[:-1]),
                ("the first bucket is left out", wanted[1:]),
                ("these buckets close once they are full; close a bucket before it "
                 "would hold too much", pack(numels, cap, closes=True)),
                ("exactly so many bytes still fit", pack(numels, cap - 1)),
                ("bucket_bytes counts bytes: a number has 8", pack(numels, cap * 8)),
                ("bucket_bytes counts bytes, and a float64 has 8 of them, not 4",
                 pack(numels, cap * 2)),
                ("a gradient that is None is packed too, as zeros",
                 pack([numel for numel in numels if numel != SPARE], cap)),
                (f"{FROZEN} more than wanted is the frozen weight",
                 _total(got) == sum(numels) + FROZEN),
                (f"{TIED} more than wanted is the tied weight, which is sent once",
                 _total(got) == sum(numels) + TIED)])


def _total(numels):
    return sum(numel for numel in numels if not isinstance(numel, str))


def pack(numels, cap, closes=False):
    """Return how many numbers are in each bucket of at most `cap` bytes.

    closes: buckets close once they hold the cap or more, as those of lesson 09.
    """
    buckets, room = [], 0
    for numel in numels:
        if room <= 0 or (room < numel and not closes):
            buckets.append(0)
            room = cap / 8
        buckets[-1] += numel
        room -= numel
    return buckets


def quiet(case, number, steps, truth):
    """Compare with nothing in no_sync, and gradients there with their sums."""
    for rank, step in enumerate(steps):
        who = f"rank {rank} of {case['world_size']}, step {number + 1}"
        yield differ(f"{who}; numbers in each all-reduce in no_sync", step["quiet"],
                     [], [("in no_sync nothing is sent", True)])
        for name in sizes(case):
            parts = [part[name] for part in truth[1][rank][:-1]]
            yield some(
                f"{who}; gradient of {name} after each backward in no_sync",
                [grads[name] for grads in step["alone"]], list(accumulate(parts)), [
                    ("gradients add up, they do not replace one another", parts),
                    ("in no_sync a gradient stays as backward has left it", True)])
    yield from one_each(case, number, steps, truth)
