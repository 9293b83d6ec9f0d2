"""Problem set 2, all-reduce that scales: what is drawn, and what would be right.

A right answer has the right numbers and reaches two counts, the steps and the numbers
out of the busiest rank. Both are bounds: who needs less is right as well.
"""

from manual_dp.school import sums
from manual_dp.school.exercise import Exercise, differ, flat
from manual_dp.school.tools.plain import random_numbers

# ranks, how often they go into the numbers, and whether some numbers are left over.
# Three ranks come first: of two, each is the other's left and right neighbour.
SIZES = [(3, 2, False), (2, 2, True), (1, 4, False), (3, 1, True), (4, 2, True),
         (4, 0, True), (5, 2, True), (7, 2, True), (7, 0, True), (6, 1, True),
         (8, 2, False)]
PARAMS = [(3, 6), (2, 3), (1, 3), (3, 5), (3, 2), (4, 6), (4, 8), (5, 7), (7, 4),
          (8, 9)]

# what to say of too many numbers, and of too many steps
RING = ("send one chunk in a step, never the whole tensor, and none twice in N - 1 "
        "steps: round a ring, a rank sends on the chunk that came last",
        "all ranks send at once, each to the next one, and a chunk has only N - 1 "
        "others to meet")
SPREAD = ("to an owner go its own parameters, from an owner go its own parameters, "
          "and no others",
          "in one step all ranks can send, if each sends to another one, and a message "
          "may hold several parameters")
TREE = ("a rank hands its sum up once, and the whole down at most once at each "
        "distance",
        "all pairs at one distance send in the same step, and there are ceil(log2 N) "
        "distances")

# what to say where a program was stopped
STOPS = {
    "no yield": "without a yield this is a plain function; a rank that has nothing to "
                "send still has one, for what arrives",
    "a program": "another program runs inside this one by yield from",
    "no such rank": "look whether there is such a rank; round a ring, the last one's "
                    "neighbour is rank 0: (rank + 1) % world_size",
    "itself": "begin at distance 1: at distance 0 a rank meets itself",
    "at once": "in one step every rank sends to another one; a rank that has nothing "
               "to send yields all the same, and so stays in step",
    "endless": "all wait to be sent something: somebody has to begin",
}


def _draw(random):
    for world_size, whole, more in SIZES:
        extra = random.randint(1, world_size - 1) if more else 0
        yield {"tensors": random_numbers(random, world_size,
                                         whole * world_size + extra)}


def _draw_params(random):
    for number, (world_size, count) in enumerate(PARAMS):
        # all of one shape in the first, so that a wrong place is no error of shapes
        shapes = [(random.randint(1, 4), *random.choice([(), (2,)])) if number else (2,)
                  for _ in range(count)]
        yield {"params": True, "tensors": [
            [random_numbers(random, *shape) for shape in shapes]
            for _ in range(world_size)]}


def _other_chunk(case):
    if len(case["tensors"][0]) % len(case["tensors"]):
        yield ("the tensor is cut at other places: the chunks are "
               "tensor.tensor_split(world_size), the first ones longer by one", True)
    yield ("numbers of another chunk have come in: which of its chunks does the left "
           "neighbour send in this step?", True)


def _round_a_ring(k, sizes):
    """Return the bounds: steps, numbers out of a rank, and how often each is sent.

    How often at least: N - 1 ranks must send a number on for it to be summed up
    somewhere, and from there it must reach N - 1 ranks: that can be got round, but not
    done with less.
    """
    return k - 1, sum(sizes) - sum(sizes) // k, k - 1


def _twice_round_a_ring(k, sizes):
    return [2 * bound for bound in _round_a_ring(k, sizes)]


def _over_all_ranks(k, sizes):
    owned = [sum(sizes[rank::k]) for rank in range(k)]
    return (2 * (k - 1), max(sum(sizes) + (k - 2) * own for own in owned), 2 * (k - 1))


def _up_and_down_a_tree(k, sizes):
    levels = (k - 1).bit_length()
    return 2 * levels, levels * sum(sizes), 2 * (k - 1)


def judge_programs(bounds, hints, numbers, **how):
    """Return the judge of programs: they end, with right numbers, within bounds."""
    def judge(case, got):
        if "stopped" in got:
            yield differ(sums.describe(case), f"stopped: {got['stopped']}",
                         "every message can be delivered, and every program comes to "
                         "its end",
                         [(hint, got["kind"] == kind) for kind, hint in STOPS.items()])
        yield from numbers(case, got, **how)
        sizes = [len(flat(part)) for part in case["tensors"][0]]
        yield _counts(case, got, sum(sizes), bounds(len(case["tensors"]), sizes), hints)
    return judge


def _counts(case, got, numel, bounds, hints):
    sent, k, (steps, busiest, times), (much, slow) = (
        got["sent"], len(case["tensors"]), bounds, hints)
    most, enough = max(sent), sum(sent) >= times * numel
    if len(sent) == k and got["steps"] <= steps and most <= busiest and enough:
        return None
    star = (2 < k <= numel and got["steps"] == 2 * (k - 1)
            and most >= 2 * sorted(sent)[-2])
    return differ(
        f"{sums.describe(case)}; the numbers in the tensors are right; steps, and "
        "numbers out of each rank", f"steps {got['steps']}, out of each rank {sent}",
        f"steps at most {steps}, out of each rank at most {busiest}", [
            ("numbers came to a rank without being sent: a rank may use its own tensor "
             "and what arrives, and nothing else", not enough),
            (f"rank {sent.index(most)} is the centre of a star: everything goes "
             "through it", star),
            (slow, got["steps"] > steps), (much, True)])


EXERCISES = [
    Exercise("ps2/reduce_scatter", 4, _draw, judge_programs(
        _round_a_ring, RING, sums.judge_chunks, late=_other_chunk)),
    Exercise("ps2/allgather", 2, _draw, judge_programs(
        _round_a_ring, RING, sums.judge_copies, late=_other_chunk)),
    Exercise("ps2/ring_allreduce", 2, _draw, judge_programs(
        _twice_round_a_ring, RING, sums.judge_everywhere, parts=sums.cut,
        where="chunk {} on rank {}", late=_other_chunk),
             parts=("reduce_scatter", "allgather"),
             beside=("reduce_scatter", "allgather")),
    Exercise("ps2/spread_allreduce", 4, _draw_params, judge_programs(
        _over_all_ranks, SPREAD, sums.judge_everywhere, parts=lambda params, _: params,
        where="parameter {} on rank {}")),
    Exercise("ps2/tree_allreduce", 4, _draw, judge_programs(
        _up_and_down_a_tree, TREE, sums.judge_everywhere)),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
