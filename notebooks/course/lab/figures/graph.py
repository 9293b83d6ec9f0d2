"""What goes from whom to whom: boxes, and an arrow for each way.

places      where ranks stand: a star, a circle or a tree, by who sends to whom
between     an arrow from box to box
messages    what each message of a ring carried                     wrong_on_purpose
"""

import math

from course.lab.figures import svg
from course.lab.figures.lanes import join_pairs
from course.lab.figures.svg import WIDTH, rank_colour

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
    where = []
    for x, y in found:
        where.append((middle[0] + wide / 2 * x, middle[1] + high / 2 * y))
    return where


def _circle(number):
    angles = [2 * math.pi * i / number for i in range(number)]
    return [(math.sin(a), -math.cos(a)) for a in angles]


def _parents(pairs):
    """Return for each rank that rank 0 reaches through pairs the one before it."""
    parent, near = {}, [0]
    for rank in near:  # which grows: so ranks nearer to rank 0 come first
        for pair in sorted(pairs):
            peer = sum(pair) - rank  # the other one, if rank is in the pair
            if rank in pair and peer and peer not in parent:
                parent[peer] = rank
                near.append(peer)
    return parent


def _tree(parent):
    """Return places of a tree: leaves side by side, a rank above its children."""
    children = {rank: [] for rank in (0, *parent)}
    depth, column, leaves = {0: 0}, {}, 0
    for rank, above in parent.items():
        children[above].append(rank)
        depth[rank] = depth[above] + 1

    def descend(rank):
        nonlocal leaves
        for child in children[rank]:
            descend(child)
        if children[rank]:
            below = [column[child] for child in children[rank]]
            column[rank] = sum(below) / len(below)
        else:
            column[rank] = leaves
            leaves += 1

    descend(0)
    last_column, deep = max(leaves - 1, 1), max(depth.values())
    found = []
    for rank in sorted(children):
        x = 2 * column[rank] / last_column - 1
        y = 2 * depth[rank] / deep - 1
        found.append((x, y))
    return found


def between(card, start, end, wide, high, colour, thick, both=False, beside=0):
    """Draw an arrow between the middles of two boxes, moved to its right by `beside`.

    Return the middle of the arrow, and the direction (x, y) to its right hand.
    """
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx**2 + dy**2) ** 0.5
    # how much of the way lies inside a box: it leaves at a side, or above or below
    at_side = wide / 2 / max(abs(dx), 1e-9)
    above = high / 2 / max(abs(dy), 1e-9)
    part = min(at_side, above)
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


def _height(world_size, two, four, more):
    """Return the height for this number of ranks: for up to 2, up to 4, or more."""
    if world_size <= 2:
        return two
    return four if world_size <= 4 else more


def _arrow(card, where, source, target, beside):
    """Draw an arrow in the colour of its source; return what `between` returns."""
    return between(
        card,
        where[source],
        where[target],
        WIDE + 6,
        TALL + 6,
        rank_colour(source),
        2.5,
        beside=beside,
    )


def _rank(card, rank, middle, name, words, **style):
    """Draw a rank's box: a name and, below it, lines of words."""
    x, y = middle
    card.box(x - WIDE / 2, y - TALL / 2, WIDE, TALL, colour=rank_colour(rank))
    card.text(name, x, y - 15, 12, "#ffffff", font_weight="bold")
    for i, said in enumerate(words, 1):
        card.text(said, x, y - 15 + 15.5 * i, 11, "#ffffff", **style)


def messages(runs, world_size):
    """Draw for each label of `runs` its ranks and the numbers that they sent.

    runs: a dict from a label to (messages, first, last). messages: (source, target,
    number) in order; first and last: each rank's number before and after.
    """
    high = _height(world_size, 30, 190, 280)
    ends = {}
    for label, (_, _, last) in runs.items():
        ends[label] = "ranks end with " + ", ".join(f"{number:g}" for number in last)
    card = svg.Card(
        (high + 120) * len(runs) + 8, f"What each message carried. {join_pairs(ends)}"
    )
    card.y = 4
    for label, (sent, first, last) in runs.items():
        card.heading(label, 16, 16)
        links = {}
        for source, target, number in sent:
            links.setdefault((source, target), []).append(f"{number:g}")
        middle = WIDTH / 2, 69 + high / 2
        where = places(links, len(first), WIDTH - WIDE - 124, high, middle)
        for (source, target), numbers in sorted(links.items()):
            both_ways = (target, source) in links
            _carry(card, where, source, target, ", ".join(numbers), both_ways)
        for rank, place in enumerate(where):
            words = f"holds {first[rank]:g}", f"ends with {last[rank]:g}"
            style = {"font_weight": "normal"}
            _rank(card, rank, place, f"rank {rank}", words, **style)
        card.y += high + 120
    return card.picture()


def _carry(card, where, source, target, words, both_ways):
    """Draw an arrow, and beside it what it carried.

    The words stand outside of a ring, which is on the left of its arrows, and between
    two ranks that send to each other on the right of each arrow.
    """
    beside, out = (5, 1) if both_ways else (0, -1)
    (x, y), (right, down) = _arrow(card, where, source, target, beside)
    side = out * right
    if abs(side) < 0.2:
        anchor, shift = "middle", 0
    else:
        anchor, shift = ("start", 13) if side > 0 else ("end", -13)
    place = x + shift, y + 12 * out * down
    card.text(words, *place, 12, rank_colour(source), anchor, font_weight="bold")
