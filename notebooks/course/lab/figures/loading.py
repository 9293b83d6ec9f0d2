"""Steps that wait for their minibatch: in grey the wait, in colour the step.

    draw    a row for each loader                                           lesson 12
"""

from course.lab.figures import svg
from course.lab.figures.plot import FAINT, INK

LEFT, RIGHT, HIGH = 96, svg.WIDTH - 16, 34


def draw(waits, compute):
    """Draw for each label how long its steps wait, and the steps, one after another.

    waits: {label: ticks that each step waits}. compute: ticks that each step takes.
    """
    ends = {label: sum(ticks) + compute * len(ticks) for label, ticks in waits.items()}
    title = "; ".join(f"{label}: {end} ticks" for label, end in ends.items())
    drawing = svg.card(HIGH * len(waits) + 34, f"Waits and steps. {title}")
    scale = (RIGHT - LEFT) / max(ends.values())
    for row, (label, ticks) in enumerate(waits.items()):
        x, y = LEFT, 6 + HIGH * row
        svg.text(drawing, label, LEFT - 8, y + HIGH / 2, 12, INK, "end")
        for wait in ticks:
            if wait:
                svg.box(drawing, x, y + 4, scale * wait - 1, HIGH - 8, wait, FAINT, INK)
            x += scale * wait
            svg.box(drawing, x, y + 4, scale * compute - 1, HIGH - 8, "step",
                    svg.rank_colour(0), size=11)
            x += scale * compute
    y = 10 + HIGH * len(waits)
    svg.arrow(drawing, (LEFT, y), (RIGHT, y))
    svg.text(drawing, "time, in ticks; in grey a step waits", RIGHT, y + 13, 11.5, INK,
             "end")
    return svg.picture(drawing)
