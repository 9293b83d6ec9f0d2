"""The first picture of the course: what happens to one minibatch on several devices.

    draw    cut the minibatch, compute on every rank, sum, step      start_here

The small bars stand for a gradient of five numbers. Each rank has another one; the dark
bars are truly their sum.
"""

import math

from course.lab.figures import svg
from course.lab.figures.lanes import so_many
from course.lab.figures.plot import INK
from course.lab.figures.svg import WIDTH, rank_colour

COMMON = [2, -1, 1, 3, -2]  # what the gradients of all ranks have in common


def draw(world_size=2, rows=4):
    """Draw one step of data parallel training, from top to bottom.

    world_size: 2 to 8 ranks, a column each. rows: of each rank's shard.
    """
    card = svg.Card(
        486,
        f"One step of data parallel training on {world_size} ranks: "
        "the minibatch is cut, every rank computes a gradient on its "
        "own rows, the gradients are summed, all take the same step",
    )
    column = (WIDTH - 36) / world_size
    middles = [18 + column * (rank + 0.5) for rank in range(world_size)]
    grads = [_grad(rank) for rank in range(world_size)]
    total = [sum(numbers) for numbers in zip(*grads)]
    for rank, x in enumerate(middles):
        _column(card, rank, x, column, rows, grads[rank], total)
    for left, right in zip(middles, middles[1:]):
        for y in (137, 368, 448):
            card.text("=", (left + right) / 2, y, 14, weight="bold")
    words = "all-reduce: add up over the ranks, give every rank the sum"
    card.box(14, 292, WIDTH - 28, 32, words, INK, size=14)
    _flow(card, middles)
    cut = so_many(rows, "row")
    _caption(card, 20, 1, f"The minibatch is cut: {cut} for each rank.")
    _caption(card, 79, 2, "Each rank has all the weights. They are equal.")
    _caption(card, 193, 3, "Each rank computes a gradient, of its own rows only.")
    _caption(card, 406, 4, "All take the same step. The weights are equal again.")
    return card.picture()


def _grad(rank):
    """Return a rank's gradient: what all have in common, and some noise of its own."""
    return [
        number + round(3 * math.sin(2.3 * rank + 1.7 * i + 1))
        for i, number in enumerate(COMMON)
    ]


def _caption(card, y, number, words):
    import drawsvg

    card.append(drawsvg.Circle(24, y, 9, fill=INK))
    card.text(number, 24, y, 11, "#ffffff")
    wide = svg.wide(words, 13)
    card.box(36, y - 9, wide, 18, colour="#ffffff")  # arrows pass behind
    card.text(words, 39, y, 13, anchor="start")


def _column(card, rank, x, column, rows, gradient, total):
    """Draw all that one rank does."""
    colour = rank_colour(rank)
    wide = (column - 6) / rows
    for i in range(rows):
        row = x - column / 2 + 3 + i * wide
        card.box(row + 0.6, 36, wide - 1.2, 20, colour=colour, rx=2)
    card.arrow((x, 58), (x, 109), colour)
    _replica(card, rank, x, 111, min(column - 16, 130))
    card.arrow((x, 166), (x, 221), colour)
    _bars(card, gradient, x, 243, column, colour)
    card.arrow((x, 267), (x, 291), colour)
    card.arrow((x, 325), (x, 345), INK)
    _bars(card, total, x, 368, column, INK)
    _replica(card, rank, x, 422, min(column - 16, 130))


def _replica(card, rank, x, y, width):
    """Draw a network of 3, 4 and 2 units in a rank's box, every line between layers."""
    import drawsvg

    card.box(x - width / 2, y, width, 52, colour=rank_colour(rank))
    card.text(f"rank {rank}", x, y + 11, 12, "#ffffff")
    layers = []
    sizes, lefts = (3, 4, 2), (x - 15, x, x + 15)
    for size, left in zip(sizes, lefts):
        top = y + 34 - (size - 1) / 2 * 8
        layers.append([(left, top + i * 8) for i in range(size)])
    lines = drawsvg.Path(stroke="#ffffff", stroke_width=0.7, fill="none", opacity=0.6)
    for before, after in zip(layers, layers[1:]):
        for x0, y0 in before:
            for x1, y1 in after:
                lines.M(svg.short(x0), svg.short(y0))
                lines.L(svg.short(x1), svg.short(y1))
    card.append(lines)
    units = []
    for layer in layers:
        for left, top in layer:
            units.append((left - 2, top - 2))
    card.tiles(units, 4, 4, "#ffffff")


def _bars(card, numbers, x, y, column, colour):
    """Draw a gradient: a bar for each number, up or down from a line at y."""
    import drawsvg

    width = min((column - 16) / len(numbers), 14)
    scale = 20 / max(map(abs, numbers))
    bars = card.append(drawsvg.Path(fill=colour))
    for i, number in enumerate(numbers):
        left = x + (i - len(numbers) / 2) * width
        bars.M(svg.short(left + 0.8), svg.short(y))
        bars.h(svg.short(width - 1.6))
        bars.v(svg.short(-number * scale))
        bars.h(svg.short(1.6 - width))
        bars.Z()
    reach = width * 2.8
    card.line(x - reach, y, x + reach, y, stroke=svg.SOFT, stroke_width=0.8)


def _flow(card, middles):
    """Let a point run along each band of arrows, one band after the other."""
    import drawsvg

    starts = (58, 166, 267, 325, 390)
    ends = (109, 221, 291, 345, 420)
    for band, (start, end) in enumerate(zip(starts, ends)):
        begin = 0.5 + 1.6 * band
        with card.group(transform="translate(-999 -999)") as points:
            for rank, x in enumerate(middles):
                # from the all-reduce on, all ranks have the same numbers
                colour = INK if band > 2 else rank_colour(rank)
                style = {"stroke": "#ffffff", "fill": colour}
                card.append(drawsvg.Circle(svg.short(x), 0, 4.5, **style))
        way = [
            (0, svg.AWAY),
            (begin, svg.AWAY),
            (begin, (0, start)),
            (begin + 1.3, (0, end)),
            (begin + 1.3, svg.AWAY),
        ]
        svg.travel(points, way, 9)
