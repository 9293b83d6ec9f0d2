"""Ranks, and the memory that each one's tensor lies in.

    draw    an arrow from every rank to its memory: four to one, or one each   lesson 02
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

HIGH = 152  # of a label's part


def draw(addresses_by_label):
    """Draw for each label its ranks, its places in memory, and who holds which.

    addresses_by_label: a dict from a label to each rank's `data_ptr()`. Only whether
    two are equal is used, so that the picture is the same in every run.
    """
    counts = [f"{label}: {_places(addresses)}"
              for label, addresses in addresses_by_label.items()]
    drawing = svg.card(HIGH * len(counts) + 6, "Who holds which memory. "
                       + "; ".join(counts))
    for i, (label, addresses) in enumerate(addresses_by_label.items()):
        _case(drawing, label, addresses, 4 + HIGH * i)
    return svg.picture(drawing)


def _places(addresses):
    number, ranks = len(set(addresses)), len(addresses)
    return (f"{number} tensor{'s' * (number > 1)} in memory for {ranks} "
            f"rank{'s' * (ranks > 1)}")


def _case(drawing, label, addresses, top):
    svg.text(drawing, label, 16, top + 16, 14, INK, "start", font_family="monospace",
             font_weight="bold")
    svg.text(drawing, _places(addresses), svg.WIDTH - 16, top + 16, 13, INK, "end")
    column = (svg.WIDTH - 32) / len(addresses)
    middles = [16 + column * (rank + 0.5) for rank in range(len(addresses))]
    width = min(column - 8, 92)
    holders = {}
    for rank, address in enumerate(addresses):
        holders.setdefault(address, []).append(rank)
    for ranks in holders.values():
        x = sum(middles[rank] for rank in ranks) / len(ranks)
        for place, rank in enumerate(ranks):
            aim = x + (place - (len(ranks) - 1) / 2) * width / (len(ranks) + 1)
            svg.arrow(drawing, (middles[rank], top + 62), (aim, top + 102),
                      svg.rank_colour(rank), 2)
        _cell(drawing, ranks, x, top + 104, width)
    for rank, x in enumerate(middles):
        svg.box(drawing, x - width / 2, top + 34, width, 28, f"rank {rank}",
                svg.rank_colour(rank))


def _cell(drawing, ranks, x, y, width):
    """Draw one place in memory, a stripe for each rank that holds it."""
    svg.box(drawing, x - width / 2, y, width, 36, colour=svg.PALE, stroke=INK,
            stroke_width=1.5, rx=2)
    stripe = (width - 6) / len(ranks)
    for place, rank in enumerate(ranks):
        svg.box(drawing, x - width / 2 + 3 + stripe * place, y + 3, stripe, 8, rx=0,
                colour=svg.rank_colour(rank))
    svg.text(drawing, "weights", x, y + 23, 12 if width > 50 else 10.5)
