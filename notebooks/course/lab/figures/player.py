"""All-reduces that move, drawn from a run of the function itself.

    play      one function: every chunk travels, every rank's squares darken  lesson 03
    states    how many ranks are summed in each square, step after step
    race      several functions on one clock                                  lesson 03

What is sent, by whom, in which step, and what everybody holds then is recorded by
`sends.record`; nothing is worked out here. A square is a chunk; it is the darker, the
more ranks are summed in it, and red if a rank is in it twice.
"""

from course.lab.figures import svg
from course.lab.figures.places import places
from course.lab.figures.plot import FAINT, INK
from course.lab.figures.race import race, record

__all__ = ["play", "states", "race"]
SECONDS, START, REST = 1.8, 1.2, 3.0  # a step; before the first; after the last
TOP = 65  # the middle of the highest rank
NUMBERED, RED = 4, "#d1350f"  # squares are wide enough for a number up to so many ranks


def states(allreduce, world_size):
    """Return, at the start and after each step, the sums' sizes as [rank][chunk].

    A number is how many ranks' tensors are summed there.
    """
    start, steps = record(allreduce, world_size)
    return [[[_summed(chunk) for chunk in row] for row in held]
            for held in (start, *(step["held"] for step in steps))]


def play(allreduce, world_size):
    """Draw a function of the module at work on `world_size` ranks, 2 to 8."""
    start, steps = record(allreduce, world_size)
    held = [start, *(step["held"] for step in steps)]
    names = _names(steps, world_size)
    side = max(10, min(22, 84 // world_size))
    links = {(rank, peer) for step in steps for rank, peer, _ in step["sends"]}
    high = 250 if world_size > 2 else 20
    middles = [(svg.WIDTH / 2 + x, TOP + high / 2 + y)
               for x, y in places(links, world_size, 350, high)]
    floor = TOP + high + 44
    table = 14 if world_size < 6 else 11
    title = _title(allreduce, held)
    drawing = svg.card(floor + 120 + table * world_size, f"{title}. {_verdict(held)}")
    svg.text(drawing, title, 16, 18, 13, INK, "start")
    for link in sorted(links):
        if link[::-1] not in links or link[0] < link[1]:
            _link(drawing, *(middles[rank] for rank in link), side * world_size + 12,
                  side + 26, link[::-1] in links)
    clock = [0, *(START + SECONDS * step for step in range(len(steps) + 1))]
    seconds = clock[-1] + REST
    for rank, middle in enumerate(middles):
        _node(drawing, rank, middle, side, [state[rank] for state in held],
              [0, *clock[2:]], seconds)
    _travellers(drawing, middles, side, held, steps, clock, seconds)
    _captions(drawing, floor, names, clock, seconds, _verdict(held))
    _tables(drawing, floor, names, held, table)
    return svg.picture(drawing)


def _summed(chunk):
    summed = round(sum(chunk), 3)
    return int(summed) if summed == int(summed) else summed


def _fill(chunk):
    if max(chunk) > 1:
        return RED
    return svg.shade((sum(chunk) - 1) / (len(chunk) - 1))


def _ink(chunk):
    return INK if _fill(chunk) != RED and 2 * sum(chunk) < len(chunk) + 1 else "#ffffff"


def _names(steps, world_size):
    """Return (phase, number within it) of every step."""
    words = {("add", True): "reduce to one rank", ("copy", True): "broadcast",
             ("add", False): "reduce-scatter", ("copy", False): "all-gather"}
    names = []
    for step in steps:
        whole = len(step["sends"][0][2]) == world_size
        phase = words[step["kind"], whole]
        number = names[-1][1] + 1 if names and names[-1][0] == phase else 1
        names.append((phase, number))
    return names


def _verdict(held):
    good = all(part == 1 for row in held[-1] for chunk in row for part in chunk)
    if good:
        return f"Every rank holds the sum of all {len(held[-1])}."
    return "Not every rank holds the sum."


def _title(allreduce, held):
    name = getattr(allreduce, "__name__", "a function").replace("<lambda>", "it")
    return f"{name} on {len(held[0])} ranks: {len(held) - 1} steps"


def _square(middle, side, world_size, chunk):
    """Return the upper left corner of a chunk's square in a rank's box."""
    return (svg.short(middle[0] + (chunk - world_size / 2) * side + 1),
            svg.short(middle[1] - side / 2 + 8))


def _node(drawing, rank, middle, side, states, clock, seconds):
    import drawsvg
    world_size, colour = len(states[0]), svg.rank_colour(rank)
    wide, high = side * world_size + 12, side + 26
    svg.box(drawing, middle[0] - wide / 2, middle[1] - high / 2, wide, high,
            colour="#ffffff", stroke=colour, stroke_width=2)
    svg.text(drawing, f"rank {rank}", middle[0], middle[1] - high / 2 + 10, 12, colour,
             font_weight="bold")
    for chunk in range(world_size):
        x, y = _square(middle, side, world_size, chunk)
        square = drawsvg.Rectangle(x, y, side - 2, side - 2,
                                   fill=_fill(states[0][chunk]))
        svg.jumps(square, "fill", [(time, _fill(state[chunk]))
                                   for time, state in zip(clock, states)], seconds)
        drawing.append(square)
        if world_size <= NUMBERED:
            _numbers(drawing, (x + side / 2 - 1, y + side / 2 - 1),
                     [(time, state[chunk]) for time, state in zip(clock, states)],
                     seconds)


def _numbers(drawing, middle, frames, seconds):
    """Write at its time into a square how many ranks are summed there."""
    for chunk in {tuple(chunk): chunk for _, chunk in frames}.values():
        shown = [(time, "visible" if other == chunk else "hidden")
                 for time, other in frames]
        number = svg.text(drawing, _summed(chunk), *middle, 11, _ink(chunk),
                          visibility=shown[0][1])
        svg.jumps(number, "visibility", shown, seconds)


def _link(drawing, start, end, wide, high, both):
    """Draw an arrow from one rank's box to another's."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    # how much of the way lies inside a box
    part = min((wide / 2 + 4) / max(abs(dx), 1e-9), (high / 2 + 4) / max(abs(dy), 1e-9))
    svg.arrow(drawing, (start[0] + part * dx, start[1] + part * dy),
              (end[0] - part * dx, end[1] - part * dy), "#c3c9d1", 2, both)


def _travellers(drawing, middles, side, held, steps, clock, seconds):
    """Draw what each rank sends: out of its box, along the link, into the other's."""
    import drawsvg
    world_size = len(middles)
    kinds = sorted({(rank, len(chunks)) for step in steps
                    for rank, _, chunks in step["sends"]})
    for rank, size in kinds:
        way, fills = [(0, svg.AWAY)], []
        for number, step in enumerate(steps):
            begin = clock[number + 1]
            for sender, peer, chunks in step["sends"]:
                if (sender, len(chunks)) == (rank, size):
                    place = [_square(middles[who], side, world_size, chunks[0])
                             for who in (rank, peer)]
                    way += [(begin, way[-1][1]), (begin, place[0]),
                            (begin + 0.85 * SECONDS, place[1])]
                    fills.append((begin, _fill(held[number][rank][chunks[0]])))
                    break
            else:
                way += [(begin, way[-1][1]), (begin, svg.AWAY)]
        way += [(clock[-1], way[-1][1]), (clock[-1], svg.AWAY)]
        group = drawsvg.Rectangle(0, 0, size * side - 2, side - 2, rx=2,
                                  fill=fills[0][1], stroke=svg.rank_colour(rank),
                                  stroke_width=3, transform="translate(-999 -999)")
        svg.jumps(group, "fill", [(0, fills[0][1]), *fills], seconds)
        svg.travel(group, way, seconds)
        drawing.append(group)


def _captions(drawing, floor, names, clock, seconds, verdict):
    """Write what happens in each step, above a line on which the time runs."""
    import drawsvg
    words = ["start: every rank holds its own numbers",
             *(f"{phase}, step {number}" for phase, number in names), verdict]
    for begin, end, line in zip(clock, [*clock[1:], seconds], words):
        frames = [(0, "hidden")] * (begin > 0) + [(begin, "visible")]
        frames += [(end, "hidden")] * (end < seconds)
        element = svg.text(drawing, line, svg.WIDTH / 2, floor, 15, INK,
                           font_weight="bold", visibility=frames[0][1])
        svg.jumps(element, "visibility", frames, seconds)
    scale = (svg.WIDTH - 40) / max(seconds, 1e-9)
    for number in range(len(names)):
        svg.box(drawing, 21 + clock[number + 1] * scale, floor + 20,
                SECONDS * scale - 2, 6, colour=FAINT, rx=2)
    for phase in dict.fromkeys(phase for phase, _ in names):
        mine = [i for i, name in enumerate(names) if name[0] == phase]
        middle = (clock[mine[0] + 1] + clock[mine[-1] + 1] + SECONDS) / 2
        steps = f"{len(mine)} step{'s' * (len(mine) > 1)}"
        for line, words in enumerate((phase, steps)):
            svg.text(drawing, words, 20 + middle * scale, floor + 37 + 14 * line, 11.5)
    point = drawsvg.Circle(0, floor + 23, 5, fill=RED, transform="translate(20 0)")
    svg.travel(point, [(0, (20, 0)), (seconds, (svg.WIDTH - 20, 0))], seconds)
    drawing.append(point)


def _tables(drawing, floor, names, held, side):
    """Draw what all hold at the start and at the end of each phase: it stands still."""
    ends = [i for i, name in enumerate(names)
            if i + 1 == len(names) or names[i + 1][0] != name[0]][-3:]
    shown = [("start", held[0]), *((f"after {names[i][0]}", held[i + 1]) for i in ends)]
    column, world_size = svg.WIDTH / len(shown), len(held[0])
    for place, (label, state) in enumerate(shown):
        middle, y = column * (place + 0.5) + 14, floor + 86
        x = middle - world_size * side / 2
        svg.text(drawing, label, middle, floor + 74, 12, font_weight="bold")
        fills = {}
        for rank, row in enumerate(state):
            svg.text(drawing, rank if place else f"rank {rank}", x - 5,
                     y + (rank + 0.5) * side, 10.5, svg.rank_colour(rank), "end")
            for chunk, parts in enumerate(row):
                fills.setdefault(_fill(parts), []).append(
                    (x + chunk * side + 0.5, y + rank * side + 0.5))
        for fill in sorted(fills):
            svg.tiles(drawing, fills[fill], side - 1, side - 1, fill)
    svg.text(drawing, "A square is a chunk. The darker it is, the more ranks are "
             "summed in it.", svg.WIDTH / 2, floor + 104 + world_size * side, 11.5)
