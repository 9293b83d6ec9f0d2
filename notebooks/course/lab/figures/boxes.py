"""Who is where, and what belongs together: boxes, with few arrows.

    memory      which ranks hold which memory                           lesson 02
    worlds      a list in one process, and a process a rank             lesson 08
    spread      how numbers reach all ranks, round by round             lesson 08
    calls       which calls of a collective met                         lesson 08
    hosts       hosts, the torchrun on each, its ranks                  lesson 19
"""

from course.lab.figures import svg
from course.lab.figures.lanes import plural
from course.lab.figures.plot import INK

WARN = "#b3261e"


def memory(addresses_by_label):
    """Draw for each label its ranks, its places in memory, and who holds which.

    addresses_by_label: a dict from a label to each rank's `data_ptr()`. Only whether
    two are equal is used, so that the picture is the same in every run.
    """
    said = {label: f"{plural(len(set(addresses)), 'tensor')} in memory for "
                   f"{plural(len(addresses), 'rank')}"
            for label, addresses in addresses_by_label.items()}
    drawing = svg.card(152 * len(said) + 6, "Who holds which memory. " + "; ".join(
        f"{label}: {words}" for label, words in said.items()))
    for i, (label, addresses) in enumerate(addresses_by_label.items()):
        top = 4 + 152 * i
        svg.heading(drawing, label, 16, top + 16, font_family="monospace")
        svg.text(drawing, said[label], svg.WIDTH - 16, top + 16, 13, INK, "end")
        columns = _columns(len(addresses), 8)
        for address in dict.fromkeys(addresses):
            _held(drawing, [(rank, *columns[rank]) for rank in range(len(addresses))
                            if addresses[rank] == address], top)
        for rank, (x, width) in enumerate(columns):
            svg.box(drawing, x - width / 2, top + 34, width, 28, f"rank {rank}",
                    svg.rank_colour(rank))
    return svg.picture(drawing)


def _held(drawing, holders, top):
    """Draw a place in memory below its holders (rank, x, width): a stripe for each."""
    many, width = len(holders), holders[0][2]
    middle = sum(x for _, x, _ in holders) / many
    for i, (rank, x, _) in enumerate(holders):
        aim = middle + (i - (many - 1) / 2) * width / (many + 1)
        svg.arrow(drawing, (x, top + 62), (aim, top + 102), svg.rank_colour(rank), 2)
    left, stripe = middle - width / 2, (width - 6) / many
    svg.box(drawing, left, top + 104, width, 36, colour=svg.PALE, stroke=INK,
            stroke_width=1.5, rx=2)
    for i, (rank, _, _) in enumerate(holders):
        svg.box(drawing, left + 3 + stripe * i, top + 107, stripe, 8, rx=0,
                colour=svg.rank_colour(rank))
    svg.text(drawing, "weights", middle, top + 127, 12 if width > 50 else 10.5)


def _columns(number, gap):
    """Return (middle, width) of each rank's column."""
    wide = (svg.WIDTH - 32) / number
    return [(16 + wide * (rank + 0.5), min(wide - gap, 92)) for rank in range(number)]


def worlds(alone, apart):
    """Draw the numbers of a list in one process, and those of the ranks' processes.

    alone: the list. apart: what each rank holds, in rank order; as many.
    """
    many = f"{len(apart)} processes" if len(apart) > 1 else "1 process"
    drawing = svg.card(276, f"One process with a list of {len(alone)}, and {many} "
                            "that hold one number each and send messages")
    columns = [*enumerate(_columns(len(alone), 10))]
    svg.heading(drawing, "lessons 0 to 7: one process holds a list", 16, 18, 13)
    svg.box(drawing, 16, 34, svg.WIDTH - 32, 78, colour=svg.PALE, stroke=INK)
    for rank, (x, width) in columns:
        svg.box(drawing, x - width / 2, 44, width, 36, f"{alone[rank]:g}",
                svg.rank_colour(rank))
        svg.text(drawing, f"[{rank}]", x, 98, 11, font_family="monospace")
    svg.heading(drawing, "from now on: a process for each rank", 16, 132, 13)
    for rank, (x, width) in columns:
        svg.box(drawing, x - width / 2 - 3, 146, width + 6, 76, colour=svg.PALE,
                stroke=INK)
        svg.text(drawing, f"rank {rank}", x, 162, 11)
        svg.box(drawing, x - width / 2 + 3, 178, width - 6, 36, f"{apart[rank]:g}",
                svg.rank_colour(rank))
    for (_, (x, _)), (_, (peer, _)) in zip(columns, columns[1:]):
        svg.arrow(drawing, (x + 4, 240), (peer - 4, 240), INK, both=True)
    svg.text(drawing, "nothing is shared: what a rank has to know is sent to it",
             svg.WIDTH / 2, 262, 12)
    return svg.picture(drawing)


