"""How much, and whose: rows of bars and boxes on one scale.

shards      the rows of each rank                                   split_the_batch
weights     how much each image counts in a step                    one_step
buckets     which gradients lie in which bucket                     ddp_by_hand
"""

from fractions import Fraction

from course.lab.figures import svg
from course.lab.figures.lanes import Lanes, join_pairs, so_many
from course.lab.figures.plot import INK
from course.lab.figures.svg import WIDTH, rank_colour


def shards(sizes_by_case):
    """Draw each case's ranks side by side, each with as many squares as it has rows.

    sizes_by_case: a dict from a label to the number of rows of each rank.
    """
    said = {}
    for label, sizes in sizes_by_case.items():
        said[label] = ", ".join(map(str, sizes))
    card = Lanes(92 * len(said) + 4, f"Rows of each rank. {join_pairs(said)}")
    card.y = 2
    for label, sizes in sizes_by_case.items():
        card.heading(label, 16, 16)
        card.text(said[label], WIDTH - 16, 16, 13, INK, "end")
        least = 50
        if len(sizes) > 8:
            least = (454 - 6 * len(sizes)) / len(sizes)
        for rank, x, width, left, side in _columns(sizes, 24.0, least, 6, 448):
            colour, corner = rank_colour(rank), min(3, side / 4)
            for row in range(sizes[rank]):
                square = left + row * side
                card.box(square + 0.8, 34, side - 1.6, 24, colour=colour, rx=corner)
            if not sizes[rank]:
                card.box(
                    x + 1,
                    34,
                    width - 2,
                    24,
                    "no rows",
                    "#ffffff",
                    INK,
                    10.5,
                    stroke=colour,
                    stroke_width=1.5,
                    stroke_dasharray="3 3",
                )
            card.text(f"rank {rank}", x + width / 2, 70, 12, colour, font_weight="bold")
        card.y += 92
    return card.picture()


def _columns(sizes, side, least, gap, room):
    """Yield (rank, x, width, x of its squares, their side) for each rank's column.

    A column is as wide as its squares, but not narrower than `least`. Squares begin
    with `side` and shrink until all columns fit into `room`.
    """
    room -= gap * (len(sizes) - 1)
    while sum(max(size * side, least) for size in sizes) > room and side > 2:
        side -= 0.5
    x = 16
    for rank, size in enumerate(sizes):
        width = max(size * side, least)
        yield rank, x, width, x + (width - size * side) / 2, side
        x += width + gap


def weights(sizes):
    """Draw the share with which each image counts, for shards of these sizes.

    Two ways to average: the mean of the ranks' means, and one division.
    """
    fair, rows = Fraction(1, sum(sizes)), ", ".join(map(str, sizes))
    ways = {
        "mean of the ranks' means": [
            Fraction(1, len(sizes) * max(size, 1)) for size in sizes
        ],
        "sum, divided once": [fair] * len(sizes),
    }
    # the tallest bar: an image of the smallest shard, or `fair` if ranks have no rows
    fewest = min(size for size in sizes if size)
    most = max(fair, Fraction(1, len(sizes) * fewest))
    card = Lanes(
        332,
        f"How much each image counts, for shards of {rows} rows: {fair} "
        "each if the sum is divided once",
        most,
        114,
        WIDTH - 198,
    )
    card.y = 4
    for way, shares in ways.items():
        card.heading(way, 16, 14)
        for rank, x, width, left, side in _columns(sizes, 34.0, 42, 10, 404):
            size, colour, middle = sizes[rank], rank_colour(rank), x + width / 2
            tall = float(shares[rank] * (84 / most))
            for i in range(size):
                bar = left + i * side
                card.box(bar + 1, 114 - tall, side - 2, tall, rx=2, colour=colour)
            if size > 1:
                words = f"{shares[rank]} each"
            else:
                words = str(shares[rank]) if size else "no rows"
            card.text(words, middle, 126)
            card.text(f"rank {rank}", middle, 142, 12, colour, font_weight="bold")
        y = 114 - float(fair * (84 / most))
        card.line(
            16, y, WIDTH - 56, y, stroke=INK, stroke_width=1.2, stroke_dasharray="5 3"
        )
        card.text(fair, WIDTH - 50, svg.short(card.y + y) - card.y, 13, INK, "start")
        card.y += 162
    return card.picture()


def buckets(cases):
    """Draw for each label its buckets in the order in which they are sent.

    cases: a dict from labels to buckets, each a list of (name, numel). A box is as long
    as its numbers are many, but no shorter than its name.
    """
    said = {label: so_many(len(groups), "bucket") for label, groups in cases.items()}
    card = Lanes(62 * len(cases) + 30, f"Gradients in buckets: {join_pairs(said)}")
    card.y = 4
    for label, groups in cases.items():
        card.heading(f"{label}: {said[label]}", 14, 14, 13)
        names, sizes = [], []
        for group in groups:
            first, last = group[0][0], group[-1][0]
            names.append(first if len(group) == 1 else f"{first} to {last}")
            sizes.append(sum(numel for _, numel in group))
        least = [svg.wide(name, 11) + 6 for name in names]
        x = 14
        for i, (name, width, size) in enumerate(zip(names, least, sizes)):
            width += (WIDTH - 28 - sum(least)) * size / sum(sizes)
            card.box(x, 26, width - 2, 30, name, rank_colour(i), size=11)
            x += width
        card.y += 62
    card.text("sent first", 14, 10, 11.5, INK, "start")
    card.text("sent last", WIDTH - 14, 10, 11.5, INK, "end")
    card.arrow((90, 10), (WIDTH - 84, 10))
    return card.picture()
