"""What goes from whom to whom: boxes, and an arrow for each way.

    places      where ranks stand: a star, a circle or a tree, as the sends have it
    split       what each way to split LeNet sends                      lesson 01
    traffic     who sends how many bytes to whom                        lessons 07, 22
    messages    what each message of a ring carried                     lesson 22
"""

import math

from course.lab.figures import svg
from course.lab.figures.plot import COLOURS, INK
from course.lab.wire import totals

HOLDS = {  # what device 0 and device 1 hold
    "by layer": ("conv 1, conv 2", "linear 1, linear 2"),
    "inside a layer": ("half of each layer", "the other half"),
    "by data": ("all layers, half the rows", "all layers, half the rows"),
}
WIDE, TALL = 96, 50  # a device's box among arrows


def places(links, world_size, wide, high):
    """Return each rank's (x, y), with (0, 0) in the middle of a wide x high picture.

    links: the pairs (rank, peer) that send. All through rank 0 is a star; round, or
    anything else with a cycle, is a circle; what is left is a tree below rank 0.
    """
    pairs = {tuple(sorted(link)) for link in links}
    if world_size == 2:
        return [(-wide / 3.4, 0), (wide / 3.4, 0)]
    if all(0 in pair for pair in pairs):
        return [(0, 0), *_circle(world_size - 1, wide, high)]
    parent = _parents(pairs)
    if len(parent) == len(pairs) == world_size - 1 and not _is_round(pairs, world_size):
        return _tree(parent, wide, high)
    return _circle(world_size, wide, high)


def _is_round(pairs, world_size):
    return all(b - a in (1, world_size - 1) for a, b in pairs)


def _circle(number, wide, high):
    angles = [2 * math.pi * i / number for i in range(number)]
    return [(wide / 2 * math.sin(a), -high / 2 * math.cos(a)) for a in angles]


def _parents(pairs):
    """Return for each rank that rank 0 reaches through pairs the one before it."""
    parent, near = {}, [0]
    for rank in near:  # grows on the way: ranks nearer to rank 0 come first
        for pair in sorted(pairs):
            peer = sum(pair) - rank
            if rank in pair and peer and peer not in parent:
                parent[peer] = rank
                near.append(peer)
    return parent


def _tree(parent, wide, high):
    children = {rank: [] for rank in (0, *parent)}
    depth, column, leaves = {0: 0}, {}, 0
    for rank, above in parent.items():
        children[above].append(rank)
        depth[rank] = depth[above] + 1
    for rank in _down(0, children):
        if not children[rank]:
            column[rank], leaves = leaves, leaves + 1
    for rank in sorted(children, key=depth.get, reverse=True):
        if children[rank]:
            mine = [column[child] for child in children[rank]]
            column[rank] = sum(mine) / len(mine)
    deep = max(depth.values())
    return [((column[rank] / max(leaves - 1, 1) - 0.5) * wide,
             (depth[rank] / deep - 0.5) * high) for rank in sorted(children)]


def _down(rank, children):
    yield rank
    for child in children[rank]:
        yield from _down(child, children)


def split(bytes_by_way):
    """Draw for each way to split LeNet two devices, and an arrow for what crosses.

    bytes_by_way: a dict from the way to its transfers in the order of time, each
    (label, bytes) or (label, bytes, sender). sender: 0, 1, or "both" for an exchange
    of so many bytes in all; without it they go back and forth, device 0 first.
    The more bytes, the thicker the arrow, on one scale for all ways.
    """
    most = max(row[1] for rows in bytes_by_way.values() for row in rows)
    sums = {way: _size(sum(row[1] for row in rows))
            for way, rows in bytes_by_way.items()}
    high = sum(76 + 32 * len(rows) for rows in bytes_by_way.values())
    drawing = svg.card(high + 8, "What crosses between two devices in one step: "
                       + "; ".join(f"{way}, {size}" for way, size in sums.items()))
    y = 4
    for way, rows in bytes_by_way.items():
        svg.heading(drawing, way, 16, y + 16, 15)
        svg.text(drawing, f"{sums[way]} a step", svg.WIDTH - 16, y + 16, 13, INK, "end")
        _devices(drawing, HOLDS.get(way, ("", "")), y, 64 + 32 * len(rows))
        for i, (label, number, *sender) in enumerate(rows):
            _transfer(drawing, f"{label}, {_size(number)}", y + 88 + 32 * i,
                      max(13 * number / most, 1), sender[0] if sender else i % 2)
        y += 76 + 32 * len(rows)
    return svg.picture(drawing)


def _size(number):
    """Say a number of bytes with three digits, in B, kB or MB."""
    for unit in ("B", "kB", "MB"):
        if number < 999.5 or unit == "MB":
            return f"{number:.3g} {unit}"
        number /= 1000


def _devices(drawing, holds, top, high):
    import drawsvg
    for rank, x in enumerate((88, svg.WIDTH - 88)):
        drawing.append(drawsvg.Line(x, top + 60, x, top + high - 4, stroke=COLOURS[rank],
                                    stroke_width=3))
        svg.box(drawing, x - 76, top + 30, 152, 36, colour=COLOURS[rank])
        svg.text(drawing, f"device {rank}", x, top + 40, 12, "#ffffff",
                 font_weight="bold")
        svg.text(drawing, holds[rank], x, top + 55, 10.5, "#ffffff")


