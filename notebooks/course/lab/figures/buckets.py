"""Which gradients lie in which bucket.

    draw    a bar for each cap, cut into its buckets                        lesson 09
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, RIGHT, ROW, SMALL = 14, svg.WIDTH - 14, 62, 11


def draw(cases):
    """Draw for each label its buckets in the order in which they are sent.

    cases: a dict from labels to buckets, each a list of (name, numel). A box is as long
    as its numbers are many, but no shorter than its name.
    """
    counts = "; ".join(f"{label}: {_buckets(len(groups))}"
                       for label, groups in cases.items())
    drawing = svg.card(ROW * len(cases) + 30, f"Gradients in buckets: {counts}")
    for row, (label, groups) in enumerate(cases.items()):
        y = 4 + ROW * row
        svg.text(drawing, f"{label}: {_buckets(len(groups))}", LEFT, y + 14, 13, INK,
                 "start", font_weight="bold")
        _bar(drawing, groups, y + 26)
    y = ROW * len(cases) + 6
    svg.text(drawing, "sent first", LEFT, y + 8, 11.5, INK, "start")
    svg.text(drawing, "sent last", RIGHT, y + 8, 11.5, INK, "end")
    svg.arrow(drawing, (LEFT + 76, y + 8), (RIGHT - 70, y + 8))
    return svg.picture(drawing)


def _buckets(count):
    return f"{count} bucket{'s' * (count != 1)}"


def _bar(drawing, groups, y):
    names = [_span([name for name, _ in group]) for group in groups]
    least = [svg.wide(name, SMALL) + 6 for name in names]
    total = sum(numel for group in groups for _, numel in group)
    room, x = RIGHT - LEFT - sum(least), LEFT
    for i, (group, name, width) in enumerate(zip(groups, names, least)):
        width += room * sum(numel for _, numel in group) / total
        svg.box(drawing, x, y, width - 2, 30, name, svg.rank_colour(i), size=SMALL)
        x += width


def _span(names):
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
