"""LeNet on two devices: what each way to split it sends between them.

    draw    the traffic of each way, from top to bottom in the order of time   lesson 01
"""

from course.lab.figures import svg
from course.lab.figures.plot import COLOURS, INK

HOLDS = {  # what device 0 and device 1 hold
    "by layer": ("conv 1, conv 2", "linear 1, linear 2"),
    "inside a layer": ("half of each layer", "the other half"),
    "by data": ("all layers, half the rows", "all layers, half the rows"),
}
LEFT, RIGHT, LINE, THICK = 88, svg.WIDTH - 88, 32, 13


def draw(bytes_by_way):
    """Draw for each way two devices, and an arrow for each thing that crosses.

    bytes_by_way: a dict from the way to its transfers in the order of time, each
    (label, bytes) or (label, bytes, sender). sender: 0, 1, or "both" for an exchange
    of so many bytes in all; without it they go back and forth, device 0 first.
    The more bytes, the thicker the arrow, on one scale for all ways.
    """
    most = max(row[1] for rows in bytes_by_way.values() for row in rows)
    heights = [76 + LINE * len(rows) for rows in bytes_by_way.values()]
    sums = "; ".join(f"{way}, {size(sum(row[1] for row in rows))}"
                     for way, rows in bytes_by_way.items())
    drawing = svg.card(sum(heights) + 8,
                       f"What crosses between two devices in one step: {sums}")
    y = 4
    for (way, rows), height in zip(bytes_by_way.items(), heights):
        _way(drawing, way, rows, y, most)
        y += height
    return svg.picture(drawing)


def size(number):
    """Say a number of bytes with three digits, in B, kB or MB."""
    for unit in ("B", "kB", "MB"):
        if number < 999.5 or unit == "MB":
            return f"{number:.3g} {unit}"
        number /= 1000


def _way(drawing, way, rows, top, most):
    import drawsvg
    svg.text(drawing, way, 16, top + 16, 15, INK, "start", font_weight="bold")
    svg.text(drawing, f"{size(sum(row[1] for row in rows))} a step", svg.WIDTH - 16,
             top + 16, 13, INK, "end")
    bottom = top + 64 + LINE * len(rows)
    holds = HOLDS.get(way, ("", ""))
    for rank, x in enumerate((LEFT, RIGHT)):
        drawing.append(drawsvg.Line(x, top + 60, x, bottom - 4, stroke=COLOURS[rank],
                                    stroke_width=3))
        svg.box(drawing, x - 76, top + 30, 152, 36, colour=COLOURS[rank])
        svg.text(drawing, f"device {rank}", x, top + 40, 12, "#ffffff",
                 font_weight="bold")
        svg.text(drawing, holds[rank], x, top + 55, 10.5, "#ffffff")
    for i, (label, number, *sender) in enumerate(rows):
        _transfer(drawing, f"{label}, {size(number)}", top + 88 + LINE * i,
                  THICK * number / most, sender[0] if sender else i % 2)


def _transfer(drawing, label, y, thick, sender):
    ends = [(LEFT + 3, y), (RIGHT - 3, y)]
    start, end = ends if sender in (0, "both") else ends[::-1]
    colour = INK if sender == "both" else COLOURS[sender]
    svg.arrow(drawing, start, end, colour, max(thick, 1), both=sender == "both")
    svg.text(drawing, label, svg.WIDTH / 2, y - max(thick, 1) / 2 - 8, 11.5)
