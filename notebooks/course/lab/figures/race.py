"""Several all-reduces on one clock.

The model: the tensor is cut into as many chunks as there are ranks. In a tick, a rank
sends at most one chunk and receives at most one. What it costs to begin a send is left
out: the tensor is large.
"""

from course.lab.figures import svg
from course.lab.figures.places import places
from course.lab.figures.plot import FAINT, INK
from course.lab.sends import states

TOP, HIGH = 34, 190  # of the ranks' part
REST, RED = 2.5, "#d1350f"


def race(functions, world_size):
    """Draw functions side by side, each a run of its own, all on one clock.

    functions: a list of all-reduces, or a dict from their labels. A step takes as many
    ticks as its longest send has chunks. world_size: 2 to 8.
    """
    if not isinstance(functions, dict):
        functions = {function.__name__: function for function in functions}
    runs = {label: record(f, world_size) for label, f in functions.items()}
    ticks = {label: sum(map(_ticks, steps)) for label, (_, steps) in runs.items()}
    longest = max(ticks.values())
    tick = min(1.0, 16 / longest)
    seconds = longest * tick + REST
    title = ", ".join(f"{label} {number} ticks" for label, number in ticks.items())
    drawing = svg.card(TOP + HIGH + 82 + 34 * len(runs),
                       f"{world_size} ranks, one large tensor: {title}")
    column = svg.WIDTH / len(runs)
    for place, (label, (start, steps)) in enumerate(runs.items()):
        x = column * (place + 0.5)
        svg.text(drawing, label, x, 18, 13, INK, font_weight="bold")
        _ranks(drawing, (x, TOP + HIGH / 2), column, start, steps, tick, seconds)
    _bars(drawing, runs, ticks, tick, seconds)
    y = TOP + HIGH + 34 * len(runs) + 36
    model = (f"In one tick, a rank sends at most one chunk (1/{world_size} of the "
             "tensor)", "and receives at most one. The bar under a rank is full when",
             "the rank holds the whole sum.")
    for line, words in enumerate(model):
        svg.text(drawing, words, 14, y + 15 * line, 11.5, INK, "start")
    return svg.picture(drawing)


def record(allreduce, world_size):
    """Return what is held at the start, and the steps: sends, kind, what is held."""
    log, held = states(allreduce, world_size)
    steps = [{"sends": [], "kind": None, "held": state} for state in held[1:]]
    for step, source, target, first, last, kind, _ in log:
        chunks = [*range(first // world_size, (last - 1) // world_size + 1)]
        steps[step]["sends"].append((source, target, chunks))
        steps[step]["kind"] = steps[step]["kind"] or kind
    return held[0], steps


def _ticks(step):
    return max(len(chunks) for _, _, chunks in step["sends"])


def _clock(steps, tick):
    """Return when each step begins, and when the last one ends."""
    times = [0]
    for step in steps:
        times.append(times[-1] + _ticks(step) * tick)
    return times


def _ranks(drawing, middle, column, start, steps, tick, seconds):
    import drawsvg
    world_size = len(start)
    links = {(rank, peer) for step in steps for rank, peer, _ in step["sends"]}
    where = [(middle[0] + x, middle[1] + y)
             for x, y in places(links, world_size, column - 42, HIGH - 50)]
    for rank, peer in sorted({tuple(sorted(link)) for link in links}):
        (x0, y0), (x1, y1) = where[rank], where[peer]
        drawing.append(drawsvg.Line(*map(svg.short, (x0, y0, x1, y1)), stroke="#c3c9d1",
                                    stroke_width=1.5))
    times = _clock(steps, tick)
    _sent(drawing, where, steps, times, seconds)
    for rank, (x, y) in enumerate(where):
        drawing.append(drawsvg.Circle(svg.short(x), svg.short(y), 11,
                                      fill=svg.rank_colour(rank)))
        svg.text(drawing, rank, x, y, 12, "#ffffff")
        svg.box(drawing, x - 14, y + 13, 28, 6, colour=FAINT, rx=2)
        parts = [_done(state[rank]) for state in
                 (start, *(step["held"] for step in steps))]
        bar = drawsvg.Rectangle(svg.short(x - 14), svg.short(y + 13), parts[0], 6, rx=2,
                                fill=INK)
        svg.jumps(bar, "width", [*zip(times, parts)], seconds)
        drawing.append(bar)


def _done(row):
    """Return how wide a bar of 28 is, filled as far as a rank has its sums."""
    right = sum(min(part, 1) for chunk in row for part in chunk)
    return svg.short(28 * right / len(row) ** 2)


def _sent(drawing, where, steps, times, seconds):
    """Draw what each rank sends, a large square for a whole tensor."""
    import drawsvg
    for rank in range(len(where)):
        way, size = [(0, svg.AWAY)], 0
        for begin, end, step in zip(times, times[1:], steps):
            mine = [send for send in step["sends"] if send[0] == rank]
            for _, peer, chunks in mine[:1]:
                size = max(size, 6 if len(chunks) < len(where) else 12)
                way += [(begin, way[-1][1]), (begin, where[rank]), (end, where[peer]),
                        (end, svg.AWAY)]
        if size:
            square = drawsvg.Rectangle(-size / 2, -size / 2, size, size, rx=2,
                                       fill=svg.rank_colour(rank), stroke=INK,
                                       transform="translate(-999 -999)")
            svg.travel(square, way, seconds)
            drawing.append(square)


def _bars(drawing, runs, ticks, tick, seconds):
    import drawsvg
    left, top = 118, TOP + HIGH + 6
    scale = (svg.WIDTH - left - 70) / max(ticks.values())
    for row, (label, (_, steps)) in enumerate(runs.items()):
        y = top + 34 * row
        svg.text(drawing, label, left - 8, y + 12, 12, INK, "end")
        x = left
        for step in steps:
            width = _ticks(step) * scale
            svg.box(drawing, x + 0.5, y, max(width - 1, 1), 24, colour="#c3c9d1", rx=2)
            x += width
        svg.text(drawing, f"{ticks[label]} ticks", x + 6, y + 12, 12, INK, "start")
    end = max(ticks.values()) * tick
    hand = drawsvg.Line(0, top - 4, 0, top + 34 * len(runs), stroke=RED, stroke_width=2,
                        transform=f"translate({left} 0)")
    right = svg.WIDTH - 70
    svg.travel(hand, [(0, (left, 0)), (end, (right, 0))], seconds)
    drawing.append(hand)
