"""All-reduces that move, drawn from a run of the function itself.

    play      one function: every chunk travels, every rank's squares darken  allreduce
    states    how many ranks are summed in each square, step after step       allreduce
    race      several functions on one clock                                  allreduce

What is sent, by whom, in which step, and what everybody holds then is recorded by
`sends.states`; nothing is worked out here. A square is a chunk; it is the darker, the
more ranks are summed in it, and red if a rank is in it twice.
"""

from collections import namedtuple

from course.lab import sends
from course.lab.figures import svg
from course.lab.figures.graph import between, places
from course.lab.figures.lanes import hand, plural
from course.lab.figures.plot import FAINT, INK
from course.lab.figures.svg import WIDTH, rank_colour

SECONDS, START, REST = 1.8, 1.2, 3.0  # a step; before the first; after the last
TOP, RED = 65, "#d1350f"  # the middle of the highest rank; a rank is in there twice
LINK = "#c3c9d1"
NUMBERED = 4  # squares are wide enough for a number up to so many ranks
WHOLE = {"add": "reduce to one rank", "copy": "broadcast"}
PARTS = {"add": "reduce-scatter", "copy": "all-gather"}
FOLD = {"add": "fold", "copy": "unfold"}  # whole tensors, where others send parts
Send = namedtuple("Send", "rank peer chunk chunks kind")  # from chunk on, so many


def _recorded(allreduce, world_size):
    """Return (steps, held): each step's sends, and what is held before and after."""
    log, held = sends.states(allreduce, world_size)
    steps = [[] for _ in held[1:]]
    for step, source, target, first, last, kind, _ in log:
        first, last = first // world_size, (last - 1) // world_size
        steps[step].append(Send(source, target, first, last - first + 1, kind))
    return steps, held


def states(allreduce, world_size):
    """Return, at the start and after each step, the sums' sizes as [rank][chunk].

    A number is how many ranks' tensors are summed there.
    """
    return [
        [[_summed(chunk) for chunk in row] for row in held]
        for held in sends.states(allreduce, world_size)[1]
    ]