def spread(sends, src=0):
    """Draw the spread that a run's messages make.

    sends: for each rank the ranks that it sent to, in order. A rank sends one message
    a round, from the round after the one in which it received.
    """
    got, todo, messages = {src: 0}, [src], []
    for rank in todo:  # grows on the way
        for i, peer in enumerate(sends[rank], start=got[rank] + 1):
            got[peer] = i
            todo.append(peer)
            messages.append((i, rank, peer))
    last = max(got.values())
    drawing = svg.card(62 * last + 60, f"The numbers of rank {src} reach {len(sends)} "
                                       f"ranks in {last} rounds")
    wide = (svg.WIDTH - 132) / len(sends)
    xs = [68 + wide * (rank + 0.5) for rank in range(len(sends))]
    for i, rank, peer in sorted(messages):
        svg.arrow(drawing, (xs[rank], 62 * i - 14), (xs[peer], 62 * i + 14), INK)
    for i in range(last + 1):
        y, has = 16 + 62 * i, [got[rank] <= i for rank in range(len(sends))]
        svg.text(drawing, f"round {i}" if i else "start", 12, y + 15, 12, INK, "start")
        svg.text(drawing, f"{sum(has)} of {len(has)}", svg.WIDTH - 12, y + 15, 12, INK,
                 "end")
        for rank, (x, there) in enumerate(zip(xs, has)):
            colours = (svg.rank_colour(0), "#ffffff") if there else (svg.PALE, INK)
            width = min(wide - 6, 60)
            svg.box(drawing, x - width / 2, y, width, 30, rank, *colours,
                    stroke=svg.SOFT)
    return svg.picture(drawing)


def calls(calls_by_rank):
    """Draw every rank's calls in order, and below each column the sum that came out.

    calls_by_rank: for each rank its calls, each (label, number, sum). A column whose
    labels differ is marked: those calls did not belong together. Where a rank made
    fewer calls than others, its place is empty and there is no sum.
    """
    number = max(map(len, calls_by_rank))
    columns = [[calls[i] if i < len(calls) else None for calls in calls_by_rank]
               for i in range(number)]
    mixed = [len({call[0] for call in column if call}) > 1 for column in columns]
    wide = (svg.WIDTH - 92) / number
    drawing = svg.card(84 + 62 * len(calls_by_rank),
                       f"{number} calls on {len(calls_by_rank)} ranks, matched by "
                       f"order; {sum(mixed)} of them mix different steps")
    for rank in range(len(calls_by_rank)):
        svg.heading(drawing, f"rank {rank}", 16, 58 + 62 * rank, 12)
    for i, column in enumerate(columns):
        x = 76 + wide * (i + 0.5)
        svg.text(drawing, f"call {i + 1}", x, 20, 12)
        _column(drawing, column, x, min(wide - 16, 150), mixed[i])
    return svg.picture(drawing)


def _column(drawing, column, x, width, mixed):
    """Draw calls that met, joined by a line, and their sum."""
    import drawsvg
    colour, foot = WARN if mixed else INK, 48 + 62 * len(column)
    drawing.append(drawsvg.Line(svg.short(x), 40, svg.short(x), foot, stroke=colour,
                                stroke_width=3))
    for rank, call in enumerate(column):
        place = x - width / 2, 40 + 62 * rank, width, 36
        if call:
            svg.box(drawing, *place, f"{call[0]}: {call[1]:g}", svg.rank_colour(rank))
            words = f"sum {call[2]:g}" + ", of different steps" * mixed
        else:
            svg.box(drawing, *place, "no call", svg.PALE, INK, stroke=INK,
                    stroke_dasharray="4 3")
    if None in column:
        words = "no sum: a rank is missing"
    svg.text(drawing, words, x, foot + 14, 11.5, colour, font_weight="bold")


def hosts(hosts):
    """Draw each host with its ranks: hosts[i] is a list of (local rank, rank)."""
    tall, middle = 88 + 40 * max(map(len, hosts)), svg.WIDTH / 2
    wide = (svg.WIDTH - 12 - 16 * len(hosts)) / len(hosts)
    drawing = svg.card(98 + tall, f"{len(hosts)} hosts meet at one address; "
                                  f"together they have {sum(map(len, hosts))} ranks")
    svg.box(drawing, middle - 130, 12, 260, 30, "rendezvous: one host's address",
            svg.SOFT)
    for number, members in enumerate(hosts):
        x = 14 + number * (wide + 16)
        top = x + wide / 2
        svg.arrow(drawing, (top, 84), (middle + (top - middle) / 3, 44), INK)
        svg.box(drawing, x, 84, wide, tall, colour=svg.PALE, stroke=INK)
        svg.text(drawing, f"host {number}", top, 100, 13, font_weight="bold")
        svg.box(drawing, x + 8, 116, wide - 16, 30, "torchrun", INK)
        for row, (local, rank) in enumerate(sorted(members)):
            svg.box(drawing, x + 8, 158 + 40 * row, wide - 16, 34,
                    f"local rank {local}: rank {rank}", svg.rank_colour(rank), size=11)
    return svg.picture(drawing)
