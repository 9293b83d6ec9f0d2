"""Which calls of a collective met, from a run: by their order, whatever they meant.

    draw    a row a rank, a column for each first, second, ... call   lesson 08
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, TOP, ROW, HIGH, WARN = 76, 40, 62, 36, "#b3261e"


def draw(calls_by_rank):
    """Draw every rank's calls in order, and below each column the sum that came out.

    calls_by_rank: for each rank its calls, each (label, number, sum). A column whose
    labels differ is marked: those calls did not belong together. Where a rank made
    fewer calls than others, its place is empty and there is no sum.
    """
    columns = max(map(len, calls_by_rank))
    wide = (svg.WIDTH - LEFT - 16) / columns
    mixed = [_mixed(calls_by_rank, i) for i in range(columns)]
    drawing = svg.card(TOP + ROW * len(calls_by_rank) + 44,
                       f"{columns} calls on {len(calls_by_rank)} ranks, matched by "
                       f"order; {sum(mixed)} of them mix different steps")
    for rank in range(len(calls_by_rank)):
        svg.text(drawing, f"rank {rank}", 16, TOP + ROW * rank + HIGH / 2, 12, INK,
                 "start", font_weight="bold")
    for i in range(columns):
        _column(drawing, calls_by_rank, i, LEFT + wide * (i + 0.5), min(wide - 16, 150),
                WARN if mixed[i] else INK)
    return svg.picture(drawing)


def _mixed(calls_by_rank, i):
    return len({calls[i][0] for calls in calls_by_rank if i < len(calls)}) > 1


def _column(drawing, calls_by_rank, i, x, width, colour):
    """Draw the calls number i of all ranks, joined by a line, and their sum."""
    import drawsvg
    foot = TOP + ROW * len(calls_by_rank) + 8
    svg.text(drawing, f"call {i + 1}", x, 20, 12)
    drawing.append(drawsvg.Line(svg.short(x), TOP, svg.short(x), foot, stroke=colour,
                                stroke_width=3))
    for rank, calls in enumerate(calls_by_rank):
        y = TOP + ROW * rank
        if i < len(calls):
            label, number, total = calls[i]
            svg.box(drawing, x - width / 2, y, width, HIGH, f"{label}: {number:g}",
                    svg.rank_colour(rank))
        else:
            svg.box(drawing, x - width / 2, y, width, HIGH, "no call", svg.PALE, INK,
                    stroke=INK, stroke_dasharray="4 3")
    words = f"sum {total:g}" + ", of different steps" * (colour == WARN)
    if any(i >= len(calls) for calls in calls_by_rank):
        words = "no sum: a rank is missing"
    svg.text(drawing, words, x, foot + 14, 11.5, colour, font_weight="bold")
