"""All-reduces that move, drawn from a run of the function itself.

    play      one function: every chunk travels, every rank's squares darken  lesson 03
    states    how many ranks are summed in each square, step after step       lesson 03
    race      several functions on one clock                                  lesson 03

What is sent, by whom, in which step, and what everybody holds then is recorded by
`sends.states`; nothing is worked out here. A square is a chunk; it is the darker, the
more ranks are summed in it, and red if a rank is in it twice.
"""

from course.lab import sends
from course.lab.figures import svg
from course.lab.figures.graph import places
from course.lab.figures.lanes import hand, plural
from course.lab.figures.plot import FAINT, INK

SECONDS, START, REST = 1.8, 1.2, 3.0  # a step; before the first; after the last
TOP, RED = 65, "#d1350f"  # the middle of the highest rank; a rank is in there twice
NUMBERED = 4  # squares are wide enough for a number up to so many ranks
PHASES = {("add", True): "reduce to one rank", ("copy", True): "broadcast",
          ("add", False): "reduce-scatter", ("copy", False): "all-gather"}


def states(allreduce, world_size):
    """Return, at the start and after each step, the sums' sizes as [rank][chunk].

    A number is how many ranks' tensors are summed there.
    """
    return [[[_summed(chunk) for chunk in row] for row in held]
            for held in sends.states(allreduce, world_size)[1]]


