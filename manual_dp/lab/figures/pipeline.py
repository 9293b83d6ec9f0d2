"""A pipeline's schedule: which device works on which micro-batch, and when.

    draw    time to the right, a row for each device; what is empty is idle   lesson 01
"""

from manual_dp.lab.figures import svg
from manual_dp.lab.figures.plot import INK

LEFT, HIGH = 66, 32
SECONDS = 0.6  # a slot


def draw(schedule, stages):
    """Draw a schedule; slots in which a device has nothing to do stay empty.

    schedule: list of (start, stage, micro_batch, kind), a slot each; kind is "forward"
    or "backward". Micro-batches are written as they are numbered.
    """
    slots = 1 + max(start for start, *_ in schedule)
    idle = 1 - len(schedule) / (slots * stages)
    wide = max(min((svg.WIDTH - LEFT - 12) / slots, 46), 21)
    right = LEFT + wide * slots
    title = f"{stages} devices, idle {idle:.0%} of the time"
    drawing = svg.card(70 + HIGH * stages, f"A pipeline's schedule: {title}",
                       max(svg.WIDTH, round(right + 12)))
    svg.text(drawing, title, 14, 18, 14, INK, "start", font_weight="bold")
    for stage in range(stages):
        y = 34 + HIGH * stage
        svg.text(drawing, f"device {stage}", LEFT - 8, y + HIGH / 2, 12, INK, "end")
        for slot in range(slots):
            svg.box(drawing, LEFT + wide * slot + 1.5, y + 2.5, wide - 3, HIGH - 5,
                    colour="#ffffff", stroke="#c9ced6", stroke_dasharray="3 3")
    for start, stage, micro_batch, kind in schedule:
        _work(drawing, LEFT + wide * start + 1, 36 + HIGH * stage, wide - 2,
              f"{kind[0].upper()}{micro_batch}", svg.rank_colour(stage),
              kind == "forward")
    bottom = 34 + HIGH * stages
    svg.arrow(drawing, (LEFT, bottom + 8), (right, bottom + 8), svg.SOFT)
    has_backward = any(kind == "backward" for *_, kind in schedule)
    svg.text(drawing, "F1: forward of micro-batch 1" + ", B1: its backward"
             * has_backward, LEFT, bottom + 23, 11.5, INK, "start")
    svg.text(drawing, "time", svg.WIDTH - 14, bottom + 23, 11.5, INK, "end")
    _clock(drawing, right, bottom, slots)
    return svg.picture(drawing)


def _work(drawing, x, y, width, words, colour, forward):
    size = 12 if width > 23 else 10.5
    if forward:
        svg.box(drawing, x, y, width, HIGH - 4, words, colour, size=size)
    else:
        svg.box(drawing, x + 1, y + 1, width - 2, HIGH - 6, words, "#ffffff", colour,
                size, stroke=colour, stroke_width=2)


def _clock(drawing, right, bottom, slots):
    import drawsvg
    hand = drawsvg.Line(0, 30, 0, bottom + 8, stroke="#c2410c", stroke_width=2,
                        transform=f"translate({LEFT} 0)")
    end = SECONDS * slots
    svg.travel(hand, [(0, (LEFT, 0)), (end, (right, 0)), (end + 1, (right, 0))], end + 1)
    drawing.append(hand)
