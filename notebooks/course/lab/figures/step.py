"""The first picture of the course: what happens to one minibatch on several devices.

    draw    cut the minibatch, compute on every rank, sum, step      lesson 00

The small bars stand for a gradient of five numbers. Each rank has another one; the dark
bars are truly their sum.
"""

import math

from course.lab.figures import svg
from course.lab.figures.plot import INK

SECONDS = 9  # one loop
COMMON = [2, -1, 1, 3, -2]  # what the gradients of all ranks have in common


def draw(world_size=2, rows=4):
    """Draw one step of data parallel training, from top to bottom.

    world_size: 2 to 8 ranks, a column each. rows: of each rank's shard.
    """
    drawing = svg.card(486, f"One step of data parallel training on {world_size} ranks:"
                       " the minibatch is cut, every rank computes a gradient on its"
                       " own rows, the gradients are summed, all take the same step")
    column = (svg.WIDTH - 36) / world_size
    middles = [18 + column * (rank + 0.5) for rank in range(world_size)]
    each = gradients(world_size)
    total = [sum(numbers) for numbers in zip(*each)]

    for rank, x in enumerate(middles):
        _rows(drawing, rank, rows, x, column)
        svg.arrow(drawing, (x, 58), (x, 109), svg.rank_colour(rank))
        _replica(drawing, rank, x, 111, column)
        svg.arrow(drawing, (x, 166), (x, 221), svg.rank_colour(rank))
        _bars(drawing, each[rank], x, 243, column, svg.rank_colour(rank))
        svg.arrow(drawing, (x, 267), (x, 291), svg.rank_colour(rank))
        svg.arrow(drawing, (x, 325), (x, 345), INK)
        _bars(drawing, total, x, 368, column, INK)
        _replica(drawing, rank, x, 422, column)
    for left, right in zip(middles, middles[1:]):
        for y in (137, 368, 448):
            svg.text(drawing, "=", (left + right) / 2, y, 14, weight="bold")
    svg.box(drawing, 14, 292, svg.WIDTH - 28, 32, "all-reduce: add up over the ranks, "
            "give every rank the sum", INK, size=14)
    _flow(drawing, middles)
    _caption(drawing, 20, 1, f"The minibatch is cut: {rows} "
             f"row{'s' * (rows > 1)} for each rank.")
    _caption(drawing, 79, 2, "Each rank has all the weights. They are equal.")
    _caption(drawing, 193, 3, "Each rank computes a gradient, of its own rows only.")
    _caption(drawing, 406, 4, "All take the same step. The weights are equal again.")
    return svg.picture(drawing)


def gradients(world_size):
    """Return five whole numbers for each rank; no two ranks have the same."""
    return [[number + round(3 * math.sin(2.3 * rank + 1.7 * i + 1))
             for i, number in enumerate(COMMON)] for rank in range(world_size)]


def _caption(drawing, y, number, words):
    import drawsvg
    drawing.append(drawsvg.Circle(24, y, 9, fill=INK))
    svg.text(drawing, number, 24, y, 11, "#ffffff")
    width = svg.wide(words, 13)
    svg.box(drawing, 36, y - 9, width, 18, colour="#ffffff")  # arrows pass behind
    svg.text(drawing, words, 39, y, 13, anchor="start")


def _rows(drawing, rank, rows, x, column):
    left, width = x - column / 2 + 3, (column - 6) / rows
    for i in range(rows):
        svg.box(drawing, left + i * width + 0.6, 36, width - 1.2, 20,
                colour=svg.rank_colour(rank), rx=2)


def _replica(drawing, rank, x, y, column):
    import drawsvg
    width = min(column - 16, 130)
    svg.box(drawing, x - width / 2, y, width, 52, colour=svg.rank_colour(rank))
    svg.text(drawing, f"rank {rank}", x, y + 11, 12, "#ffffff")
    layers = [[(x + (layer - 1) * 15, y + 34 + (i - (size - 1) / 2) * 8)
               for i in range(size)] for layer, size in enumerate((3, 4, 2))]
    lines = drawsvg.Path(stroke="#ffffff", stroke_width=0.7, fill="none", opacity=0.6)
    for before, after in zip(layers, layers[1:]):
        for start in before:
            for end in after:
                lines.M(*map(svg.short, start)).L(*map(svg.short, end))
    drawing.append(lines)
    svg.tiles(drawing, [(px - 2, py - 2) for layer in layers for px, py in layer], 4, 4,
              "#ffffff")


def _bars(drawing, numbers, x, y, column, colour):
    import drawsvg
    width = min((column - 16) / len(numbers), 14)
    scale = 20 / max(map(abs, numbers))
    bars = drawsvg.Path(fill=colour)
    for i, number in enumerate(numbers):
        left = x + (i - len(numbers) / 2) * width
        bars.M(svg.short(left + 0.8), svg.short(y)).h(svg.short(width - 1.6))
        bars.v(svg.short(-number * scale)).h(svg.short(1.6 - width)).Z()
    drawing.append(bars)
    ends = (svg.short(x - width * 2.8), svg.short(x + width * 2.8))
    drawing.append(drawsvg.Line(ends[0], svg.short(y), ends[1], svg.short(y),
                                stroke=svg.SOFT, stroke_width=0.8))


def _flow(drawing, middles):
    """Let a point run along each band of arrows, one band after the other."""
    import drawsvg
    bands = [(58, 109), (166, 221), (267, 291), (325, 345), (390, 420)]
    for band, (start, end) in enumerate(bands):
        points = drawsvg.Group(transform="translate(-999 -999)")
        for rank, x in enumerate(middles):
            points.append(drawsvg.Circle(svg.short(x), 0, 4.5, stroke="#ffffff",
                          fill=INK if band > 2 else svg.rank_colour(rank)))
        begin = 0.5 + 1.6 * band
        svg.travel(points, [(0, svg.AWAY), (begin, svg.AWAY), (begin, (0, start)),
                            (begin + 1.3, (0, end)), (begin + 1.3, svg.AWAY)], SECONDS)
        drawing.append(points)
