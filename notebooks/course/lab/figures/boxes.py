"""Who is where, and what belongs together: boxes, with few arrows.

memory      which ranks hold which memory                           replicas
worlds      a list in one process, and a process a rank             processes
relay       what each rank holds and passes on, round by round      processes
calls       which calls of a collective met                         processes
hosts       hosts, the torchrun on each, its ranks                  many_machines
"""

from itertools import zip_longest

from course.lab.figures import svg
from course.lab.figures.lanes import join_pairs, so_many
from course.lab.figures.plot import INK
from course.lab.figures.svg import WIDTH, rank_colour

WARN = "#b3261e"


def memory(addresses_by_label):
    """Draw for each label its ranks, its places in memory, and who holds which.

    addresses_by_label: a dict from a label to each rank's `data_ptr()`. Only whether
    two are equal is used, so that the picture is the same in every run.
    """
    said = {
        label: f"{so_many(len(set(addresses)), 'tensor')} in memory for "
        f"{so_many(len(addresses), 'rank')}"
        for label, addresses in addresses_by_label.items()
    }
    card = svg.Card(152 * len(said) + 6, f"Who holds which memory. {join_pairs(said)}")
    card.y = 4
    for label, addresses in addresses_by_label.items():
        card.heading(label, 16, 16, font_family="monospace")
        card.text(said[label], WIDTH - 16, 16, 13, INK, "end")
        columns = _columns(len(addresses), 8)
        holders = {}  # the columns of the ranks that hold each address
        for column, address in zip(columns, addresses):
            holders.setdefault(address, []).append(column)
        for held_by in holders.values():
            _held(card, held_by)
        for rank, x, width in columns:
            card.box(x - width / 2, 34, width, 28, f"rank {rank}", rank_colour(rank))
        card.y += 152
    return card.picture()


def _columns(number, gap):
    """Return (rank, middle, width) of each rank's column."""
    wide = (WIDTH - 32) / number
    width = min(wide - gap, 92)
    columns = []
    for rank in range(number):
        columns.append((rank, 16 + wide * (rank + 0.5), width))
    return columns


def _held(card, columns):
    """Draw a place in memory below the ranks that hold it: a stripe for each."""
    many, width = len(columns), columns[0][2]
    middle = sum(x for _, x, _ in columns) / many
    for i, (rank, x, _) in enumerate(columns):
        from_middle = i - (many - 1) / 2
        aim = middle + from_middle * width / (many + 1)
        card.arrow((x, 62), (aim, 102), rank_colour(rank), 2)
    left = middle - width / 2
    style = {"colour": svg.PALE, "stroke": INK, "stroke_width": 1.5}
    card.box(left, 104, width, 36, **style, rx=2)
    stripe = (width - 6) / many
    for i, (rank, _, _) in enumerate(columns):
        x, colour = left + 3 + stripe * i, rank_colour(rank)
        card.box(x, 107, stripe, 8, rx=0, colour=colour)
    card.text("weights", middle, 127, 12 if width > 50 else 10.5)


def worlds(alone, apart):
    """Draw the numbers of a list in one process, and those of the ranks' processes.

    alone: the list. apart: what each rank holds, in rank order; as many.
    """
    many = f"{len(apart)} processes" if len(apart) > 1 else "1 process"
    card = svg.Card(
        276,
        f"One process with a list of {len(alone)}, and {many} that "
        "hold one number each and send messages",
    )
    columns = _columns(len(alone), 10)
    card.heading("lessons 0 to 7: one process holds a list", 16, 18, 13)
    card.box(16, 34, WIDTH - 32, 78, colour=svg.PALE, stroke=INK)
    for rank, x, width in columns:
        card.box(x - width / 2, 44, width, 36, f"{alone[rank]:g}", rank_colour(rank))
        card.text(f"[{rank}]", x, 98, 11, font_family="monospace")
    card.heading("from now on: a process for each rank", 16, 132, 13)
    for rank, x, width in columns:
        left = x - width / 2
        card.box(left - 3, 146, width + 6, 76, colour=svg.PALE, stroke=INK)
        card.text(f"rank {rank}", x, 162, 11)
        number = f"{apart[rank]:g}"
        card.box(left + 3, 178, width - 6, 36, number, rank_colour(rank))
    for (_, x, _), (_, peer, _) in zip(columns, columns[1:]):
        card.arrow((x + 4, 240), (peer - 4, 240), INK, both=True)
    card.text(
        "nothing is shared: what a rank has to know is sent to it", WIDTH / 2, 262
    )
    return card.picture()


