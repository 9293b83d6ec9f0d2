"""All-reduces as programs of ranks: halving-doubling, and a ring on two levels.

    draw_halving, judge_halving    any number of ranks
    draw_levels, judge_levels      ranks on nodes; what leaves a node is counted

Steps and numbers are bounds, as in problem set 2: who needs less is right as well.
"""

from manual_dp.school import sums
from manual_dp.school.exercise import differ, so_many
from manual_dp.school.ps2.judge import judge_programs
from manual_dp.school.tools.plain import random_numbers

# ranks, how often they go into the numbers, and whether some numbers are left over
SIZES = [(4, 4, False), (2, 3, True), (1, 4, False), (8, 3, False), (4, 1, True),
         (3, 2, True), (8, 0, True), (6, 2, False), (5, 2, True)]
NODES = [(4, 2), (6, 3), (8, 4), (6, 2), (3, 3), (3, 1), (1, 1)]
HALVES = ("send half of what is still yours, then half of that, and so on: never the "
          "whole tensor, but of a guest",
          "partners send to each other in one step: there are log2 M distances, each "
          "is met twice")
LEVELS = ("inside a node chunks of the tensor go round, between nodes chunks of one "
          "chunk: never the whole tensor, and not through one rank",
          "all nodes go round at once, and so do all rings between nodes: the ranks "
          "number i of all nodes sum chunk i")


def draw_halving(random):
    """Draw each rank's tensor."""
    for world_size, whole, more in SIZES:
        extra = random.randint(1, world_size - 1) if more else 0
        yield {"tensors": random_numbers(random, world_size,
                                         whole * world_size + extra)}


def halving_bounds(k, sizes):
    """Return the bounds: steps, numbers out of a rank, and how often each is sent."""
    power = 2 ** (k.bit_length() - 1)
    numel, guests = sum(sizes), k > power
    return (2 * (power.bit_length() - 1) + 2 * guests,
            2 * (power - 1) * -(-numel // power) + guests * numel, 2 * (k - 1))


def judge_halving(case, got):
    """Judge the sums, then the counts."""
    yield from judge_programs(halving_bounds, HALVES, sums.judge_everywhere,
                              parts=sums.cut, where="chunk {} on rank {}")(case, got)


def draw_levels(random):
    """Draw each rank's tensor, and how many ranks a node has."""
    for world_size, per_node in NODES:
        whole, extra = random.randint(1, 2), random.randint(0, world_size - 1)
        if (world_size, per_node) in NODES[:3]:
            whole, extra = 2, 0
        yield {"per_node": per_node, "tensors": random_numbers(
            random, world_size, whole * world_size + extra)}


def level_bounds(k, numel, per_node):
    """Return the bounds: steps, numbers out of a rank, numbers out of a node."""
    nodes, chunk = k // per_node, -(-numel // per_node)
    part = -(-chunk // nodes)
    return (2 * (per_node - 1) + 2 * (nodes - 1),
            2 * (per_node - 1) * chunk + 2 * (nodes - 1) * part,
            2 * (nodes - 1) * per_node * part)


def judge_levels(case, got):
    """Judge the sums, then what leaves a node, then the other counts."""
    g = case["per_node"]

    def bounds(k, sizes):
        return *level_bounds(k, sum(sizes), g)[:2], 2 * (k - 1)

    def numbers(case, got, **how):
        yield from sums.judge_everywhere(case, got, **how)
        yield _between(case, got, g)
    yield from judge_programs(bounds, LEVELS, numbers, parts=sums.cut,
                              where=f"with {g} in a node: chunk {{}} on rank {{}}")(
        case, got)


def _between(case, got, g):
    """Return the message if a node sends the others too much."""
    k, numel = len(case["tensors"]), len(case["tensors"][0])
    most = level_bounds(k, numel, g)[2]
    out = [sum(count for _, sender, receiver, count in got["messages"]
               if sender // g == node != receiver // g) for node in range(k // g)]
    if max(out) <= most:
        return None
    ring = 2 * (k - 1) * -(-numel // k)
    return differ(
        f"{sums.describe(case)}, {so_many(g, 'rank')} in a node; the numbers in the "
        "tensors are right; numbers out of each node", out,
        f"at most {most} out of each node", [
            ("one ring over all ranks sends nearly everything twice out of each node",
             max(out) <= ring),
            ("each rank alone sends to other nodes: sum inside the node first", True)])
