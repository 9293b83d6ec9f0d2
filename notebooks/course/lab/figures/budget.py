"""What memory is made of: a bar for each case, a colour for each part.

    draw    bars of bytes on one scale, with their sums               lesson 14
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, RIGHT, HIGH, ROW = 14, svg.WIDTH - 96, 20, 46


def draw(cases):
    """Draw for each label its parts, a dict from a part's name to bytes.

    All cases have the same parts, in the order in which they are drawn.
    """
    sums = {label: sum(parts.values()) for label, parts in cases.items()}
    names = list(dict.fromkeys(name for parts in cases.values() for name in parts))
    title = "; ".join(f"{label} {_megabytes(size)}" for label, size in sums.items())
    drawing = svg.card(ROW * len(cases) + 34, f"Memory of one step: {title}")
    scale = (RIGHT - LEFT) / max(sums.values())
    for i, (label, parts) in enumerate(cases.items()):
        y = 8 + ROW * i
        svg.text(drawing, label, LEFT, y + 8, 13, INK, "start", font_weight="bold")
        x = LEFT
        for place, name in enumerate(names):
            width = scale * parts.get(name, 0)
            if width:
                svg.box(drawing, x, y + 18, width, HIGH, rx=0,
                        colour=svg.rank_colour(place))
            x += width
        svg.text(drawing, _megabytes(sums[label]), x + 6, y + 18 + HIGH / 2, 12, INK,
                 "start")
    _legend(drawing, names, ROW * len(cases) + 18)
    return svg.picture(drawing)


def _legend(drawing, names, y):
    x = LEFT
    for place, name in enumerate(names):
        svg.box(drawing, x, y - 6, 12, 12, colour=svg.rank_colour(place), rx=0)
        svg.text(drawing, name, x + 17, y, 11.5, INK, "start")
        x += 30 + svg.wide(name, 11.5)


def _megabytes(size):
    return f"{size / 1e6:.2f} MB"
