"""Wrong answers to the exercises of lessons in cost.py."""

WRONG = {
    "many_machines/finish": (
        """
def finish(work, every, cost, deaths):
    clock, done = 0, 0
    deaths = <<DEATHS: [*deaths]>>
    while done < work:
        part = min(every, work - done)
        end = clock + part + <<SAVING: (cost if done + part < work else 0)>>
        while deaths and deaths[0] < clock:
            deaths.pop(0)
        if deaths and deaths[0] < <<UNTIL: end>>:
            clock = <<NOW: deaths.pop(0)>>
            done = <<LEFT: done>>
        else:
            clock, done = end, done + part
    return clock
""",
        {
            "nothing is saved at the very end": {"SAVING": "cost"},
            "a save takes time": {"SAVING": "0"},
            "a death costs the work": {"DEATHS": "[]"},
            "what was saved before a death": {"LEFT": "0"},
            "a save that is not finished": {"UNTIL": "clock + part"},
            "a save that is not": {
                "NOW": "(start := clock, deaths.pop(0))[1]",
                "LEFT": "done + (clock > start + part) * part",
            },
            "there is more than one death": {"DEATHS": "deaths[:1]"},
            "a part may die again": {
                "NOW": "end - clock + deaths.pop(0)",
                "LEFT": "done + part",
            },
            "at a death the run goes on at once": {"NOW": "end"},
            "without deaths this is right": {
                "NOW": "end + deaths.pop(0) % (every + cost)",
                "LEFT": "done + part",
            },
        },
    ),
    "count_price_look/allreduce": (
        """
def allreduce(size, ranks, alpha, bandwidth):
    rounds = <<ROUNDS: 2 * (ranks - 1)>>
    return <<RESULT: rounds * (alpha + <<CHUNK: size / ranks>> / bandwidth)>>
""",
        {
            "a round sends one chunk": {"CHUNK": "size"},
            "this is one message": {"RESULT": "alpha + size / bandwidth"},
            "this is half: the sums": {"ROUNDS": "ranks - 1"},
            "alpha is paid in every round": {
                "RESULT": "alpha + rounds * size / ranks / bandwidth"
            },
            "a message costs alpha": {"RESULT": "rounds * size / ranks / bandwidth"},
            "a ring of N ranks": {"ROUNDS": "2 * ranks"},
            "in a round all ranks send": {"ROUNDS": "ranks * 2 * (ranks - 1)"},
            "a byte takes 1 / bandwidth": {"CHUNK": "size / ranks * bandwidth**2"},
            "equal chunks of": {"CHUNK": "(size // ranks)"},
        },
    ),
    "count_price_look/two_levels": (
        """
def ring(size, n, alpha, bandwidth):
    return 2 * (n - 1) * (alpha + size / n / bandwidth)
def two_levels(size, nodes, each, inside, between):
    <<BEFORE: pass>>
    return <<INSIDE: ring(size, each, *inside)>> + ring(<<BYTES: size, nodes>>, *between)
""",
        {
            "all rings of a node share": {"BYTES": "size / each, nodes"},
            "a ring over all GPUs": {"INSIDE": "0", "BYTES": "size, nodes * each"},
            "half of the inner ring": {"INSIDE": "2 * ring(size, each, *inside)"},
            "the ring inside has": {"INSIDE": "ring(size, each, *inside) / 2"},
            "each ring between nodes": {
                "BEFORE": "between = between[0], between[1] / each"
            },
            "the rings of a node": {
                "BEFORE": "between = between[0] * each, between[1]"
            },
            "the links have changed places": {
                "BEFORE": "inside, between = between, inside"
            },
        },
    ),
    "count_price_look/sends": (
        """
def sends(forward, backward, size, buckets, price):
    bars, free = [], 0
    for i in range(buckets):
        full = <<FULL: forward + backward * (i + 1) / buckets>>
        start = <<START: max(full, free)>>
        free = start + <<PRICE: price(size / buckets)>>
        bars.append((start, <<END: free>>))
    return bars
""",
        {
            "all wait for the end": {"FULL": "forward + backward"},
            "these travel at the same time": {"START": "full"},
            "a bucket leaves before it is full": {"START": "free or full"},
            "the first is full": {"FULL": "forward + backward * i / buckets"},
            "the clock starts": {"FULL": "backward * (i + 1) / buckets"},
            "every bucket sends all": {"PRICE": "price(size)"},
            "divide the bytes, not": {"PRICE": "price(size) / buckets"},
            "the second number is": {"END": "free - start"},
        },
    ),
}
