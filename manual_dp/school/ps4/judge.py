"""Problem set 4, DDP by hand: what is drawn, and what would be right.

    one_each     were the right all-reduces sent: one for each parameter
    in_buckets   one for each bucket, the last layer's first
    quiet        none in no_sync, where gradients add up on their rank; then one each

Each of these takes `steps`, what the ranks return for one step, and what truth.alone
yields; it yields what is not so, as messages for the learner.
"""

from functools import partial
from itertools import accumulate

from manual_dp.school.exercise import (
    WAITED,
    Exercise,
    differ,
    each,
    failed,
    so_many,
)
from manual_dp.school.ps4.run import network
from manual_dp.school.ps4.truth import alone, begin, draw, some, weights

FROZEN, TIED, SPARE = 42, 36, 3  # how many numbers these have
UNNAMED = "nothing was sent: call dist.all_reduce, by this name"


def _judge_start(case, got):
    k = case["world_size"]
    yield _failed(case, got)
    yield from begin(case, got["ranks"], "start_equal")
    for number, (_, _, after) in enumerate(alone(case)):
        ranks = each(each(got["ranks"], "steps"), number)
        for name, wanted in after.items():
            yield some(
                f"{so_many(k, 'rank')}, each training on all rows; {name} on every "
                f"rank after step {number + 1}",
                each(each(ranks, "weights"), name), [wanted] * k, [
                    ("the optimizer was made before: it holds the old tensors. Write "
                     "into them, and leave what is frozen or tied so", True)])


def _judge_steps(case, got, messages):
    yield _failed(case, got)
    if messages is quiet:
        yield from begin(case, got["ranks"], "DDP(module)")
    for number, truth in enumerate(alone(case)):
        ranks = each(each(got["ranks"], "steps"), number)
        yield from messages(case, number, ranks, truth)
        yield from weights(case, number, ranks, truth)


def _failed(case, got):
    k = case["world_size"]
    return failed(
        f"{so_many(k, 'rank')}, {len(case['steps'])} steps of SGD", got,
        "weights from every rank", [
            ("a parameter has gradient None on a rank whose rows did not use it: that "
             "counts as zero", "'NoneType'"),
            ("what is frozen wants no gradient, and so takes no hook",
             "hook on a tensor that doesn't require grad"),
            ("all ranks must call the same collectives in the same order: those who "
             "receive call broadcast, too, and a gradient may be None on one of them",
             k > 1 and WAITED)])


def one_each(case, number, steps, _):
    """Compare with an all-reduce for each parameter."""
    wanted = list(_sizes(case).values())
    for rank, step in enumerate(steps):
        got = step["messages"]
        if sorted(map(str, got)) == sorted(map(str, wanted)):
            continue
        left_out = [name for name, numel in _sizes(case).items() if numel not in got]
        yield differ(
            f"rank {rank} of {case['world_size']}, step {number + 1}; numbers in each "
            "all-reduce, in any order", got, wanted, [
                ("a no_sync block that ended in an error before this step is still in "
                 "force: use try and finally", "interrupted" in case["steps"][number]),
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
    numels = list(_sizes(case).values())[::-1]
    wanted = _pack(numels, cap)
    for rank, step in enumerate(steps):
        got = step["messages"]
        more = sum(size for size in got if isinstance(size, int)) - sum(numels)
        yield differ(
            f"rank {rank} of {case['world_size']}, step {number + 1}, bucket_bytes "
            f"{cap}, float64 gradients of {numels} numbers (last first); numbers in "
            "each all-reduce", got, wanted, [
                (UNNAMED, []),
                ("one all-reduce for each parameter: pack them first", numels),
                ("one bucket for all", [sum(numels)]),
                ("the last parameter's gradient is packed first",
                 _pack(numels[::-1], cap)),
                ("the last bucket has to be sent too, full or not", wanted[:-1]),
                ("the first bucket is left out", wanted[1:]),
                ("these buckets close once they are full; close a bucket before it "
                 "would hold too much", _pack(numels, cap, closes=True)),
                ("exactly so many bytes still fit", _pack(numels, cap - 1)),
                ("bucket_bytes counts bytes: a number has 8", _pack(numels, cap * 8)),
                ("bucket_bytes counts bytes, and a float64 has 8 of them, not 4",
                 _pack(numels, cap * 2)),
                ("a gradient that is None is packed too, as zeros",
                 _pack([numel for numel in numels if numel != SPARE], cap)),
                (f"{FROZEN} more than wanted is the frozen weight", more == FROZEN),
                (f"{TIED} more than wanted is the tied weight, which is sent once",
                 more == TIED)])


def _pack(numels, cap, closes=False):
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
        yield differ(f"{who}; a no_sync block raised InterruptedError: is the error "
                     "lost?", step["swallowed"], False, [
            ("an error that ends the block must come out of it: finally without "
             "except, and no return in it", True)])
        yield differ(f"{who}; numbers in each all-reduce in no_sync", step["quiet"],
                     [], [("in no_sync nothing is sent", True)])
        for name in _sizes(case):
            parts = [part[name] for part in truth[1][rank][:-1]]
            yield some(
                f"{who}; gradient of {name} after each backward in no_sync",
                [grads[name] for grads in step["alone"]], list(accumulate(parts)), [
                    ("gradients add up, they do not replace one another", parts),
                    ("in no_sync a gradient stays as backward has left it", True)])
    yield from one_each(case, number, steps, truth)


def _sizes(case):
    """Return {name: numel} of each parameter that wants a gradient, in order."""
    return {name: p.numel() for name, p in
            network(0, case["spare"]).named_parameters() if p.requires_grad}


def _draw_start(random):
    for case in draw(random):
        for step in case["steps"]:  # each rank is to train on all rows
            X, y = (sum(lists, []) for lists in zip(*sum(step["shards"], [])))
            step["shards"] = [[(X, y)]] * case["world_size"]
            step["rows"] *= case["world_size"]
        yield case


def _draw_buckets(random):
    for case in draw(random, spare=True, equal=True):
        # each alone; exactly full; with room left; exactly full; one for all
        numbers = [random.randint(8, 13), 19, random.randint(57, 67), 56,
                   random.randint(147, 999)]
        for step, count in zip(case["steps"], numbers):
            step["arguments"] = [8 * count]
        yield case


def _draw_ddp(random):
    for case in draw(random, backwards=(1, 3, 1, 2, 3)):
        case["steps"][2]["interrupted"] = True
        yield case


EXERCISES = [
    Exercise("ps4/start_equal", 3, _draw_start, _judge_start),
    Exercise("ps4/average_gradients", 4, partial(draw, spare=True, equal=True),
             partial(_judge_steps, messages=one_each)),
    Exercise("ps4/average_in_buckets", 4, _draw_buckets,
             partial(_judge_steps, messages=in_buckets)),
    Exercise("ps4/average_in_hooks", 3, partial(draw, equal=True),
             partial(_judge_steps, messages=one_each)),
    Exercise("ps4/DDP", 4, _draw_ddp, partial(_judge_steps, messages=quiet),
             parts=("start_equal",), beside=("start_equal",)),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
