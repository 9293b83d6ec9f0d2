"""What `python -m manual_dp plan` predicts, as one picture.

    draw    a bar of step time for each number of devices, and the efficiency
"""

from course.lab.figures import svg
from course.lab.figures.plot import COLOURS, FAINT, INK

LEFT, LINE, TOP = 76, 30, 58
RIGHT = 118  # for the numbers behind the bars


def draw(rows):
    """Draw the `Row`s of a plan: what computes, what waits, how much is used."""
    longest = max(row.step for row in rows)
    words = ", ".join(f"{row.world_size}: {ms(row.step)}, {row.efficiency:.0%}"
                      for row in rows)
    drawing = svg.card(TOP + LINE * len(rows) + 34, f"A step on so many devices: "
                                                    f"{words}")
    for x, colour, what in ((LEFT, COLOURS[0], "arithmetic"),
                            (LEFT + 110, COLOURS[1], "waits for the all-reduce")):
        svg.box(drawing, x, 14, 14, 14, colour=colour, rx=2)
        svg.text(drawing, what, x + 20, 21, 12, INK, "start")
    svg.text(drawing, "devices", LEFT - 10, 45, 11.5, svg.SOFT, "end")
    svg.text(drawing, "step, efficiency", svg.WIDTH - RIGHT + 8, 45, 11.5, svg.SOFT,
             "start")
    scale = (svg.WIDTH - LEFT - RIGHT) / longest
    for i, row in enumerate(rows):
        _line(drawing, row, TOP + LINE * i, scale)
    svg.text(drawing, "A prediction: no loading, no update, no slower ranks.", 14,
             TOP + LINE * len(rows) + 16, 11.5, svg.SOFT, "start")
    return svg.picture(drawing)


def ms(seconds):
    """Say seconds with three digits, in microseconds, milliseconds or seconds."""
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1, "s")):
        if seconds * factor < 999.5 or unit == "s":
            return f"{seconds * factor:.3g} {unit}"


def _line(drawing, row, y, scale):
    svg.text(drawing, f"{row.world_size:,}", LEFT - 10, y + 11, 12.5, INK, "end")
    svg.box(drawing, LEFT, y, svg.WIDTH - LEFT - RIGHT, 22, colour=FAINT, rx=3)
    x = LEFT
    for part, colour in ((row.compute, COLOURS[0]), (row.exposed, COLOURS[1])):
        if part * scale >= 0.1:
            svg.box(drawing, x, y, part * scale, 22, colour=colour, rx=0)
        x += part * scale
    svg.text(drawing, f"{ms(row.step)}, {row.efficiency:.0%}",
             svg.WIDTH - RIGHT + 8, y + 11, 12, INK, "start")
