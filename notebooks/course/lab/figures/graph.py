"""What goes from whom to whom: boxes, and an arrow for each way.

places      where ranks stand: a star, a circle or a tree, as the sends have it
between     an arrow from box to box
split       what each way to split LeNet sends                      split_the_work
traffic     who sends how many bytes to whom                        dataparallel
messages    what each message of a ring carried                     wrong_on_purpose
"""

import math

from course.lab.figures import svg
from course.lab.figures.lanes import listed
from course.lab.figures.plot import COLOURS, INK
from course.lab.figures.svg import WIDTH, rank_colour
from course.lab.wire import totals

HOLDS = {  # what device 0 and device 1 hold
    "by layer": ("conv 1, conv 2", "linear 1, linear 2"),
    "inside a layer": ("half of each layer", "the other half"),
    "inside, in pairs": ("half of each layer", "the other half"),
    "by data": ("all layers, half the rows", "all layers, half the rows"),
}
WIDE, TALL = 96, 50  # a rank's box


def places(links, world_size, wide, high, middle):
    """Return each rank's (x, y) in a wide x high picture round a middle (x, y).

    links: the pairs (rank, peer) that send. All through rank 0 is a star; round, or
    anything else with a cycle, is a circle; what is left is a tree below rank 0.
    """
    pairs = {tuple(sorted(link)) for link in links}
    parent = _parents(pairs)
    is_round = all(b - a in (1, world_size - 1) for a, b in pairs)
    if world_size == 2:
        found = [(-1 / 1.7, 0), (1 / 1.7, 0)]
    elif all(0 in pair for pair in pairs):
        found = [(0, 0), *_circle(world_size - 1)]
    elif len(parent) == len(pairs) == world_size - 1 and not is_round:
        found = _tree(parent)
    else:
        found = _circle(world_size)
    return [(middle[0] + wide / 2 * x, middle[1] + high / 2 * y) for x, y in found]


def _circle(number):
    angles = [2 * math.pi * i / number for i in range(number)]
    return [(math.sin(a), -math.cos(a)) for a in angles]


def _parents(pairs):
    """Return for each rank that rank 0 reaches through pairs the one before it."""
    parent, near = {}, [0]
    for rank in near:  # grows on the way: ranks nearer to rank 0 come first
        for pair in sorted(pairs):
            peer = sum(pair) - rank
            if rank in pair and peer and peer not in parent:
                parent[peer] = rank
                near.append(peer)
    return parent


def _tree(parent):
    children = {rank: [] for rank in (0, *parent)}
    depth, column, leaves = {0: 0}, {}, 0
    for rank, above in parent.items():
        children[above].append(rank)
        depth[rank] = depth[above] + 1

    def descend(rank):
        nonlocal leaves
        for child in children[rank]:
            descend(child)
        mine = [column[child] for child in children[rank]]
        column[rank] = sum(mine) / len(mine) if mine else leaves
        leaves += not mine

    descend(0)
    deep = max(depth.values())
    return [
        (2 * column[rank] / max(leaves - 1, 1) - 1, 2 * depth[rank] / deep - 1)
        for rank in sorted(children)
    ]


def between(card, start, end, wide, high, colour, thick, both=False, beside=0):
    """Draw an arrow between the middles of two boxes, moved to its right by `beside`.

    Return the middle of the arrow, and the direction (x, y) to its right hand.
    """
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx**2 + dy**2) ** 0.5
    # how much of the way lies inside a box
    part = min(wide / 2 / max(abs(dx), 1e-9), high / 2 / max(abs(dy), 1e-9))
    right = -dy / length, dx / length
    x, y = beside * right[0], beside * right[1]
    card.arrow(
        (start[0] + part * dx + x, start[1] + part * dy + y),
        (end[0] - part * dx + x, end[1] - part * dy + y),
        colour,
        thick,
        both,
    )
    return (start[0] + dx / 2 + x, start[1] + dy / 2 + y), right


def split(bytes_by_way):
    """Draw for each way to split LeNet two devices, and an arrow for what crosses.

    bytes_by_way: a dict from the way to its transfers in the order of time, each
    (label, bytes) or (label, bytes, sender). sender: 0, 1, or "both" for an exchange
    of so many bytes in all; without it they go back and forth, device 0 first.
    The more bytes, the thicker the arrow, on one scale for all ways.
    """
    most = max(row[1] for rows in bytes_by_way.values() for row in rows)
    sums = {
        way: _size(sum(row[1] for row in rows)) for way, rows in bytes_by_way.items()
    }
    card = svg.Card(
        sum(76 + 32 * len(rows) for rows in bytes_by_way.values()) + 8,
        "What crosses between two devices in one step: " + listed(sums, ", "),
    )
    card.y = 4
    for way, rows in bytes_by_way.items():
        card.heading(way, 16, 16, 15)
        card.text(f"{sums[way]} a step", WIDTH - 16, 16, 13, INK, "end")
        for rank, x in enumerate((88, WIDTH - 88)):
            card.line(
                x, 60, x, 60 + 32 * len(rows), stroke=COLOURS[rank], stroke_width=3
            )
            card.box(x - 76, 30, 152, 36, colour=COLOURS[rank])
            card.text(f"device {rank}", x, 40, 12, "#ffffff", font_weight="bold")
            card.text(HOLDS.get(way, ("", ""))[rank], x, 55, 10.5, "#ffffff")
        for i, (label, number, *sender) in enumerate(rows):
            _transfer(
                card,
                f"{label}, {_size(number)}",
                88 + 32 * i,
                max(13 * number / most, 1),
                sender[0] if sender else i % 2,
            )
        card.y += 76 + 32 * len(rows)
    return card.picture()


