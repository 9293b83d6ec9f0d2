"""All-reduces that move, and stills of them, drawn from a run of the function itself.

    play      one function: every chunk travels, every rank's squares darken  allreduce
    states    how many ranks are summed in each square, step after step       allreduce
    stills    one function: what all ranks hold after each step               allreduce
    ticks     the same as a chart: in which ticks does each rank send?        allreduce

`allreduce_trace.states` records what is sent, by whom, in which step, and what every
rank then holds; nothing is worked out here. A square is a chunk. It is the darker, the
more ranks are summed in it, and red if a rank is in it twice.
"""

from collections import namedtuple

from course.lab import allreduce_trace
from course.lab.figures import svg
from course.lab.figures.graph import between, places
from course.lab.figures.lanes import so_many
from course.lab.figures.plot import FAINT, INK
from course.lab.figures.svg import WIDTH, rank_colour

SECONDS, START, REST = 1.8, 1.2, 3.0  # a step; before the first; after the last
TOP, RED = 65, "#d1350f"  # the middle of the highest rank; a rank is in there twice
LINK = "#c3c9d1"
NUMBERED = 4  # squares are wide enough for a number up to so many ranks
WHOLE = {"add": "reduce to one rank", "copy": "broadcast"}
PARTS = {"add": "reduce-scatter", "copy": "all-gather"}
FOLD = {"add": "fold", "copy": "unfold"}  # whole tensors, where others send parts
Send = namedtuple("Send", "rank peer chunk chunks kind")  # chunks: how many, from chunk


def _recorded(allreduce, world_size):
    """Return (steps, held): each step's sends, and what is held before and after."""
    log, held = allreduce_trace.states(allreduce, world_size)
    steps = [[] for _ in held[1:]]
    for step, source, target, first, last, kind, _ in log:
        first_chunk = first // world_size
        last_chunk = (last - 1) // world_size
        chunks = last_chunk - first_chunk + 1
        steps[step].append(Send(source, target, first_chunk, chunks, kind))
    return steps, held


def states(allreduce, world_size):
    """Return how many ranks are summed in each chunk: [rank][chunk] for each state.

    The first state is the start; then there is one after each step.
    """
    sizes = []
    for state in allreduce_trace.states(allreduce, world_size)[1]:
        sizes.append([list(map(_summed, row)) for row in state])
    return sizes


