"""The rows of a minibatch, and the rank that gets each of them.

    draw    rows as squares in their rank's colour; a rank without rows too   lesson 04
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

HIGH, GAP = 92, 6


def draw(sizes_by_case):
    """Draw each case's ranks side by side, each with as many squares as it has rows.

    sizes_by_case: a dict from a label to the number of rows of each rank.
    """
    drawing = svg.card(HIGH * len(sizes_by_case) + 4, "Rows of each rank. " + "; ".join(
        f"{label}: {', '.join(map(str, sizes))}"
        for label, sizes in sizes_by_case.items()))
    for i, (label, sizes) in enumerate(sizes_by_case.items()):
        _case(drawing, label, sizes, 2 + HIGH * i)
    return svg.picture(drawing)


def _case(drawing, label, sizes, top):
    svg.text(drawing, label, 16, top + 16, 14, INK, "start", font_weight="bold")
    svg.text(drawing, ", ".join(map(str, sizes)), svg.WIDTH - 16, top + 16, 13, INK,
             "end")
    room = svg.WIDTH - 32 - GAP * (len(sizes) - 1)
    least = 50 if max(len(sizes), 1) <= 8 else room / len(sizes)
    side = 24.0
    while sum(max(size * side, least) for size in sizes) > room and side > 2:
        side -= 0.5
    x = 16
    for rank, size in enumerate(sizes):
        width, colour = max(size * side, least), svg.rank_colour(rank)
        left = x + (width - size * side) / 2
        for row in range(size):
            svg.box(drawing, left + row * side + 0.8, top + 34, side - 1.6, 24,
                    colour=colour, rx=min(3, side / 4))
        if not size:
            svg.box(drawing, x + 1, top + 34, width - 2, 24, "no rows", "#ffffff", INK,
                    10.5, stroke=colour, stroke_width=1.5, stroke_dasharray="3 3")
        svg.text(drawing, f"rank {rank}", x + width / 2, top + 70, 12, colour,
                 font_weight="bold")
        x += width + GAP