def play(allreduce, world_size):
    """Draw a function of the module at work on `world_size` ranks, 2 to 8."""
    steps, held = _recorded(allreduce, world_size)
    side = max(10, min(22, 84 // world_size))
    links = {send[:2] for step in steps for send in step}
    high = 250 if world_size > 2 else 20
    middles = [(svg.WIDTH / 2 + x, TOP + high / 2 + y)
               for x, y in places(links, world_size, 350, high)]
    floor = TOP + high + 44
    table = 14 if world_size < 6 else 11
    name = getattr(allreduce, "__name__", "a function").replace("<lambda>", "it")
    title = f"{name} on {world_size} ranks: {len(steps)} steps"
    done = all(part == 1 for row in held[-1] for chunk in row for part in chunk)
    verdict = f"{'E' if done else 'Not e'}very rank holds the sum" + (
        f" of all {world_size}." if done else ".")
    drawing = svg.card(floor + 120 + table * world_size, f"{title}. {verdict}")
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
    for rank in range(world_size):
        for size in sorted({send[3] for step in steps for send in step
                            if send[0] == rank}):
            _traveller(drawing, rank, size, middles, side, held, steps, clock)
    names = _names(steps, world_size)
    _captions(drawing, floor, names, clock, verdict)
    _timescale(drawing, floor, [phase for phase, _ in names], clock)
    _tables(drawing, floor, names, held, table)
    return svg.picture(drawing)


def _recorded(allreduce, world_size):
    """Return each step's sends (source, target, chunk, chunks, kind); what is held."""
    log, held = sends.states(allreduce, world_size)
    steps = [[] for _ in held[1:]]
    for step, source, target, first, last, kind, _ in log:
        first, last = first // world_size, (last - 1) // world_size
        steps[step].append((source, target, first, last - first + 1, kind))
    return steps, held


def _summed(chunk):
    summed = round(sum(chunk), 3)
    return int(summed) if summed == int(summed) else summed


def _fill(chunk):
    return RED if max(chunk) > 1 else svg.shade((sum(chunk) - 1) / (len(chunk) - 1))


def _names(steps, world_size):
    """Return (phase, number within it) of every step."""
    names = []
    for step in steps:
        *_, chunks, kind = step[0]
        phase = PHASES[kind, chunks == world_size]
        number = names[-1][1] + 1 if names and names[-1][0] == phase else 1
        names.append((phase, number))
    return names


def _square(middle, side, world_size, chunk):
    """Return the upper left corner of a chunk's square in a rank's box."""
    return (svg.short(middle[0] + (chunk - world_size / 2) * side + 1),
            svg.short(middle[1] - side / 2 + 8))


def _node(drawing, rank, middle, side, rows, clock, seconds):
    import drawsvg
    world_size, colour = len(rows[0]), svg.rank_colour(rank)
    wide, high = side * world_size + 12, side + 26
    svg.box(drawing, middle[0] - wide / 2, middle[1] - high / 2, wide, high,
            colour="#ffffff", stroke=colour, stroke_width=2)
    svg.text(drawing, f"rank {rank}", middle[0], middle[1] - high / 2 + 10, 12, colour,
             font_weight="bold")
    for chunk in range(world_size):
        x, y = _square(middle, side, world_size, chunk)
        frames = [(time, row[chunk]) for time, row in zip(clock, rows)]
        square = drawsvg.Rectangle(x, y, side - 2, side - 2, fill=_fill(frames[0][1]))
        svg.jumps(square, "fill", [(time, _fill(parts)) for time, parts in frames],
                  seconds)
        drawing.append(square)
        if world_size <= NUMBERED:
            _numbers(drawing, x + side / 2 - 1, y + side / 2 - 1, frames, seconds)


def _numbers(drawing, x, y, frames, seconds):
    """Write at its time into a square how many ranks are summed there."""
    for chunk in {tuple(chunk): chunk for _, chunk in frames}.values():
        shown = [(time, "visible" if other == chunk else "hidden")
                 for time, other in frames]
        light = _fill(chunk) != RED and 2 * sum(chunk) < len(chunk) + 1
        number = svg.text(drawing, _summed(chunk), x, y, 11, INK if light else "#ffffff",
                          visibility=shown[0][1])
        svg.jumps(number, "visibility", shown, seconds)


def _link(drawing, start, end, wide, high, both):
    """Draw an arrow from one rank's box to another's."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    # how much of the way lies inside a box
    part = min((wide / 2 + 4) / max(abs(dx), 1e-9), (high / 2 + 4) / max(abs(dy), 1e-9))
    svg.arrow(drawing, (start[0] + part * dx, start[1] + part * dy),
              (end[0] - part * dx, end[1] - part * dy), "#c3c9d1", 2, both)


def _traveller(drawing, rank, size, middles, side, held, steps, clock):
    """Let what a rank sends, so many chunks, go from its box into the other's."""
    import drawsvg
    way, fills, seconds = [(0, svg.AWAY)], [], clock[-1] + REST
    for begin, step, before in zip(clock[1:], steps, held):
        sent = [send for send in step if (send[0], send[3]) == (rank, size)]
        way.append((begin, way[-1][1]))
        for _, peer, chunk, *_ in sent:
            start, end = (_square(middles[who], side, len(middles), chunk)
                          for who in (rank, peer))
            way += [(begin, start), (begin + 0.85 * SECONDS, end)]
            fills.append((begin, _fill(before[rank][chunk])))
        if not sent:
            way.append((begin, svg.AWAY))
    way += [(clock[-1], way[-1][1]), (clock[-1], svg.AWAY)]
    group = drawsvg.Rectangle(0, 0, size * side - 2, side - 2, rx=2, fill=fills[0][1],
                              stroke=svg.rank_colour(rank), stroke_width=3,
                              transform="translate(-999 -999)")
    svg.jumps(group, "fill", [(0, fills[0][1]), *fills], seconds)
    svg.travel(group, way, seconds)
    drawing.append(group)


def _captions(drawing, floor, names, clock, verdict):
    """Write what happens in each step."""
    seconds = clock[-1] + REST
    words = ["start: every rank holds its own numbers",
             *(f"{phase}, step {number}" for phase, number in names), verdict]
    for begin, end, line in zip(clock, [*clock[1:], seconds], words):
        frames = [(0, "hidden")] * (begin > 0) + [(begin, "visible")]
        frames += [(end, "hidden")] * (end < seconds)
        element = svg.text(drawing, line, svg.WIDTH / 2, floor, 15, INK,
                           font_weight="bold", visibility=frames[0][1])
        svg.jumps(element, "visibility", frames, seconds)


def _timescale(drawing, floor, phases, clock):
    """Draw a line on which the time runs, and the phases below it."""
    import drawsvg
    seconds = clock[-1] + REST
    scale = (svg.WIDTH - 40) / seconds
    for begin in clock[1:-1]:
        svg.box(drawing, 21 + begin * scale, floor + 20, SECONDS * scale - 2, 6,
                colour=FAINT, rx=2)
    for phase in dict.fromkeys(phases):
        mine = [begin for begin, name in zip(clock[1:], phases) if name == phase]
        x = 20 + scale * (mine[0] + mine[-1] + SECONDS) / 2
        for line, words in enumerate((phase, plural(len(mine), "step"))):
            svg.text(drawing, words, x, floor + 37 + 14 * line, 11.5)
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


def race(functions, world_size):
    """Draw functions side by side, each a run of its own, all on one clock.

    functions: a list of all-reduces, or a dict from their labels. In a tick, a rank
    sends at most one chunk, of as many as there are ranks, and receives at most one.
    What it costs to begin a send is left out: the tensor is large.
    """
    if not isinstance(functions, dict):
        functions = {function.__name__: function for function in functions}
    runs = {label: _recorded(f, world_size) for label, f in functions.items()}
    ticks = {label: [max(send[3] for send in step) for step in steps]
             for label, (steps, _) in runs.items()}
    longest = max(map(sum, ticks.values()))
    tick = min(1.0, 16 / longest)
    seconds = longest * tick + 2.5
    said = {label: f"{sum(each)} ticks" for label, each in ticks.items()}
    drawing = svg.card(306 + 34 * len(runs), f"{world_size} ranks, one large tensor: "
                       + ", ".join(f"{label} {words}" for label, words in said.items()))
    column = svg.WIDTH / len(runs)
    for place, (label, run) in enumerate(runs.items()):
        x = column * (place + 0.5)
        times = [tick * sum(ticks[label][:i]) for i in range(len(run[0]) + 1)]
        svg.text(drawing, label, x, 18, 13, INK, font_weight="bold")
        _runners(drawing, x, column, *run, times, seconds)
    for row, label in enumerate(runs):
        _bar(drawing, 230 + 34 * row, label, ticks[label], said[label], 292 / longest)
    hand(drawing, 118, svg.WIDTH - 70, [(226, 230 + 34 * len(runs))], longest * tick,
         seconds, RED)
    for line, words in enumerate((
            f"In one tick, a rank sends at most one chunk (1/{world_size} of the tensor)",
            "and receives at most one. The bar under a rank is full when",
            "the rank holds the whole sum.")):
        svg.text(drawing, words, 14, 260 + 34 * len(runs) + 15 * line, 11.5, INK,
                 "start")
    return svg.picture(drawing)


def _bar(drawing, y, label, ticks, said, scale):
    """Draw a box for each step of a function, as long as its ticks are many."""
    svg.text(drawing, label, 110, y + 12, 12, INK, "end")
    x = 118
    for number in ticks:
        width = number * scale
        svg.box(drawing, x + 0.5, y, max(width - 1, 1), 24, colour="#c3c9d1", rx=2)
        x += width
    svg.text(drawing, said, x + 6, y + 12, 12, INK, "start")


def _runners(drawing, middle, column, steps, held, times, seconds):
    """Draw a function's ranks, what they send, and below each what it has."""
    import drawsvg
    links = {send[:2] for step in steps for send in step}
    where = [(middle + x, 129 + y)
             for x, y in places(links, len(held[0]), column - 42, 140)]
    for link in sorted({tuple(sorted(link)) for link in links}):
        drawing.append(drawsvg.Line(*(svg.short(x) for rank in link for x in where[rank]),
                                    stroke="#c3c9d1", stroke_width=1.5))
    for rank in range(len(where)):
        _parcel(drawing, rank, where, steps, times, seconds)
    for rank, (x, y) in enumerate(where):
        drawing.append(drawsvg.Circle(svg.short(x), svg.short(y), 11,
                                      fill=svg.rank_colour(rank)))
        svg.text(drawing, rank, x, y, 12, "#ffffff")
        svg.box(drawing, x - 14, y + 13, 28, 6, colour=FAINT, rx=2)
        # 28 wide, and filled as far as the rank has its sums
        parts = [svg.short(28 * sum(min(part, 1) for chunk in state[rank]
                                    for part in chunk) / len(where) ** 2)
                 for state in held]
        bar = drawsvg.Rectangle(svg.short(x - 14), svg.short(y + 13), parts[0], 6, rx=2,
                                fill=INK)
        svg.jumps(bar, "width", [*zip(times, parts)], seconds)
        drawing.append(bar)


def _parcel(drawing, rank, where, steps, times, seconds):
    """Draw what a rank sends, a large square for a whole tensor."""
    import drawsvg
    way, size = [(0, svg.AWAY)], 0
    for begin, end, step in zip(times, times[1:], steps):
        for _, peer, _, chunks, _ in [send for send in step if send[0] == rank][:1]:
            size = max(size, 6 if chunks < len(where) else 12)
            way += [(begin, way[-1][1]), (begin, where[rank]), (end, where[peer]),
                    (end, svg.AWAY)]
    if size:
        square = drawsvg.Rectangle(-size / 2, -size / 2, size, size, rx=2,
                                   fill=svg.rank_colour(rank), stroke=INK,
                                   transform="translate(-999 -999)")
        svg.travel(square, way, seconds)
        drawing.append(square)
