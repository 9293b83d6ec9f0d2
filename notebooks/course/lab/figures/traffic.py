"""Who sends how many bytes to whom: devices, and an arrow for each way.

    draw    a panel for each way of training, on one scale     lessons 07, 22
    way     an arrow from one box to another

A star stands as a star and a ring as a ring, because the sends have it so.
"""

from course.lab.figures import svg
from course.lab.figures.places import places
from course.lab.figures.plot import INK
from course.lab.figures.split import size
from course.lab.wire import totals

WIDE, TALL, THICK = 96, 50, 12  # a device's box; the thickest arrow


def draw(logs, world_size, word="device"):
    """Draw for each label of `logs` its devices and what they sent, in one step.

    logs: a dict from a label to a `Wire.log`. The more bytes in all, the thicker the
    arrow. In each box: the bytes out of the device, and into it. word: what to call it.
    """
    links = {label: _links(log) for label, log in logs.items()}
    most = max(number for ways in links.values() for number in ways.values())
    worst = {label: max(map(max, totals(log, world_size)))
             for label, log in logs.items()}
    title = f"Bytes that cross between {word}s in one step. " + "; ".join(
        f"{label}: at most {size(number)} out of or into a {word}"
        for label, number in worst.items())
    high = 20 if world_size < 3 else 200 if world_size < 5 else 330
    panel = high + TALL + 56
    drawing = svg.card(panel * len(logs) + 8, title)
    for i, (label, log) in enumerate(logs.items()):
        top = 4 + panel * i
        svg.text(drawing, label, 16, top + 16, 14, INK, "start", font_weight="bold")
        svg.text(drawing, f"busiest {word}: {size(worst[label])}", svg.WIDTH - 16,
                 top + 16, 13, INK, "end")
        _panel(drawing, links[label], totals(log, world_size),
               (svg.WIDTH / 2, top + 40 + (high + TALL) / 2), high, THICK / most, word)
    return svg.picture(drawing)


def _links(log):
    """Add up the bytes of each pair (source, target)."""
    ways = {}
    for entry in log:
        way = entry.source, entry.target
        ways[way] = ways.get(way, 0) + entry.size
    return ways


def _panel(drawing, ways, sums, middle, high, scale, word):
    world_size = len(sums[0])
    middles = [(middle[0] + x, middle[1] + y)
               for x, y in places(ways, world_size, svg.WIDTH - WIDE - 40, high)]
    for (source, target), number in sorted(ways.items()):
        beside = max(number * scale, 1) / 2 + 4 if (target, source) in ways else 0
        way(drawing, middles[source], middles[target], beside,
            max(number * scale, 1), svg.rank_colour(source))
    for rank, (x, y) in enumerate(middles):
        svg.box(drawing, x - WIDE / 2, y - TALL / 2, WIDE, TALL,
                colour=svg.rank_colour(rank))
        svg.text(drawing, f"{word} {rank}", x, y - 15, 12, "#ffffff",
                 font_weight="bold")
        for line, (side, numbers) in enumerate(zip(("out", "in"), sums)):
            svg.text(drawing, f"{side} {size(numbers[rank])}", x, y + 1 + 15 * line,
                     11, "#ffffff")


def way(drawing, start, end, beside, thick, colour):
    """Draw an arrow from box to box, moved to its own right hand by some pixels.

    Return the middle of the arrow, and the direction (x, y) to its right hand.
    """
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx**2 + dy**2) ** 0.5
    # how much of the way lies inside a box
    part = min((WIDE / 2 + 3) / max(abs(dx), 1e-9), (TALL / 2 + 3) / max(abs(dy), 1e-9))
    right = -dy / length, dx / length
    x, y = beside * right[0], beside * right[1]
    svg.arrow(drawing, (start[0] + part * dx + x, start[1] + part * dy + y),
              (end[0] - part * dx + x, end[1] - part * dy + y), colour, thick)
    return (start[0] + dx / 2 + x, start[1] + dy / 2 + y), right
