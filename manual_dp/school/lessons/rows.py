"""The exercise of lesson 19: the rows that a rank still reads after a stop.

    rows_to_go   run an answer
    EXERCISES    with what is drawn, and what is right
"""

from manual_dp.school.exercise import Exercise, differ, so_many
from manual_dp.school.tools.plain import plainly


def rows_to_go(case, rows_to_go):
    """Ask each rank of the new number; all are given the same order."""
    order = list(case["order"])
    rows = [plainly(rows_to_go(order, case["seen"], rank, case["world_size"]))
            for rank in range(case["world_size"])]
    return {"rows": rows, "order": plainly(order)}


def _draw(random):
    for n, seen, world_size in ((12, 4, 2), (23, 8, 3), (10, 0, 2), (9, 9, 2),
                                (random.randint(30, 60), 12, 4), (17, 15, 4)):
        order = random.sample(range(n), n)
        yield {"order": order, "seen": seen, "world_size": world_size}


def _judge(case, got):
    order, seen, n = case["order"], case["seen"], case["world_size"]
    left, ranks = order[seen:], range(n)
    even = len(left) // n * n
    block = -(-len(left) // n)
    full = left + (left * n)[:-len(left) % n]
    given = f"order {order}, seen {seen}, {so_many(n, 'rank')}"
    yield differ(f"{given}; the order afterwards", got["order"], order, [
        ("the order is the caller's: leave it as it is", True)])
    yield differ(
        f"{given}; one list a rank", got["rows"],
        [left[rank::n] for rank in ranks], [
            ("these begin at the front again: the first `seen` rows have been read",
             [order[rank::n] for rank in ranks]),
            ("`seen` counts the rows of all ranks together, not of each",
             [order[seen * n:][rank::n] for rank in ranks]),
            ("every rank gets all that is left: each row is read several times",
             [left] * n),
            ("each rank skips as far as its own number, and then takes everything: "
             "take every `world_size`-th row",
             [left[rank:] for rank in ranks]),
            ("no row is lost or read twice, but these are blocks: deal them in turn",
             [left[rank * block:(rank + 1) * block] for rank in ranks]),
            ("the last rows are lost where they do not divide by the ranks",
             [left[:even][rank::n] for rank in ranks]),
            ("some rows are read twice, to give each rank as many: deal out only what "
             "is left", [full[rank::n] for rank in ranks]),
            ("these are places in the order, from `seen` on: return the rows that "
             "stand there", [[*range(seen + rank, len(order), n)] for rank in ranks]),
            ("these rows are sorted: keep them in the epoch's order",
             [sorted(left)[rank::n] for rank in ranks]),
            ("return the list of rows", [None] * n)])


EXERCISES = [Exercise("19/rows_to_go", 0, _draw, _judge)]
