"""A pipeline's schedule: which device works on which micro-batch, and when.

    draw    time to the right, a row for each device; what is empty is idle   lesson 01
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, HIGH, SMALL = 66, 32, 10.5
SECONDS = 0.6  # a slot


def draw(schedule, stages):
    """Draw a schedule; slots in which a device has nothing to do stay empty.

    schedule: list of (start, stage, micro_batch, kind), a slot each; kind is "forward"
    or "backward". Micro-batches are written as they are numbered.
    """
    slots = 1 + max(start for start, *_ in schedule)
    idle = 1 - len(schedule) / (slots * stages)
    label = f"F{max(micro_batch for _, _, micro_batch, _ in schedule)}"
    room = svg.wide(label, SMALL) + 4
    wide = next((w for w in ((width - LEFT - 12) / slots for width in (svg.WIDTH, 720))
                 if w >= room), (720 - LEFT - 12) / slots)
    right = LEFT + wide * slots
    title = f"{stages} devices, idle {idle:.0%} of the time"
    drawing = svg.card(70 + HIGH * stages, f"A pipeline's schedule: {title}",
                       max(svg.WIDTH, round(right + 12)))
    svg.text(drawing, title, 14, 18, 14, INK, "start", font_weight="bold")
    svg.tiles(drawing, [(LEFT + wide * slot + 2, 36 + HIGH * stage)
                        for stage in range(stages) for slot in range(slots)],
              wide - 4, HIGH - 6, "none", stroke="#c9ced6", stroke_dasharray="3 3")
    busy = {(start, stage) for start, stage, *_ in schedule}
    for stage in range(stages):
        for slot in range(slots):
            if wide >= 30 and (slot, stage) not in busy:
                svg.text(drawing, "idle", LEFT + wide * (slot + 0.5),
                         33 + HIGH * (stage + 0.5), 11, svg.SOFT)
    for stage in range(stages):
        y = 33 + HIGH * (stage + 0.5)
        svg.text(drawing, f"device {stage}", LEFT - 8, y, 12, INK, "end")
        for kind in ("forward", "backward"):
            mine = [(LEFT + wide * start, micro_batch)
                    for start, where, micro_batch, what in schedule
                    if (where, what) == (stage, kind)]
            _work(drawing, mine, y, wide, kind, svg.rank_colour(stage), wide >= room)
    bottom = 34 + HIGH * stages
    svg.arrow(drawing, (LEFT, bottom + 8), (right, bottom + 8), svg.SOFT)
    has_backward = any(kind == "backward" for *_, kind in schedule)
    words = ("F1: forward of micro-batch 1" + ", B1: its backward" * has_backward
             if wide >= room else
             "full: forward" + ", outlined: backward" * has_backward)
    svg.text(drawing, words, LEFT, bottom + 23, 11.5, INK, "start")
    svg.text(drawing, "time", right, bottom + 23, 11.5, INK, "end")
    _clock(drawing, right, bottom, slots)
    return svg.picture(drawing)


def _work(drawing, slots, y, wide, kind, colour, written):
    """Fill a stage's slots of one kind: (x, micro-batch) each."""
    import drawsvg
    places = [(x + 2, y - HIGH / 2 + 3) for x, _ in slots]
    full = kind == "forward"
    svg.tiles(drawing, places, wide - 4, HIGH - 6, colour if full else "#ffffff",
              stroke=colour, stroke_width=2, stroke_linejoin="round")
    words = drawsvg.Group(fill="#ffffff" if full else colour)
    for x, micro_batch in slots * written:
        svg.text(words, f"{kind[0].upper()}{micro_batch}", x + wide / 2, y,
                 12 if wide > 29 else SMALL)
    drawing.append(words)


def _clock(drawing, right, bottom, slots):
    import drawsvg
    hand = drawsvg.Line(0, 30, 0, bottom + 8, stroke="#c2410c", stroke_width=2,
                        transform=f"translate({LEFT} 0)")
    end = SECONDS * slots
    svg.travel(hand, [(0, (LEFT, 0)), (end, (right, 0))], end + 1)
    drawing.append(hand)