def play(allreduce, world_size):
    """Draw a function of the module at work on `world_size` ranks, 2 to 8."""
    steps, held = _recorded(allreduce, world_size)
    side = max(10, min(22, 84 // world_size))
    links = {send[:2] for step in steps for send in step}
    high = 250 if world_size > 2 else 20
    where = places(links, world_size, 350, high, (WIDTH / 2, TOP + high / 2))
    floor, table = TOP + high + 44, 14 if world_size < 6 else 11
    name = getattr(allreduce, "__name__", "a function").replace("<lambda>", "it")
    title = f"{name} on {world_size} ranks: {len(steps)} steps"
    done = all(part == 1 for row in held[-1] for chunk in row for part in chunk)
    verdict = (
        f"Every rank holds the sum of all {world_size}."
        if done
        else "Not every rank holds the sum."
    )
    card = svg.Card(floor + 120 + table * world_size, f"{title}. {verdict}")
    card.text(title, 16, 18, 13, INK, "start")
    for a, b in sorted(links):
        if (b, a) not in links or a < b:
            between(
                card,
                where[a],
                where[b],
                side * world_size + 20,
                side + 34,
                LINK,
                2,
                both=(b, a) in links,
            )
    clock = [0, *(START + SECONDS * step for step in range(len(steps) + 1))]
    for rank in range(world_size):
        _node(card, rank, where[rank], side, [state[rank] for state in held], clock)
    for rank, chunks in sorted(
        {(send.rank, send.chunks) for step in steps for send in step}
    ):
        _traveller(card, rank, chunks, where, side, held, steps, clock)
    names = _names(steps, world_size)
    card.y = floor
    _captions(card, names, clock, verdict)
    _timescale(card, [phase for phase, _ in names], clock)
    _tables(card, names, held, table)
    return card.picture()


def _summed(chunk):
    summed = round(sum(chunk), 3)
    return int(summed) if summed == int(summed) else summed


def _fill(chunk):
    return RED if max(chunk) > 1 else svg.shade((sum(chunk) - 1) / (len(chunk) - 1))


def _names(steps, world_size):
    """Return (phase, number within it) of every step."""
    names, whole = [], [step[0].chunks == world_size for step in steps]
    for step, all_of_it in zip(steps, whole):
        words = PARTS if not all_of_it else WHOLE if all(whole) else FOLD
        phase = words[step[0].kind]
        number = names[-1][1] + 1 if names and names[-1][0] == phase else 1
        names.append((phase, number))
    return names


def _square(middle, side, world_size, chunk):
    """Return the upper left corner of a chunk's square in a rank's box."""
    return (
        svg.short(middle[0] + (chunk - world_size / 2) * side + 1),
        svg.short(middle[1] - side / 2 + 8),
    )


def _node(card, rank, middle, side, rows, clock):
    import drawsvg

    world_size, colour, seconds = len(rows[0]), rank_colour(rank), clock[-1] + REST
    wide, top = side * world_size + 12, middle[1] - side / 2 - 13
    card.box(
        middle[0] - wide / 2,
        top,
        wide,
        side + 26,
        colour="#ffffff",
        stroke=colour,
        stroke_width=2,
    )
    card.text(f"rank {rank}", middle[0], top + 10, 12, colour, font_weight="bold")
    for chunk in range(world_size):
        x, y = _square(middle, side, world_size, chunk)
        frames = [(time, row[chunk]) for time, row in zip([0, *clock[2:]], rows)]
        square = card.append(
            drawsvg.Rectangle(x, y, side - 2, side - 2, fill=_fill(frames[0][1]))
        )
        svg.jumps(
            square, "fill", [(time, _fill(parts)) for time, parts in frames], seconds
        )
        if world_size <= NUMBERED:
            _numbers(card, x + side / 2 - 1, y + side / 2 - 1, frames, seconds)


def _numbers(card, x, y, frames, seconds):
    """Write at its time into a square how many ranks are summed there."""
    for chunk in {tuple(chunk): chunk for _, chunk in frames}.values():
        light = _fill(chunk) != RED and 2 * sum(chunk) < len(chunk) + 1
        _shown(
            card,
            (_summed(chunk), x, y, 11, INK if light else "#ffffff"),
            [(time, other == chunk) for time, other in frames],
            seconds,
        )


def _shown(card, text, frames, seconds, **style):
    """Write a text that is seen at some times: frames is [(time, is it seen?)]."""
    frames = [(time, "visible" if seen else "hidden") for time, seen in frames]
    element = card.text(*text, **style, visibility=frames[0][1])
    svg.jumps(element, "visibility", frames, seconds)


def _traveller(card, rank, chunks, where, side, held, steps, clock):
    """Let what a rank sends, so many chunks, go from its box into the other's."""
    import drawsvg

    way, fills, seconds = [(0, svg.AWAY)], [], clock[-1] + REST
    for begin, step, before in zip(clock[1:], steps, held):
        sent = [send for send in step if (send.rank, send.chunks) == (rank, chunks)]
        way.append((begin, way[-1][1]))
        for send in sent:
            start, end = (
                _square(where[who], side, len(where), send.chunk)
                for who in (rank, send.peer)
            )
            way += [(begin, start), (begin + 0.85 * SECONDS, end)]
            fills.append((begin, _fill(before[rank][send.chunk])))
        if not sent:
            way.append((begin, svg.AWAY))
    way += [(clock[-1], way[-1][1]), (clock[-1], svg.AWAY)]
    parcel = card.append(
        drawsvg.Rectangle(
            0,
            0,
            chunks * side - 2,
            side - 2,
            rx=2,
            fill=fills[0][1],
            stroke=rank_colour(rank),
            stroke_width=3,
            transform="translate(-999 -999)",
        )
    )
    svg.jumps(parcel, "fill", [(0, fills[0][1]), *fills], seconds)
    svg.travel(parcel, way, seconds)


def _captions(card, names, clock, verdict):
    """Write what happens in each step."""
    seconds = clock[-1] + REST
    words = [
        "start: every rank holds its own numbers",
        *(f"{phase}, step {number}" for phase, number in names),
        verdict,
    ]
    for begin, end, line in zip(clock, [*clock[1:], seconds], words):
        frames = [(0, False)] * (begin > 0) + [(begin, True)]
        frames += [(end, False)] * (end < seconds)
        _shown(card, (line, WIDTH / 2, 0, 15), frames, seconds, font_weight="bold")


def _timescale(card, phases, clock):
    """Draw a line on which the time runs, and the phases below it."""
    import drawsvg

    seconds = clock[-1] + REST
    scale = (WIDTH - 40) / seconds
    for begin in clock[1:-1]:
        card.box(21 + begin * scale, 20, SECONDS * scale - 2, 6, colour=FAINT, rx=2)
    for phase in dict.fromkeys(phases):
        mine = [begin for begin, name in zip(clock[1:], phases) if name == phase]
        x = 20 + scale * (mine[0] + mine[-1] + SECONDS) / 2
        card.text(phase, x, 37, 11.5)
        card.text(plural(len(mine), "step"), x, 51, 11.5)
    point = card.append(
        drawsvg.Circle(0, card.y + 23, 5, fill=RED, transform="translate(20 0)")
    )
    svg.travel(point, [(0, (20, 0)), (seconds, (WIDTH - 20, 0))], seconds)


def _tables(card, names, held, side):
    """Draw what all hold at the start and at the end of each phase: it stands still."""
    ends = [
        i
        for i, name in enumerate(names)
        if i + 1 == len(names) or names[i + 1][0] != name[0]
    ][-3:]
    after = "after " if len(ends) < 3 else ""
    shown = [("start", held[0]), *((after + names[i][0], held[i + 1]) for i in ends)]
    column, world_size = WIDTH / len(shown), len(held[0])
    side = min(side, (column - 60) / world_size)
    for place, (label, state) in enumerate(shown):
        middle = column * (place + 0.5) + 14
        x, fills = middle - world_size * side / 2, {}
        card.text(label, middle, 74, 12, font_weight="bold")
        for rank, row in enumerate(state):
            card.text(
                rank if place else f"rank {rank}",
                x - 5,
                86 + (rank + 0.5) * side,
                10.5,
                rank_colour(rank),
                "end",
            )
            for chunk, parts in enumerate(row):
                fills.setdefault(_fill(parts), []).append(
                    (x + chunk * side + 0.5, 86 + rank * side + 0.5)
                )
        for fill in sorted(fills):
            card.tiles(fills[fill], side - 1, side - 1, fill)
    card.text(
        "A square is a chunk. The darker it is, the more ranks are summed in it.",
        WIDTH / 2,
        104 + world_size * side,
        11.5,
    )


def race(functions, world_size):
    """Draw functions side by side, each a run of its own, all on one clock.

    functions: a list of all-reduces, or a dict from their labels. In a tick, a rank
    sends at most one chunk, of as many as there are ranks, and receives at most one.
    What it costs to begin a send is left out: the tensor is large.
    """
    if not isinstance(functions, dict):
        functions = {function.__name__: function for function in functions}
    runs = {label: _recorded(f, world_size) for label, f in functions.items()}
    ticks = {
        label: [max(send.chunks for send in step) for step in steps]
        for label, (steps, _) in runs.items()
    }
    longest = max(map(sum, ticks.values()))
    tick = min(1.0, 16 / longest)
    seconds = longest * tick + 2.5
    said = {label: f"{sum(each)} ticks" for label, each in ticks.items()}
    card = svg.Card(
        306 + 34 * len(runs),
        f"{world_size} ranks, one large tensor: "
        + ", ".join(f"{label} {words}" for label, words in said.items()),
    )
    column = WIDTH / len(runs)
    fits = all(svg.wide(label, 14) <= column for label in runs)
    for place, (label, run) in enumerate(runs.items()):
        x = column * (place + 0.5)
        times = [tick * sum(ticks[label][:i]) for i in range(len(run[0]) + 1)]
        card.text(label, x, 18, 13 if fits else 11.5, INK, font_weight="bold")
        _runners(card, x, column, *run, times, seconds)
    for row, label in enumerate(runs):
        y, scale, x = 230 + 34 * row, 292 / longest, 118
        card.text(label, x - 8, y + 12, 12, INK, "end")
        for number in ticks[label]:
            card.box(x + 0.5, y, max(number * scale - 1, 1), 24, colour=LINK, rx=2)
            x += number * scale
        card.text(said[label], x + 6, y + 12, 12, INK, "start")
    hand(
        card,
        118,
        WIDTH - 70,
        [(226, 230 + 34 * len(runs))],
        longest * tick,
        seconds,
        RED,
    )
    for line, words in enumerate(
        (
            f"In one tick, a rank sends at most one chunk (1/{world_size} of the "
            "tensor)",
            "and receives at most one. The bar under a rank is full when",
            "the rank holds the whole sum.",
        )
    ):
        card.text(words, 14, 260 + 34 * len(runs) + 15 * line, 11.5, INK, "start")
    return card.picture()


def _runners(card, middle, column, steps, held, times, seconds):
    """Draw a function's ranks, what they send, and below each what it has."""
    import drawsvg

    links = {send[:2] for step in steps for send in step}
    where = places(links, len(held[0]), column - 42, 140, (middle, 129))
    for a, b in sorted({tuple(sorted(link)) for link in links}):
        card.line(*where[a], *where[b], stroke=LINK, stroke_width=1.5)
    for rank in range(len(where)):
        _parcel(card, rank, where, steps, times, seconds)
    for rank, (x, y) in enumerate(where):
        card.append(
            drawsvg.Circle(svg.short(x), svg.short(y), 11, fill=rank_colour(rank))
        )
        card.text(rank, x, y, 12, "#ffffff")
        card.box(x - 14, y + 13, 28, 6, colour=FAINT, rx=2)
        # 28 wide, and filled as far as the rank has its sums
        parts = [
            svg.short(
                28
                * sum(min(part, 1) for chunk in state[rank] for part in chunk)
                / len(where) ** 2
            )
            for state in held
        ]
        bar = card.append(
            drawsvg.Rectangle(
                svg.short(x - 14), svg.short(y + 13), parts[0], 6, rx=2, fill=INK
            )
        )
        svg.jumps(bar, "width", [*zip(times, parts)], seconds)


def _parcel(card, rank, where, steps, times, seconds):
    """Draw what a rank sends, a large square for a whole tensor."""
    import drawsvg

    way, size = [(0, svg.AWAY)], 0
    for begin, end, step in zip(times, times[1:], steps):
        for send in [send for send in step if send.rank == rank][:1]:
            size = max(size, 6 if send.chunks < len(where) else 12)
            way += [
                (begin, way[-1][1]),
                (begin, where[rank]),
                (end, where[send.peer]),
                (end, svg.AWAY),
            ]
    if size:
        square = card.append(
            drawsvg.Rectangle(
                -size / 2,
                -size / 2,
                size,
                size,
                rx=2,
                fill=rank_colour(rank),
                stroke=INK,
                transform="translate(-999 -999)",
            )
        )
        svg.travel(square, way, seconds)