def _transfer(drawing, label, y, thick, sender):
    ends = [(91, y), (svg.WIDTH - 91, y)]
    colour = INK if sender == "both" else COLOURS[sender]
    svg.arrow(drawing, *(ends[::-1] if sender == 1 else ends), colour, thick,
              both=sender == "both")
    svg.text(drawing, label, svg.WIDTH / 2, y - thick / 2 - 8, 11.5)


def traffic(logs, world_size, word="device"):
    """Draw for each label of `logs` its devices and what they sent, in one step.

    logs: a dict from a label to a `Wire.log`. The more bytes in all, the thicker the
    arrow. In each box: the bytes out of the device, and into it. word: what to call it.
    """
    links = {label: {} for label in logs}
    for label, log in logs.items():
        for sent in log:
            link = sent.source, sent.target
            links[label][link] = links[label].get(link, 0) + sent.size
    scale = 12 / max(number for ways in links.values() for number in ways.values())
    worst = {label: _size(max(map(max, totals(log, world_size))))
             for label, log in logs.items()}
    high = 20 if world_size < 3 else 200 if world_size < 5 else 330
    drawing = svg.card((high + 106) * len(logs) + 8,
                       f"Bytes that cross between {word}s in one step. " + "; ".join(
        f"{label}: at most {size} out of or into a {word}"
        for label, size in worst.items()))
    for i, (label, log) in enumerate(logs.items()):
        top = 4 + (high + 106) * i
        svg.heading(drawing, label, 16, top + 16)
        svg.text(drawing, f"busiest {word}: {worst[label]}", svg.WIDTH - 16, top + 16,
                 13, INK, "end")
        middles = _stand(links[label], world_size, 40, (high, top + 65 + high / 2))
        for (source, target), number in sorted(links[label].items()):
            thick = max(number * scale, 1)
            beside = thick / 2 + 4 if (target, source) in links[label] else 0
            _way(drawing, middles[source], middles[target], beside, thick,
                 svg.rank_colour(source))
        sums = zip(*totals(log, world_size))
        for rank, (middle, (out, into)) in enumerate(zip(middles, sums)):
            _device(drawing, rank, middle, f"{word} {rank}", 16, 15, f"out {_size(out)}",
                    f"in {_size(into)}")
    return svg.picture(drawing)


def _stand(links, world_size, aside, height):
    """Return the middle of each rank's box."""
    high, y0 = height
    return [(svg.WIDTH / 2 + x, y0 + y)
            for x, y in places(links, world_size, svg.WIDTH - WIDE - aside, high)]


def _device(drawing, rank, middle, name, first, line, *words, **style):
    x, y = middle
    svg.box(drawing, x - WIDE / 2, y - TALL / 2, WIDE, TALL, colour=svg.rank_colour(rank))
    svg.text(drawing, name, x, y - 15, 12, "#ffffff", font_weight="bold")
    for i, said in enumerate(words):
        svg.text(drawing, said, x, y - 15 + first + line * i, 11, "#ffffff", **style)


def _way(drawing, start, end, beside, thick, colour):
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


def messages(runs, world_size):
    """Draw for each label of `runs` its ranks and the numbers that they sent.

    runs: a dict from a label to (messages, first, last). messages: (source, target,
    number) in order; first and last: each rank's number before and after.
    """
    high = 30 if world_size < 3 else 190 if world_size < 5 else 280
    drawing = svg.card((high + 120) * len(runs) + 8, "What each message carried. "
                       + "; ".join(f"{label}: ranks end with "
                                   f"{', '.join(f'{number:g}' for number in last)}"
                                   for label, (_, _, last) in runs.items()))
    for i, (label, (sent, first, last)) in enumerate(runs.items()):
        top = 4 + (high + 120) * i
        svg.heading(drawing, label, 16, top + 16)
        links = {}
        for source, target, number in sent:
            links.setdefault((source, target), []).append(f"{number:g}")
        middles = _stand(links, len(first), 124, (high, top + 69 + high / 2))
        for (source, target), numbers in sorted(links.items()):
            _told(drawing, middles[source], middles[target], ", ".join(numbers),
                  (target, source) in links, svg.rank_colour(source))
        for rank, middle in enumerate(middles):
            _device(drawing, rank, middle, f"rank {rank}", 15.5, 15.5,
                    f"holds {first[rank]:g}", f"ends with {last[rank]:g}",
                    font_weight="normal")
    return svg.picture(drawing)


def _told(drawing, start, end, words, both, colour):
    (x, y), (right, down) = _way(drawing, start, end, 5 * both, 2.5, colour)
    out = 1 if both else -1  # what is outside of the ring is on its arrows' left hand
    side = out * right
    anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
    x += {"middle": 0, "start": 13, "end": -13}[anchor]
    svg.text(drawing, words, x, y + 12 * out * down, 12, colour, anchor,
             font_weight="bold")