def relay(states):
    """Draw a ring without chunks: the sum that each rank holds, and what it passes on.

    states: at the start and after each round, for each rank (sum, number to pass on,
    the rank that this number began at). An arrow carries the number to the right.
    """
    rounds, ranks = len(states) - 1, len(states[0])
    title = f"A ring of {so_many(ranks, 'rank')} without chunks, round after round"
    card = svg.Card(28 + 84 * len(states), title)
    wide = (WIDTH - 76) / ranks
    xs = [70 + wide * (rank + 0.5) for rank in range(ranks)]
    width = min(wide - 8, 92)
    for rank, x in enumerate(xs):
        card.text(f"rank {rank}" if width > 40 else rank, x, 14, 12, font_weight="bold")
    card.y = 28
    for number, state in enumerate(states):
        card.text(f"round {number}" if number else "start", 8, 16, 12, INK, "start")
        for x, (total, passing, origin) in zip(xs, state):
            card.box(x - width / 2, 2, width, 28, f"{total:g}", svg.PALE, INK)
            if number < rounds:
                card.box(x - 13, 36, 26, 22, f"{passing:g}", rank_colour(origin))
        if number < rounds:
            for x in xs[:-1]:
                card.arrow((x + 15, 52), (x + wide - 10, 83), INK)
            card.line(xs[-1] + 15, 52, WIDTH - 4, 66, stroke=INK)
            card.arrow((62, 70), (xs[0] - 12, 83), INK)
        card.y += 84
    return card.picture()


def calls(calls_by_rank):
    """Draw every rank's calls in order, and below each column the sum that came out.

    calls_by_rank: for each rank its calls, each (label, number, sum). A column whose
    labels differ is marked: those calls did not belong together. Where a rank made
    fewer calls than others, its place is empty and there is no sum.
    """
    ranks, number = len(calls_by_rank), max(map(len, calls_by_rank))
    # column i: every rank's call number i, None where a rank made fewer calls
    columns = list(zip_longest(*calls_by_rank))
    mixed = []
    for column in columns:
        labels = {call[0] for call in column if call}
        mixed.append(len(labels) > 1)
    wide = (WIDTH - 92) / number
    card = svg.Card(
        84 + 62 * ranks,
        f"{number} calls on {ranks} ranks, matched by "
        f"order; {sum(mixed)} of them mix different steps",
    )
    for rank in range(ranks):
        card.heading(f"rank {rank}", 16, 58 + 62 * rank, 12)
    for i, column in enumerate(columns):
        x = 76 + wide * (i + 0.5)
        card.text(f"call {i + 1}", x, 20)
        _column(card, column, x, min(wide - 16, 150), mixed[i])
    return card.picture()


def _column(card, column, x, width, mixed):
    """Draw calls that met, joined by a line, and their sum; None is a missing call."""
    colour, foot = WARN if mixed else INK, 48 + 62 * len(column)
    card.line(x, 40, x, foot, stroke=colour, stroke_width=3)
    for rank, call in enumerate(column):
        place = x - width / 2, 40 + 62 * rank, width, 36
        if call:
            card.box(*place, f"{call[0]}: {call[1]:g}", rank_colour(rank))
            words = f"sum {call[2]:g}"
            if mixed:
                words += ", of different steps"
        else:
            card.box(
                *place, "no call", svg.PALE, INK, stroke=INK, stroke_dasharray="4 3"
            )
    if None in column:
        words = "no sum: a rank is missing"
    card.text(words, x, foot + 14, 11.5, colour, font_weight="bold")


def hosts(hosts):
    """Draw each host with its ranks: hosts[i] is a list of (local rank, rank)."""
    tall, middle = 88 + 40 * max(map(len, hosts)), WIDTH / 2
    wide = (WIDTH - 12 - 16 * len(hosts)) / len(hosts)
    card = svg.Card(
        98 + tall,
        f"{len(hosts)} hosts meet at one address; together they "
        f"have {sum(map(len, hosts))} ranks",
    )
    card.box(middle - 130, 12, 260, 30, "rendezvous: one host's address", svg.SOFT)
    for number, members in enumerate(hosts):
        left = 14 + number * (wide + 16)
        x = left + wide / 2
        aim = middle + (x - middle) / 3
        card.arrow((x, 84), (aim, 44), INK)
        card.box(left, 84, wide, tall, colour=svg.PALE, stroke=INK)
        card.text(f"host {number}", x, 100, 13, font_weight="bold")
        card.box(left + 8, 116, wide - 16, 30, "torchrun", INK)
        for row, (local, rank) in enumerate(sorted(members)):
            place = left + 8, 158 + 40 * row, wide - 16, 34
            words = f"local rank {local}: rank {rank}"
            card.box(*place, words, rank_colour(rank), size=11)
    return card.picture()
