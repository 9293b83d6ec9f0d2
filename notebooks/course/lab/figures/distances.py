"""How near each guess comes to what was measured: bars on a scale of powers of ten.

    draw    a bar for each guess, as long as its distance, and the bound   lesson 11

A distance below RIGHT is rounding, and differs from machine to machine: its bar ends at
rounding's own place, 1e-16, and no number is written.
"""

import math

from course.lab.figures import svg
from course.lab.figures.plot import COLOURS, INK

POWERS, RIGHT = 16, 1e-12
LEFT, RIGHT_EDGE, ROW, TOP = 150, 404, 26, 34


def place(distance):
    """Return the x of a distance: 1e-16 or less at the left, 1 or more at the right."""
    return LEFT if distance < RIGHT else _tick(math.log10(min(distance, 1)))


def _tick(power):
    return LEFT + (1 + power / POWERS) * (RIGHT_EDGE - LEFT)


def draw(distances, bound):
    """Draw a dict from guess to distance; what is nearer than `bound` fits.

    distances: as parts of what was measured, inf where a guess cannot be compared.
    """
    import drawsvg
    fits = [label for label, distance in distances.items() if distance < bound]
    title = f"What fits: {', '.join(fits) or 'none'}"
    bottom = TOP + ROW * len(distances)
    drawing = svg.card(bottom + 58, title)
    svg.text(drawing, title, 12, 16, 12.5, INK, "start", font_weight="bold")
    x = svg.short(place(bound))
    drawing.append(drawsvg.Line(x, TOP - 4, x, bottom + 4, stroke=INK, stroke_width=1.2,
                                stroke_dasharray="5 3"))
    svg.text(drawing, "fits", x - 6, bottom + 12, 11, INK, "end")
    svg.text(drawing, "does not", x + 6, bottom + 12, 11, INK, "start")
    for row, (label, distance) in enumerate(distances.items()):
        y, colour = TOP + ROW * row, COLOURS[2] if distance < bound else svg.SOFT
        svg.text(drawing, label, LEFT - 10, y + ROW / 2, 12, INK, "end")
        svg.box(drawing, LEFT - 4, y + 5, place(distance) - LEFT + 4, ROW - 10,
                colour=colour, rx=2)
        svg.text(drawing, _words(distance), place(distance) + 6, y + ROW / 2, 11.5, INK,
                 "start")
    for power in range(-POWERS, 1, 4):
        svg.text(drawing, f"1e{power}" if power else 1, _tick(power), bottom + 28, 11)
    svg.text(drawing, "distance, as a part of what was measured",
             (LEFT + RIGHT_EDGE) / 2, bottom + 46, 11.5)
    return svg.picture(drawing)


def _words(distance):
    if distance < RIGHT:
        return "rounding"
    return "cannot be" if math.isinf(distance) else f"{distance:.2g}"
