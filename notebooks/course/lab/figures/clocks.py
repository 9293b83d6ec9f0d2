"""Who does what, and when: a row for each device, time to the right.

pipeline    which device works on which micro-batch                 split_the_work
"""

from course.lab.figures import svg
from course.lab.figures.lanes import Lanes, hand
from course.lab.figures.plot import INK
from course.lab.figures.svg import WIDTH, rank_colour


def pipeline(schedule, stages):
    """Draw a schedule; slots in which a device has nothing to do stay empty.

    schedule: list of (start, stage, micro_batch, kind), a slot each; kind is "forward"
    or "backward". Micro-batches are written as they are numbered.
    """
    slots = 1 + max(start for start, *_ in schedule)
    room = 4 + svg.wide(f"F{max(number for _, _, number, _ in schedule)}", 10.5)
    wide = (WIDTH - 78) / slots
    if wide < room:
        wide = (720 - 78) / slots  # a wider card, even if there is no room in this one
    written = wide >= room
    idle = 1 - len(schedule) / (slots * stages)
    title = f"{stages} devices, idle {idle:.0%} of the time"
    right, bottom = 66 + wide * slots, 34 + 32 * stages
    card = Lanes(
        36 + bottom,
        f"A pipeline's schedule: {title}",
        left=66,
        width=max(WIDTH, round(right + 12)),
    )
    card.scale = wide
    card.heading(title, 14, 18)
    _slots(card, schedule, stages, slots)
    for stage in range(stages):
        card.label(f"device {stage}", 49 + 32 * stage)
        for kind in ("forward", "backward"):
            mine = [
                (start, number)
                for start, where, number, what in schedule
                if (where, what) == (stage, kind)
            ]
            _work(card, mine, 49 + 32 * stage, kind, rank_colour(stage), written)
    card.arrow((66, bottom + 8), (right, bottom + 8))
    if written:
        words, more = "F1: forward of micro-batch 1", ", B1: its backward"
    else:
        words, more = "full: forward", ", outlined: backward"
    if any(kind == "backward" for *_, kind in schedule):
        words += more
    card.text(words, 66, bottom + 23, 11.5, INK, "start")
    card.text("time", right, bottom + 23, 11.5, INK, "end")
    hand(card, 66, right, (30, bottom + 8), 0.6 * slots, 0.6 * slots + 1)
    return card.picture()


def _slots(card, schedule, stages, slots):
    """Outline all slots; where there is room, say that one is idle."""
    busy = {(stage, start) for start, stage, *_ in schedule}
    every = [(stage, slot) for stage in range(stages) for slot in range(slots)]
    card.tiles(
        [(card.at(slot) + 2, 36 + 32 * stage) for stage, slot in every],
        card.scale - 4,
        26,
        "none",
        stroke="#c9ced6",
        stroke_dasharray="3 3",
    )
    for stage, slot in every:
        if card.scale >= 30 and (stage, slot) not in busy:
            card.text("idle", card.at(slot + 0.5), 49 + 32 * stage, 11, svg.SOFT)


def _work(card, slots, y, kind, colour, written):
    """Fill a stage's slots of one kind: (start, micro-batch) each.

    written: is there room for the micro-batch's number?
    """
    ink, ground = ("#ffffff", colour) if kind == "forward" else (colour, "#ffffff")
    card.tiles(
        [(card.at(start) + 2, y - 13) for start, _ in slots],
        card.scale - 4,
        26,
        ground,
        stroke=colour,
        stroke_width=2,
        stroke_linejoin="round",
    )
    size = 12 if card.scale > 29 else 10.5
    with card.group(fill=ink):
        for start, number in slots if written else ():
            card.text(f"{kind[0].upper()}{number}", card.at(start + 0.5), y, size)
