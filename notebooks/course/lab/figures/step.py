"""The first picture of the course: what happens to one minibatch on several devices.

    draw    cut the minibatch, compute on every rank, sum, step      start_here

The small bars stand for a gradient of five numbers. Each rank has another one; the dark
bars are truly their sum.
"""

import math

from course.lab.figures import svg
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
    each = [
        [
            number + round(3 * math.sin(2.3 * rank + 1.7 * i + 1))
            for i, number in enumerate(COMMON)
        ]
        for rank in range(world_size)
    ]
    for rank, x in enumerate(middles):
        _column(
            card,
            rank,
            x,
            column,
            rows,
            each[rank],
            [sum(numbers) for numbers in zip(*each)],
        )
    for left, right in zip(middles, middles[1:]):
        for y in (137, 368, 448):
            card.text("=", (left + right) / 2, y, 14, weight="bold")
    card.box(
        14,
        292,
        WIDTH - 28,
        32,
        "all-reduce: add up over the ranks, give every rank the sum",
        INK,
        size=14,
    )
    _flow(card, middles)
    for number, (y, words) in enumerate(
        (
            (20, f"The minibatch is cut: {rows} row{'s' * (rows > 1)} for each rank."),
            (79, "Each rank has all the weights. They are equal."),
            (193, "Each rank computes a gradient, of its own rows only."),
            (406, "All take the same step. The weights are equal again."),
        ),
        start=1,
    ):
        _caption(card, y, number, words)
    return card.picture()


def _caption(card, y, number, words):
    import drawsvg

    card.append(drawsvg.Circle(24, y, 9, fill=INK))
    card.text(number, 24, y, 11, "#ffffff")
    # arrows pass behind
    card.box(36, y - 9, svg.wide(words, 13), 18, colour="#ffffff")
    card.text(words, 39, y, 13, anchor="start")


def _column(card, rank, x, column, rows, gradient, total):
    """Draw all that one rank does."""
    colour, wide = rank_colour(rank), (column - 6) / rows
    for i in range(rows):
        card.box(
            x - column / 2 + 3 + i * wide + 0.6, 36, wide - 1.2, 20, colour=colour, rx=2
        )
    card.arrow((x, 58), (x, 109), colour)
    _replica(card, rank, x, 111, min(column - 16, 130))
    card.arrow((x, 166), (x, 221), colour)
    _bars(card, gradient, x, 243, column, colour)
    card.arrow((x, 267), (x, 291), colour)
    card.arrow((x, 325), (x, 345), INK)
    _bars(card, total, x, 368, column, INK)
    _replica(card, rank, x, 422, min(column - 16, 130))


def _replica(card, rank, x, y, width):
    import drawsvg

    card.box(x - width / 2, y, width, 52, colour=rank_colour(rank))
    card.text(f"rank {rank}", x, y + 11, 12, "#ffffff")
    layers = [
        [(x + (layer - 1) * 15, y + 34 + (i - (size - 1) / 2) * 8) for i in range(size)]
        for layer, size in enumerate((3, 4, 2))
    ]
    lines = drawsvg.Path(stroke="#ffffff", stroke_width=0.7, fill="none", opacity=0.6)
    for before, after in zip(layers, layers[1:]):
        for start in before:
            for end in after:
                lines.M(*map(svg.short, start)).L(*map(svg.short, end))
    card.append(lines)
    card.tiles(
        [(px - 2, py - 2) for layer in layers for px, py in layer], 4, 4, "#ffffff"
    )


def _bars(card, numbers, x, y, column, colour):
    import drawsvg

    width, scale = min((column - 16) / len(numbers), 14), 20 / max(map(abs, numbers))
    bars = card.append(drawsvg.Path(fill=colour))
    for i, number in enumerate(numbers):
        left = x + (i - len(numbers) / 2) * width
        bars.M(svg.short(left + 0.8), svg.short(y)).h(svg.short(width - 1.6))
        bars.v(svg.short(-number * scale)).h(svg.short(1.6 - width)).Z()
    card.line(x - width * 2.8, y, x + width * 2.8, y, stroke=svg.SOFT, stroke_width=0.8)


def _flow(card, middles):
    """Let a point run along each band of arrows, one band after the other."""
    import drawsvg

    bands = [(58, 109), (166, 221), (267, 291), (325, 345), (390, 420)]
    for band, (start, end) in enumerate(bands):
        begin = 0.5 + 1.6 * band
        with card.group(transform="translate(-999 -999)") as points:
            for rank, x in enumerate(middles):
                card.append(
                    drawsvg.Circle(
                        svg.short(x),
                        0,
                        4.5,
                        stroke="#ffffff",
                        fill=INK if band > 2 else rank_colour(rank),
                    )
                )
        svg.travel(
            points,
            [
                (0, svg.AWAY),
                (begin, svg.AWAY),
                (begin, (0, start)),
                (begin + 1.3, (0, end)),
                (begin + 1.3, svg.AWAY),
            ],
            9,
        )