def play(allreduce, world_size):
    """Draw a function of the module at work on `world_size` ranks, 2 to 8."""
    steps, held = _recorded(allreduce, world_size)
    side = max(10, min(22, 84 // world_size))
    sends = [send for step in steps for send in step]
    links = {(send.rank, send.peer) for send in sends}
    high = 250 if world_size > 2 else 20
    middle = WIDTH / 2, TOP + high / 2
    where = places(links, world_size, 350, high, middle)
    floor = TOP + high + 44
    table = 14 if world_size < 6 else 11
    name = getattr(allreduce, "__name__", "a function").replace("<lambda>", "it")
    title = f"{name} on {world_size} ranks: {len(steps)} steps"
    everything = [[1] * world_size] * world_size  # of a rank: all ranks in each chunk
    if all(row == everything for row in held[-1]):
        verdict = f"Every rank holds the sum of all {world_size}."
    else:
        verdict = "Not every rank holds the sum."
    card = svg.Card(floor + 120 + table * world_size, f"{title}. {verdict}")
    card.text(title, 16, 18, 13, INK, "start")
    size = side * world_size + 20, side + 34
    for a, b in sorted(links):
        both = (b, a) in links
        if a < b or not both:  # two ranks that send to each other share one arrow
            between(card, where[a], where[b], *size, LINK, 2, both=both)
    clock = [0]  # the start, each step's begin, the end of the last one
    for step in range(len(steps) + 1):
        clock.append(START + SECONDS * step)
    for rank in range(world_size):
        rows = [state[rank] for state in held]
        _node(card, rank, where[rank], side, rows, clock)
    parcels = {(send.rank, send.chunks) for send in sends}
    for rank, chunks in sorted(parcels):
        _traveller(card, rank, chunks, where, side, held, steps, clock)
    names = _names(steps, world_size)
    card.y = floor
    _captions(card, names, clock, verdict)
    _timescale(card, [phase for phase, _ in names], clock)
    _tables(card, names, held, table)
    return card.picture()


def _summed(chunk):
    """Return how many ranks are summed in a chunk, to three digits: 2, or 0.5."""
    summed = round(sum(chunk), 3)
    return int(summed) if summed == int(summed) else summed


def _fill(chunk):
    if max(chunk) > 1:
        return RED
    others = sum(chunk) - 1
    return svg.shade(others / (len(chunk) - 1))


def _names(steps, world_size):
    """Return (phase, number within it) of every step."""
    names = []
    whole = [step[0].chunks == world_size for step in steps]
    for step, sends_all in zip(steps, whole):
        if not sends_all:
            words = PARTS
        else:
            words = WHOLE if all(whole) else FOLD
        phase, number = words[step[0].kind], 1
        if names and names[-1][0] == phase:
            number = names[-1][1] + 1
        names.append((phase, number))
    return names


def _square(middle, side, world_size, chunk):
    """Return the upper left corner of a chunk's square in a rank's box."""
    return (
        svg.short(middle[0] + (chunk - world_size / 2) * side + 1),
        svg.short(middle[1] - side / 2 + 8),
    )


def _node(card, rank, middle, side, rows, clock):
    """Draw a rank's box; rows: what its chunks hold at first and after each step."""
    import drawsvg

    world_size, colour = len(rows[0]), rank_colour(rank)
    seconds = clock[-1] + REST
    wide = side * world_size + 12
    left, top = middle[0] - wide / 2, middle[1] - side / 2 - 13
    style = {"colour": "#ffffff", "stroke": colour, "stroke_width": 2}
    card.box(left, top, wide, side + 26, **style)
    card.text(f"rank {rank}", middle[0], top + 10, 12, colour, font_weight="bold")
    changes = [0, *clock[2:]]  # the times at which a row begins to hold
    for chunk in range(world_size):
        x, y = _square(middle, side, world_size, chunk)
        frames = [(time, row[chunk]) for time, row in zip(changes, rows)]
        fills = [(time, _fill(parts)) for time, parts in frames]
        size, (_, first_fill) = side - 2, fills[0]
        square = drawsvg.Rectangle(x, y, size, size, fill=first_fill)
        svg.jumps(card.append(square), "fill", fills, seconds)
        if world_size <= NUMBERED:
            half = side / 2
            _numbers(card, x + half - 1, y + half - 1, frames, seconds)


def _numbers(card, x, y, frames, seconds):
    """Write into a square how many ranks are summed there: each number at its time."""
    chunks = []  # without repeats
    for _, chunk in frames:
        if chunk not in chunks:
            chunks.append(chunk)
    for chunk in chunks:
        light = _fill(chunk) != RED and 2 * sum(chunk) < len(chunk) + 1
        ink = INK if light else "#ffffff"
        text = _summed(chunk), x, y, 11, ink
        seen = [(time, other == chunk) for time, other in frames]
        _shown(card, text, seen, seconds)


def _shown(card, text, frames, seconds, **style):
    """Write a text that is seen at some times: frames is [(time, is it seen?)]."""
    frames = [(time, "visible" if seen else "hidden") for time, seen in frames]
    element = card.text(*text, **style, visibility=frames[0][1])
    svg.jumps(element, "visibility", frames, seconds)


def _traveller(card, rank, chunks, where, side, held, steps, clock):
    """Let what a rank sends go from its box into the other's: its sends of `chunks`."""
    import drawsvg

    mine = rank, chunks
    seconds = clock[-1] + REST
    place = svg.AWAY  # where it is after each step
    way, fills = [(0, place)], []
    for begin, step, before in zip(clock[1:], steps, held):
        sent = [send for send in step if (send.rank, send.chunks) == mine]
        way.append((begin, place))
        for send in sent:
            start = _square(where[rank], side, len(where), send.chunk)
            place = _square(where[send.peer], side, len(where), send.chunk)
            way.append((begin, start))
            way.append((begin + 0.85 * SECONDS, place))
            fills.append((begin, _fill(before[rank][send.chunk])))
        if not sent:
            place = svg.AWAY
            way.append((begin, place))
    way.append((clock[-1], place))
    way.append((clock[-1], svg.AWAY))
    _, first_fill = fills[0]
    parcel = card.append(
        drawsvg.Rectangle(
            0,
            0,
            chunks * side - 2,
            side - 2,
            rx=2,
            fill=first_fill,
            stroke=rank_colour(rank),
            stroke_width=3,
            transform="translate(-999 -999)",
        )
    )
    svg.jumps(parcel, "fill", [(0, first_fill), *fills], seconds)
    svg.travel(parcel, way, seconds)


def _captions(card, names, clock, verdict):
    """Write what happens in each step."""
    seconds = clock[-1] + REST
    words = [
        "start: every rank holds its own numbers",
        *(f"{phase}, step {number}" for phase, number in names),
        verdict,
    ]
    ends = [*clock[1:], seconds]
    for begin, end, line in zip(clock, ends, words):
        frames = [(begin, True)]
        if begin > 0:
            frames.insert(0, (0, False))
        if end < seconds:
            frames.append((end, False))
        text = line, WIDTH / 2, 0, 15
        _shown(card, text, frames, seconds, font_weight="bold")


def _timescale(card, phases, clock):
    """Draw a line on which the time runs, and the phases below it."""
    import drawsvg

    seconds = clock[-1] + REST
    scale = (WIDTH - 40) / seconds
    wide = SECONDS * scale - 2
    for begin in clock[1:-1]:
        card.box(21 + begin * scale, 20, wide, 6, colour=FAINT, rx=2)
    for phase in dict.fromkeys(phases):
        mine = [begin for begin, name in zip(clock[1:], phases) if name == phase]
        x = 20 + scale * (mine[0] + mine[-1] + SECONDS) / 2
        card.text(phase, x, 37, 11.5)
        card.text(so_many(len(mine), "step"), x, 51, 11.5)
    point = card.append(
        drawsvg.Circle(0, card.y + 23, 5, fill=RED, transform="translate(20 0)")
    )
    start, end = (20, 0), (WIDTH - 20, 0)
    svg.travel(point, [(0, start), (seconds, end)], seconds)


def _tables(card, names, held, side):
    """Draw what all hold at the start and after each of the last three phases.

    These tables do not move. side: the largest that a square may be.
    """
    phases = []  # of each, its name and what all hold after its last step
    for (phase, number), state in zip(names, held[1:]):
        if number > 1:
            phases.pop()
        phases.append((phase, state))
    after = "after " if len(phases) < 3 else ""
    shown = [("start", held[0])]
    for phase, state in phases[-3:]:
        shown.append((after + phase, state))
    column, world_size = WIDTH / len(shown), len(held[0])
    side = min(side, (column - 60) / world_size)
    for place, (label, state) in enumerate(shown):
        middle = column * (place + 0.5) + 14
        x, fills = middle - world_size * side / 2, {}
        card.text(label, middle, 74, 12, font_weight="bold")
        for rank, row in enumerate(state):
            y = 86 + rank * side
            words = rank if place else f"rank {rank}"
            colour = rank_colour(rank)
            card.text(words, x - 5, y + side / 2, 10.5, colour, "end")
            for chunk, parts in enumerate(row):
                squares = fills.setdefault(_fill(parts), [])
                squares.append((x + chunk * side + 0.5, y + 0.5))
        for fill in sorted(fills):
            card.tiles(fills[fill], side - 1, side - 1, fill)
    words = "A square is a chunk. The darker it is, the more ranks are summed in it."
    card.text(words, WIDTH / 2, 104 + world_size * side, 11.5)


def stills(allreduce, world_size):
    """Draw what all ranks hold at the start and after each step: nothing moves.

    A row is a rank. A chunk that has just arrived has a frame in its sender's colour.
    """
    steps, held = _recorded(allreduce, world_size)
    name = getattr(allreduce, "__name__", "a function").replace("<lambda>", "it")
    title = f"{name} on {world_size} ranks, step after step: {len(steps)} steps"
    phases = {}  # of each: its stills, (label, what is held, the step's sends)
    for (phase, number), state, sends in zip(
        _names(steps, world_size), held[1:], steps
    ):
        stills_of = phases.setdefault(phase, [])
        if not stills_of and len(phases) == 1:
            stills_of.append(("start", held[0], []))
        stills_of.append((f"step {number}", state, sends))
    columns = world_size if world_size < 6 else 4
    column = min(160, WIDTH / columns)
    side = min(22, int((column - 24) / world_size))
    high = side * world_size + 28
    lines = sum(-(-len(row) // columns) for row in phases.values())
    card = svg.Card(26 * len(phases) + high * lines + 42, title)
    for phase, row in phases.items():
        card.text(phase, WIDTH / 2, 16, 13, font_weight="bold")
        card.y += 26
        for first in range(0, len(row), columns):
            line = row[first : first + columns]
            x = (WIDTH - column * len(line)) / 2 + 6
            for still in line:
                _still(card, *still, x + (column - side * world_size) / 2, 20, side)
                x += column
            card.y += high
    words = "A number says of how many ranks the chunk is the sum."
    if world_size > 5:
        words = "The darker a chunk, the more ranks are summed in it."
    card.text(words, WIDTH / 2, 10, 12)
    words = "A row is a rank. A frame: just arrived, from the rank of this colour."
    card.text(words, WIDTH / 2, 27, 12)
    return card.picture()


def _still(card, label, state, sends, left, top, side):
    """Draw one state: a row for each rank, a square for each of its chunks."""
    middle = left + side * len(state) / 2
    card.text(label, middle, top - 11, 12)
    squares, texts = {}, []  # of each fill its places; what is written on them
    for rank, row in enumerate(state):
        y = top + rank * side
        card.text(rank, left - 5, y + side / 2, 11, rank_colour(rank), "end")
        for chunk, parts in enumerate(row):
            fill, x = _fill(parts), left + chunk * side
            squares.setdefault(fill, []).append((x, y))
            light = fill != RED and 2 * sum(parts) < len(parts) + 1
            ink = INK if light else "#ffffff"
            middle = x + side / 2 - 0.5, y + side / 2 - 0.5
            texts.append((_summed(parts), *middle, 11, ink))
    for fill in sorted(squares):
        card.tiles(squares[fill], side - 1, side - 1, fill)
    if len(state) < 6:
        for text in texts:
            card.text(*text)
    for send in sends:
        x, y = left + send.chunk * side + 0.5, top + send.peer * side + 0.5
        wide = send.chunks * side - 2
        style = {"stroke": rank_colour(send.rank), "stroke_width": 2.5, "rx": 1}
        card.box(x, y, wide, side - 2, colour="none", **style)


def ticks(functions, world_size):
    """Draw in which ticks each rank sends, for each function; nothing moves.

    functions: a list of all-reduces, or a dict from their labels. What a rank sends is
    one bar, a tick for each chunk.
    """
    runs = {label: _recorded(f, world_size)[0] for label, f in functions.items()}
    lengths = {}  # of each function, how many ticks each step takes
    for label, steps in runs.items():
        lengths[label] = [max(send.chunks for send in step) for step in steps]
    said = [f"{label} {sum(each)} ticks" for label, each in lengths.items()]
    title = f"{world_size} ranks, one large tensor: {', '.join(said)}"
    row, left = 15, 64
    high = 34 + row * world_size
    scale = (WIDTH - 20 - left) / max(map(sum, lengths.values()))
    card = svg.Card(high * len(runs) + 30, title)
    for (label, steps), words in zip(runs.items(), said):
        card.heading(words.replace(label, f"{label}:"), left, 18, 13)
        for rank in range(world_size):
            y = 30 + row * rank
            card.text(f"rank {rank}", left - 8, y + 6, 11, rank_colour(rank), "end")
            card.box(left, y, scale * sum(lengths[label]), row - 3, rx=0)
        begin = left
        for step, length in zip(steps, lengths[label]):
            for send in step:
                x, y = begin + 0.5, 30 + row * send.rank
                wide = scale * send.chunks - 1
                colour = rank_colour(send.rank)
                card.box(x, y, wide, row - 3, colour=colour, rx=1)
            begin += scale * length
        card.y += high
    card.text("ticks from left to right; a coloured bar: this rank sends", 240, 14)
    return card.picture()
