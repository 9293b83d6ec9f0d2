"""Right answers to the exercises of lessons in cost.py."""

from tests.course.school.right import changed

RIGHT = {
    "many_machines/finish": {
        "a death at a time, the saves before it counted": """
import math
def finish(work, every, cost, deaths):
    start = done = 0
    for death in [*deaths, math.inf]:
        left = work - done
        needed = left + cost * (math.ceil(left / every) - 1)
        if start + needed <= death:
            return start + needed
        done += (death - start) // (every + cost) * every
        start = death
""",
        "a queue": """
from collections import deque
def finish(work, every, cost, deaths):
    waiting, clock, saved = deque(deaths), 0.0, 0.0
    while True:
        last = saved + every >= work
        end = clock + (work - saved if last else every + cost)
        if not waiting or end <= waiting[0]:
            if last:
                return end
            clock, saved = end, saved + every
        else:
            clock = waiting.popleft()
""",
    },
    "count_price_look/allreduce": {
        "all alphas, then all bytes": changed(
            "count_price_look/allreduce",
            RESULT="rounds * alpha + rounds / ranks * size / bandwidth",
        ),
        "round by round": """
def allreduce(size, ranks, alpha, bandwidth):
    seconds = 0
    for phase in "reduce-scatter", "all-gather":
        for step in range(ranks - 1):
            seconds += alpha + size / ranks / bandwidth
    return seconds
""",
    },
    "count_price_look/two_levels": {
        "a loop over the levels": """
def two_levels(size, nodes, each, inside, between):
    levels, seconds = [(each, *inside), (nodes, *between)], 0
    for n, alpha, bandwidth in levels:
        seconds += 2 * (n - 1) * alpha + 2 * (n - 1) * size / n / bandwidth
    return seconds
""",
        "shared links": """
def two_levels(size, nodes, each, inside, between):
    def ring(size, n, alpha, bandwidth):
        return 2 * (n - 1) * (alpha + size / n / bandwidth)
    alpha, bandwidth = between
    return ring(size, each, *inside) + ring(size / each, nodes, alpha, bandwidth / each)
""",
    },
    "count_price_look/sends": {
        "lists, without a variable for the wire": """
def sends(forward, backward, size, buckets, price):
    bars = []
    for i in range(1, buckets + 1):
        start = max([forward + i * backward / buckets, *(end for _, end in bars)])
        bars.append([start, start + price(size / buckets)])
    return bars
""",
        "a generator": changed(
            "count_price_look/sends",
            ("bars.append((start, free))", "yield start, free"),
            ("    return bars\n", ""),
        ),
    },
}
