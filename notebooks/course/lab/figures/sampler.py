"""What a sampler deals out: which rank sees which example, epoch by epoch.

    draw    a row for each epoch, a column for each example; its ranks inside  lesson 10
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, TOP, LINE = 148, 66, 40


def draw(epochs, examples):
    """Draw for each epoch the ranks that see each example.

    epochs: a dict from a label to the ranks' lists of indices, one list a rank.
    examples: how many there are. A column is cut where several ranks see its example,
    or one rank sees it twice; a dashed one is seen by nobody.
    """
    seen = {label: _seen(ranks, examples) for label, ranks in epochs.items()}
    drawing = svg.card(TOP + LINE * len(epochs) + 6, "Which rank sees which example. "
                       + "; ".join(map(_say, seen.items())))
    svg.text(drawing, "The rank that sees each example", 16, 20, 15, INK, "start",
             font_weight="bold")
    side = (svg.WIDTH - 16 - LEFT) / examples
    svg.text(drawing, "example", LEFT - 10, TOP - 14, 12, INK, "end")
    for i in range(examples):
        svg.text(drawing, i, LEFT + side * (i + 0.5), TOP - 14, 12)
    for row, (label, columns) in enumerate(seen.items()):
        top = TOP + LINE * row
        svg.text(drawing, label, LEFT - 10, top + LINE / 2 - 3, 12, INK, "end")
        for i, ranks in enumerate(columns):
            _column(drawing, LEFT + side * i, top, side, ranks)
    return svg.picture(drawing)


def _seen(ranks, examples):
    """Return for each example the ranks that see it, one that sees it twice twice."""
    return [[rank for rank, mine in enumerate(ranks) for j in mine if j == i]
            for i in range(examples)]


def _say(entry):
    label, columns = entry
    twice = [str(i) for i, ranks in enumerate(columns) if len(ranks) > 1]
    never = [str(i) for i, ranks in enumerate(columns) if not ranks]
    return (f"{label}: more than once {', '.join(twice) or 'none'}, "
            f"never {', '.join(never) or 'none'}")


def _column(drawing, left, top, side, ranks):
    high = LINE - 6
    if not ranks:
        svg.box(drawing, left + 2, top + 1, side - 4, high - 2, colour="#ffffff",
                stroke=svg.SOFT, stroke_width=1.5, stroke_dasharray="3 3")
    for i, rank in enumerate(ranks):
        svg.box(drawing, left + 1, top + high * i / len(ranks), side - 2,
                high / len(ranks) - (len(ranks) > 1), rank, svg.rank_colour(rank),
                size=min(12, high / len(ranks) - 2), rx=4)
