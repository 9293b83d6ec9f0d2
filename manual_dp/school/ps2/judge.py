"""Problem set 2, all-reduce that scales: what is drawn, and what would be right.

A right answer has the right numbers and reaches two counts, the steps and the numbers
out of the busiest rank. Both are bounds: who needs less is right as well.
"""

from manual_dp.school.exercise import Exercise, close, differ, random_numbers
from manual_dp.school.ps2.sums import (
    add,
    cut,
    describe,
    flat,
    judge_copies,
    judge_everywhere,
    judge_sums,
    not_written,
)

# ranks, how often they go into the numbers, and whether some numbers are left over.
# Three ranks come first: of two, each is the other's left and right neighbour.
SIZES = [(3, 2, False), (2, 2, True), (1, 4, False), (3, 1, True), (4, 2, True),
         (4, 0, True), (5, 2, True), (7, 2, True), (7, 0, True), (8, 1, True),
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


def _judge_reduce_scatter(case, got):
    tensors, k = case["tensors"], len(case["tensors"])
    before = [cut(row, k) for row in tensors]
    after = [cut(row, k) for row in got["tensors"]]
    wanted = cut(add(tensors), k)
    shift = next((shift for shift in range(1, k) if all(
        close(after[(i + shift) % k][i], wanted[i]) for i in range(k))), 0)
    places = [(f"chunk {i} on rank {i}", after[i][i], [row[i] for row in before])
              for i in range(k)]
    return (judge_sums(case, places, [
        *not_written(case, got, [wanted, [add(tensors)] * k]),
        (f"the chunks are finished on other ranks, chunk 0 on rank {shift}; chunk i "
         "belongs on rank i", shift > 0)], _other_chunk(case))
        or _counts(case, got, k - 1, _all_but_one_chunk(case), k - 1, RING))


def _judge_allgather(case, got):
    k = len(case["tensors"])
    return (judge_copies(case, got, _other_chunk(case))
            or _counts(case, got, k - 1, _all_but_one_chunk(case), k - 1, RING))


def _judge_ring(case, got):
    k = len(case["tensors"])
    return (judge_everywhere(case, got, lambda row: cut(row, k), "chunk {} on rank {}",
                             _other_chunk(case))
            or _counts(case, got, 2 * (k - 1), 2 * _all_but_one_chunk(case),
                       2 * (k - 1), RING))


def _judge_spread(case, got):
    k, sizes = len(case["tensors"]), [len(flat(p)) for p in case["tensors"][0]]
    owned = [sum(sizes[rank::k]) for rank in range(k)]
    busiest = max(sum(sizes) - own + (k - 1) * own for own in owned)
    return (judge_everywhere(case, got, list, "parameter {} on rank {}")
            or _counts(case, got, 2 * (k - 1), busiest, 2 * (k - 1), SPREAD))


def _judge_tree(case, got):
    k, levels = len(case["tensors"]), (len(case["tensors"]) - 1).bit_length()
    return (judge_everywhere(case, got, lambda row: [row], "the tensor on rank {1}")
            or _counts(case, got, 2 * levels, levels * len(case["tensors"][0]),
                       2 * (k - 1), TREE))


def _counts(case, got, steps, busiest, times, hints):
    """Judge steps and numbers sent; each number has to be sent `times` at least.

    N - 1 ranks must send it on for it to be summed up somewhere, and from there it must
    reach N - 1 ranks: that can be got round, but not done with less.
    """
    sent, k = got["sent"], len(case["tensors"])
    most, enough = max(sent), sum(sent) >= times * len(flat(case["tensors"][0]))
    if len(sent) == k and got["steps"] <= steps and most <= busiest and enough:
        return None
    star = (2 < k <= len(flat(case["tensors"][0])) and got["steps"] == 2 * (k - 1)
            and most >= 2 * sorted(sent)[-2])
    much, slow = hints
    return differ(
        f"{describe(case)}; the numbers in the tensors are right; steps, and numbers "
        "out of each rank", f"steps {got['steps']}, out of each rank {sent}",
        f"steps at most {steps}, out of each rank at most {busiest}", [
            ("numbers came to a rank without being sent: a rank may use its own tensor "
             "and what arrives, and nothing else", not enough),
            (f"rank {sent.index(most)} is the centre of a star: everything goes "
             "through it", star),
            (slow, got["steps"] > steps), (much, True)])


def _all_but_one_chunk(case):
    k, numel = len(case["tensors"]), len(case["tensors"][0])
    return numel - numel // k


def _other_chunk(case):
    if len(case["tensors"][0]) % len(case["tensors"]):
        return ("the tensor is cut at other places: the chunks are "
                "tensor.tensor_split(world_size), the first ones longer by one", True)
    return ("numbers of another chunk have come in: which of its chunks does the left "
            "neighbour send in this step?", True)


def _if_finished(judge):
    def judge_finished(case, got):
        if "stopped" in got:
            return differ(describe(case), f"stopped: {got['stopped']}", "every message "
                          "can be delivered, and every program comes to its end",
                          [(hint, got["kind"] == kind) for kind, hint in STOPS.items()])
        return judge(case, got)
    return judge_finished


EXERCISES = [
    Exercise("ps2/reduce_scatter", 4, _draw, _if_finished(_judge_reduce_scatter)),
    Exercise("ps2/allgather", 2, _draw, _if_finished(_judge_allgather)),
    Exercise("ps2/ring_allreduce", 2, _draw, _if_finished(_judge_ring),
             cells=("reduce_scatter", "allgather", "ring_allreduce")),
    Exercise("ps2/spread_allreduce", 4, _draw_params, _if_finished(_judge_spread)),
    Exercise("ps2/tree_allreduce", 4, _draw, _if_finished(_judge_tree)),
]
