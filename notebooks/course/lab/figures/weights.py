"""How much each image counts in a step: two ways to average over unequal shards.

    draw    a bar for each image: mean of means, and one division   lesson 05
"""

from fractions import Fraction

from course.lab.figures import svg
from course.lab.figures.plot import INK

HIGH, TALL = 162, 84  # of a way's part, of its highest bar


def shares(sizes):
    """Return for both ways the share of every image, a list for each rank."""
    whole, ranks = sum(sizes), len(sizes)
    return {
        "mean of the ranks' means": [[Fraction(1, ranks * max(size, 1))] * size
                                     for size in sizes],
        "sum, divided once": [[Fraction(1, whole)] * size for size in sizes],
    }


def draw(sizes):
    """Draw the share with which each image counts, for shards of these sizes."""
    fair = Fraction(1, sum(sizes))
    ways = shares(sizes)
    title = (f"How much each image counts, for shards of {', '.join(map(str, sizes))} "
             f"rows: {fair} each if the sum is divided once")
    drawing = svg.card(HIGH * len(ways) + 8, title)
    most = max(share for ranks in ways.values() for images in ranks for share in images)
    for i, (way, ranks) in enumerate(ways.items()):
        _way(drawing, way, ranks, 4 + HIGH * i, fair, TALL / most)
    return svg.picture(drawing)


def _way(drawing, way, ranks, top, fair, scale):
    import drawsvg
    gap, least, base = 10, 42, top + 30 + TALL
    svg.text(drawing, way, 16, top + 14, 14, INK, "start", font_weight="bold")
    room = svg.WIDTH - 32 - 44 - gap * (len(ranks) - 1)
    side = 34.0
    while sum(max(len(images) * side, least) for images in ranks) > room and side > 2:
        side -= 0.5
    x = 16
    for rank, images in enumerate(ranks):
        width, colour = max(len(images) * side, least), svg.rank_colour(rank)
        left = x + (width - len(images) * side) / 2
        for i, share in enumerate(images):
            tall = float(share * scale)
            svg.box(drawing, left + i * side + 1, base - tall, side - 2, tall,
                    colour=colour, rx=2)
        words = str(images[0]) + " each" * (len(images) > 1) if images else "no rows"
        svg.text(drawing, words, x + width / 2, base + 12, 12)
        svg.text(drawing, f"rank {rank}", x + width / 2, base + 28, 12, colour,
                 font_weight="bold")
        x += width + gap
    y = svg.short(base - float(fair * scale))
    drawing.append(drawsvg.Line(16, y, svg.WIDTH - 56, y, stroke=INK, stroke_width=1.2,
                                stroke_dasharray="5 3"))
    svg.text(drawing, str(fair), svg.WIDTH - 50, y, 13, INK, "start")