def _size(number):
    """Say a number of bytes with three digits, in B, kB or MB."""
    for unit in ("B", "kB", "MB"):
        if number < 999.5 or unit == "MB":
            return f"{number:.3g} {unit}"
        number /= 1000


def _transfer(card, label, y, thick, sender):
    ends = [(91, y), (WIDTH - 91, y)]
    card.arrow(
        *(ends[::-1] if sender == 1 else ends),
        INK if sender == "both" else COLOURS[sender],
        thick,
        sender == "both",
    )
    card.text(label, WIDTH / 2, y - thick / 2 - 8, 11.5)


def traffic(logs, world_size, word="device"):
    """Draw for each label of `logs` its devices and what they sent, in one step.

    logs: a dict from a label to a `Wire.log`. The more bytes in all, the thicker the
    arrow. In each box: the bytes out of the device, and into it. word: what to call it.
    """
    links = {label: {} for label in logs}
    for label, log in logs.items():
        for sent in log:
            link = sent.source, sent.target
            links[label][link] = links[label].get(link, 0) + sent.size
    scale = 12 / max(number for ways in links.values() for number in ways.values())
    sums = {label: totals(log, world_size) for label, log in logs.items()}
    worst = {label: _size(max(map(max, both))) for label, both in sums.items()}
    high = 20 if world_size < 3 else 200 if world_size < 5 else 330
    said = {
        label: f"at most {size} out of or into a {word}"
        for label, size in worst.items()
    }
    card = svg.Card(
        (high + 106) * len(logs) + 8,
        f"Bytes that cross between {word}s in one step. {listed(said)}",
    )
    card.y = 4
    for label, ways in links.items():
        card.heading(label, 16, 16)
        card.text(f"busiest {word}: {worst[label]}", WIDTH - 16, 16, 13, INK, "end")
        where = places(
            ways, world_size, WIDTH - WIDE - 40, high, (WIDTH / 2, 65 + high / 2)
        )
        for (source, target), number in sorted(ways.items()):
            thick = max(number * scale, 1)
            between(
                card,
                where[source],
                where[target],
                WIDE + 6,
                TALL + 6,
                rank_colour(source),
                thick,
                beside=thick / 2 + 4 if (target, source) in ways else 0,
            )
        for rank, (out, into) in enumerate(zip(*sums[label])):
            _rank(
                card,
                rank,
                where[rank],
                f"{word} {rank}",
                15,
                16,
                (f"out {_size(out)}", f"in {_size(into)}"),
            )
        card.y += high + 106
    return card.picture()


def _rank(card, rank, middle, name, line, first, words, **style):
    x, y = middle
    card.box(x - WIDE / 2, y - TALL / 2, WIDE, TALL, colour=rank_colour(rank))
    card.text(name, x, y - 15, 12, "#ffffff", font_weight="bold")
    for i, said in enumerate(words):
        card.text(said, x, y - 15 + first + line * i, 11, "#ffffff", **style)


def messages(runs, world_size):
    """Draw for each label of `runs` its ranks and the numbers that they sent.

    runs: a dict from a label to (messages, first, last). messages: (source, target,
    number) in order; first and last: each rank's number before and after.
    """
    high = 30 if world_size < 3 else 190 if world_size < 5 else 280
    ends = {
        label: "ranks end with " + ", ".join(f"{number:g}" for number in last)
        for label, (_, _, last) in runs.items()
    }
    card = svg.Card(
        (high + 120) * len(runs) + 8, f"What each message carried. {listed(ends)}"
    )
    card.y = 4
    for label, (sent, first, last) in runs.items():
        card.heading(label, 16, 16)
        links = {}
        for source, target, number in sent:
            links.setdefault((source, target), []).append(f"{number:g}")
        where = places(
            links, len(first), WIDTH - WIDE - 124, high, (WIDTH / 2, 69 + high / 2)
        )
        for (source, target), numbers in sorted(links.items()):
            _told(
                card,
                where[source],
                where[target],
                ", ".join(numbers),
                (target, source) in links,
                rank_colour(source),
            )
        for rank, middle in enumerate(where):
            _rank(
                card,
                rank,
                middle,
                f"rank {rank}",
                15.5,
                15.5,
                (f"holds {first[rank]:g}", f"ends with {last[rank]:g}"),
                font_weight="normal",
            )
        card.y += high + 120
    return card.picture()


def _told(card, start, end, words, back, colour):
    """Draw an arrow, and beside it what it carried."""
    (x, y), (right, down) = between(
        card, start, end, WIDE + 6, TALL + 6, colour, 2.5, beside=5 * back
    )
    out = 1 if back else -1  # what is outside of the ring is on its arrows' left hand
    side = out * right
    anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
    x += {"middle": 0, "start": 13, "end": -13}[anchor]
    card.text(words, x, y + 12 * out * down, 12, colour, anchor, font_weight="bold")
