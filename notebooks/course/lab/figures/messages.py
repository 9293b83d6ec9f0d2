"""What ranks told each other: each rank's number, and what every message carried.

    draw    a panel for each run; on each arrow its messages in order    lesson 22
"""

from course.lab.figures import svg
from course.lab.figures.places import places
from course.lab.figures.plot import INK
from course.lab.figures.traffic import TALL, WIDE, way


def draw(runs, world_size):
    """Draw for each label of `runs` its ranks and the numbers that they sent.

    runs: a dict from a label to (messages, first, last). messages: (source, target,
    number) in order; first and last: each rank's number before and after.
    """
    title = "What each message carried. " + "; ".join(
        f"{label}: ranks end with {', '.join(map(_say, last))}"
        for label, (_, _, last) in runs.items())
    high = 30 if world_size < 3 else 190 if world_size < 5 else 280
    panel = high + TALL + 70
    drawing = svg.card(panel * len(runs) + 8, title)
    for i, (label, run) in enumerate(runs.items()):
        top = 4 + panel * i
        svg.text(drawing, label, 16, top + 16, 14, INK, "start", font_weight="bold")
        _panel(drawing, *run, (svg.WIDTH / 2, top + 44 + (high + TALL) / 2), high)
    return svg.picture(drawing)


def _panel(drawing, messages, first, last, middle, high):
    links = {}
    for source, target, number in messages:
        links.setdefault((source, target), []).append(_say(number))
    middles = [(middle[0] + x, middle[1] + y)
               for x, y in places(links, len(first), svg.WIDTH - WIDE - 124, high)]
    for (source, target), numbers in sorted(links.items()):
        both = (target, source) in links
        (x, y), (right, down) = way(drawing, middles[source], middles[target],
                                    5 * both, 2.5, svg.rank_colour(source))
        out = 1 if both else -1  # outside of the ring is to the left of its arrows
        side = out * right
        anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
        x += {"middle": 0, "start": 13, "end": -13}[anchor]
        svg.text(drawing, ", ".join(numbers), x, y + 12 * out * down, 12,
                 svg.rank_colour(source), anchor, font_weight="bold")
    for rank, (x, y) in enumerate(middles):
        svg.box(drawing, x - WIDE / 2, y - TALL / 2, WIDE, TALL,
                colour=svg.rank_colour(rank))
        for line, words in enumerate((f"rank {rank}", f"holds {_say(first[rank])}",
                                      f"ends with {_say(last[rank])}")):
            svg.text(drawing, words, x, y - 15 + 15.5 * line, 12 - (line > 0),
                     "#ffffff", font_weight="normal" if line else "bold")


def _say(number):
    return f"{number:g}"
