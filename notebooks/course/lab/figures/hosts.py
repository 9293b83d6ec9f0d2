"""Hosts, the torchrun on each, and the ranks that it has started.

    draw    the address where they meet; below, a card for each host   lesson 19
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

SIDE, GAP, TOP, MEET = 14, 16, 84, 34   # of the card's parts, in pixels
HEAD, ROW, FOOT, SMALL = 74, 40, 14, 11  # of a host: head, rank, foot; a rank's text


def draw(hosts):
    """Draw each host with its ranks: hosts[i] is a list of (local rank, rank)."""
    if not hosts or not all(hosts):
        raise ValueError(f"every host needs a rank, got {hosts}")
    tall = HEAD + ROW * max(map(len, hosts)) + FOOT
    ranks = sum(map(len, hosts))
    drawing = svg.card(TOP + tall + SIDE, f"{len(hosts)} hosts meet at one address; "
                                          f"together they have {ranks} ranks")
    middle, wide = svg.WIDTH / 2, _width(hosts)
    svg.box(drawing, middle - 130, 12, 260, MEET - 4, "rendezvous: one host's address",
            svg.SOFT)
    for number, members in enumerate(hosts):
        x = SIDE + number * (wide + GAP)
        svg.arrow(drawing, (x + wide / 2, TOP), (middle + (x + wide / 2 - middle) / 3,
                                                 MEET + 10), INK)
        _host(drawing, number, members, x, wide, tall)
    return svg.picture(drawing)


def _host(drawing, number, members, x, wide, tall):
    svg.box(drawing, x, TOP, wide, tall, colour=svg.PALE, stroke=INK)
    svg.text(drawing, f"host {number}", x + wide / 2, TOP + 16, 13, font_weight="bold")
    svg.box(drawing, x + 8, TOP + 32, wide - 16, 30, "torchrun", INK)
    for row, (local, rank) in enumerate(sorted(members)):
        svg.box(drawing, x + 8, TOP + HEAD + ROW * row, wide - 16, ROW - 6,
                f"local rank {local}: rank {rank}", svg.rank_colour(rank), size=SMALL)


def _width(hosts):
    return (svg.WIDTH - 2 * SIDE - GAP * (len(hosts) - 1)) / len(hosts)
