"""How much, and whose: rows of bars and boxes on one scale.

    shards      the rows of each rank                                   lesson 04
    weights     how much each image counts in a step                    lesson 05
    buckets     which gradients lie in which bucket                     lesson 09
    sampler     which rank sees which example, epoch by epoch           lesson 10
    distances   how near each guess comes to what was measured          lesson 11
    laps        where the time of a step goes, with matplotlib          lesson 12
    budget      what memory is made of                              lessons 14, 18
    plan        what a step on more devices is predicted to take        lesson 16
"""

import math
from fractions import Fraction

from course.lab.figures import plot, svg
from course.lab.figures.lanes import Lanes, plural
from course.lab.figures.plot import COLOURS, FAINT, INK

NEAREST = 1e-12  # what is nearer is rounding


def shards(sizes_by_case):
    """Draw each case's ranks side by side, each with as many squares as it has rows.

    sizes_by_case: a dict from a label to the number of rows of each rank.
    """
    lanes = Lanes(92 * len(sizes_by_case) + 4, "Rows of each rank. " + "; ".join(
        f"{label}: {', '.join(map(str, sizes))}"
        for label, sizes in sizes_by_case.items()))
    lanes.y = 2
    for label, sizes in sizes_by_case.items():
        lanes.panel(label, x=16)
        lanes.words(", ".join(map(str, sizes)), svg.WIDTH - 16, 16, 13, anchor="end")
        least = 50 if len(sizes) <= 8 else (454 - 6 * len(sizes)) / len(sizes)
        for rank, (x, width, side) in enumerate(_columns(sizes, 24.0, least, 6, 448)):
            _shard(lanes, rank, sizes[rank], x, width, side)
        lanes.y += 92
    return svg.picture(lanes.drawing)


def _columns(sizes, side, least, gap, room):
    """Return (x, width, side of a square) for each rank, as large as there is room."""
    room -= gap * (len(sizes) - 1)
    while sum(max(size * side, least) for size in sizes) > room and side > 2:
        side -= 0.5
    widths = [max(size * side, least) for size in sizes]
    return [(16 + sum(widths[:i]) + gap * i, width, side)
            for i, width in enumerate(widths)]


def _shard(lanes, rank, rows, x, width, side):
    colour, y = svg.rank_colour(rank), lanes.y + 34
    left = x + (width - rows * side) / 2
    for row in range(rows):
        svg.box(lanes.drawing, left + row * side + 0.8, y, side - 1.6, 24,
                colour=colour, rx=min(3, side / 4))
    if not rows:
        svg.box(lanes.drawing, x + 1, y, width - 2, 24, "no rows", "#ffffff", INK, 10.5,
                stroke=colour, stroke_width=1.5, stroke_dasharray="3 3")
    lanes.words(f"rank {rank}", x + width / 2, 70, 12, colour, "middle",
                font_weight="bold")


def weights(sizes):
    """Draw the share with which each image counts, for shards of these sizes.

    Two ways to average: the mean of the ranks' means, and one division.
    """
    fair = Fraction(1, sum(sizes))
    ways = {"mean of the ranks' means": [Fraction(1, len(sizes) * max(size, 1))
                                         for size in sizes],
            "sum, divided once": [fair] * len(sizes)}
    rows = ", ".join(map(str, sizes))
    lanes = Lanes(162 * len(ways) + 8, f"How much each image counts, for shards of {rows}"
                                       f" rows: {fair} each if the sum is divided once")
    most = max(share for way in ways.values()
               for share, size in zip(way, sizes) if size)
    for way, shares in ways.items():
        lanes.panel(way, 14, 16)
        for rank, column in enumerate(_columns(sizes, 34.0, 42, 10, 404)):
            _share(lanes, rank, sizes[rank], shares[rank], 84 / most, *column)
        _fair(lanes, fair, 114 - float(fair * 84 / most))
        lanes.y += 162
    return svg.picture(lanes.drawing)


def _share(lanes, rank, rows, share, scale, x, width, side):
    tall, colour = float(share * scale), svg.rank_colour(rank)
    left = x + (width - rows * side) / 2
    for i in range(rows):
        svg.box(lanes.drawing, left + i * side + 1, lanes.y + 114 - tall, side - 2,
                tall, colour=colour, rx=2)
    words = str(share) + " each" * (rows > 1) if rows else "no rows"
    lanes.words(words, x + width / 2, 126, anchor="middle")
    lanes.words(f"rank {rank}", x + width / 2, 142, 12, colour, "middle",
                font_weight="bold")


def _fair(lanes, fair, down):
    import drawsvg
    y = svg.short(lanes.y + down)
    lanes.drawing.append(drawsvg.Line(16, y, svg.WIDTH - 56, y, stroke=INK,
                                      stroke_width=1.2, stroke_dasharray="5 3"))
    svg.text(lanes.drawing, str(fair), svg.WIDTH - 50, y, 13, INK, "start")


def buckets(cases):
    """Draw for each label its buckets in the order in which they are sent.

    cases: a dict from labels to buckets, each a list of (name, numel). A box is as long
    as its numbers are many, but no shorter than its name.
    """
    titles = {label: f"{label}: {plural(len(groups), 'bucket')}"
              for label, groups in cases.items()}
    lanes = Lanes(62 * len(cases) + 30, "Gradients in buckets: "
                  + "; ".join(titles.values()), left=14, right=14)
    for label, groups in cases.items():
        lanes.panel(titles[label], 14, size=13)
        names = [group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}"
                 for group in groups]
        least = [svg.wide(name, 11) + 6 for name in names]
        sizes = [sum(numel for _, numel in group) for group in groups]
        room, x = lanes.right - lanes.left - sum(least), lanes.left
        for i, (name, width, size) in enumerate(zip(names, least, sizes)):
            width += room * size / sum(sizes)
            svg.box(lanes.drawing, x, lanes.y + 26, width - 2, 30, name,
                    svg.rank_colour(i), size=11)
            x += width
        lanes.y += 62
    lanes.words("sent first", lanes.left, 10, 11.5)
    lanes.words("sent last", lanes.right, 10, 11.5, anchor="end")
    svg.arrow(lanes.drawing, (lanes.left + 76, lanes.y + 10),
              (lanes.right - 70, lanes.y + 10))
    return svg.picture(lanes.drawing)


def sampler(epochs, examples):
    """Draw for each epoch the ranks that see each example.

    epochs: a dict from a label to the ranks' lists of indices, one list a rank.
    examples: how many there are. A column is cut where several ranks see its example,
    or one rank sees it twice; a dashed one is seen by nobody.
    """
    seen = {label: [[rank for rank, mine in enumerate(ranks) for j in mine if j == i]
                    for i in range(examples)] for label, ranks in epochs.items()}
    lanes = Lanes(72 + 40 * len(epochs), "Which rank sees which example. " + "; ".join(
        f"{label}: more than once {_which(columns, lambda n: n > 1)}, "
        f"never {_which(columns, lambda n: n == 0)}" for label, columns in seen.items()),
        examples, 148)
    lanes.y = 0
    lanes.panel("The rank that sees each example", 20, 16, 15)
    lanes.label("example", 52, 10)
    for i in range(examples):
        lanes.words(i, lanes.at(i + 0.5), 52, anchor="middle")
    lanes.y = 66
    for label, columns in seen.items():
        lanes.label(label, 17, 10)
        for i, ranks in enumerate(columns):
            _seen(lanes, i, ranks)
        lanes.y += 40
    return svg.picture(lanes.drawing)


def _which(columns, asked):
    return ", ".join(str(i) for i, ranks in enumerate(columns)
                     if asked(len(ranks))) or "none"


def _seen(lanes, i, ranks):
    if not ranks:
        svg.box(lanes.drawing, lanes.at(i) + 2, lanes.y + 1, lanes.scale - 4, 32,
                colour="#ffffff", stroke=svg.SOFT, stroke_width=1.5,
                stroke_dasharray="3 3")
    for place, rank in enumerate(ranks):
        high = 34 / len(ranks)
        svg.box(lanes.drawing, lanes.at(i) + 1, lanes.y + 34 * place / len(ranks),
                lanes.scale - 2, high - (len(ranks) > 1), rank, svg.rank_colour(rank),
                size=min(12, high - 2), rx=4)


def distances(distances, bound):
    """Draw a dict from guess to distance; what is nearer than `bound` fits.

    distances: as parts of what was measured, inf where a guess cannot be compared. The
    scale is one of powers of ten. What is below 1e-12 is rounding, which differs from
    machine to machine: its bar ends at 1e-16, and no number is written.
    """
    import drawsvg
    fits = [label for label, distance in distances.items() if distance < bound]
    title = f"What fits: {', '.join(fits) or 'none'}"
    bottom = 34 + 26 * len(distances)
    lanes = Lanes(bottom + 58, title, 16, 150, svg.WIDTH - 404)
    lanes.y = 0
    lanes.panel(title, 16, 12, 12.5)
    x = svg.short(_power(lanes, bound))
    lanes.drawing.append(drawsvg.Line(x, 30, x, bottom + 4, stroke=INK, stroke_width=1.2,
                                      stroke_dasharray="5 3"))
    lanes.words("fits", x - 6, bottom + 12, 11, anchor="end")
    lanes.words("does not", x + 6, bottom + 12, 11)
    for row, (label, distance) in enumerate(distances.items()):
        y, end = 34 + 26 * row, _power(lanes, distance)
        lanes.label(label, y + 13, 10)
        svg.box(lanes.drawing, 146, y + 5, end - 146, 16, rx=2,
                colour=COLOURS[2] if distance < bound else svg.SOFT)
        lanes.words("rounding" if distance < NEAREST else "cannot be"
                    if math.isinf(distance) else f"{distance:.2g}", end + 6, y + 13, 11.5)
    for power in range(0, 17, 4):
        lanes.words(f"1e{power - 16}" if power < 16 else 1, lanes.at(power), bottom + 28,
                    11, anchor="middle")
    lanes.words("distance, as a part of what was measured", lanes.at(8), bottom + 46, 11.5,
                anchor="middle")
    return svg.picture(lanes.drawing)


def _power(lanes, distance):
    """Return the x of a distance: rounding is at the left, 1 or more at the right."""
    rounding = distance < NEAREST
    return lanes.at(0 if rounding else 16 + math.log10(min(distance, 1)))


def laps(runs, title="", **size):
    """Draw a bar for each label, of {part: seconds}; return the axes."""
    ax = plot.axes("milliseconds a step", "", title, **size)
    left = [0.0] * len(runs)
    for part, colour in zip(next(iter(runs.values())), COLOURS):
        widths = [1000 * seconds[part] for seconds in runs.values()]
        ax.barh(range(len(runs)), widths, left=left, color=colour, label=part)
        left = [begin + width for begin, width in zip(left, widths)]
    ax.set_yticks(range(len(runs)), runs)
    ax.invert_yaxis()  # the first run on top
    ax.grid(axis="y", visible=False)
    ax.legend(ncols=len(next(iter(runs.values()))), loc="lower center",
              bbox_to_anchor=(0.5, 1), fontsize=9, frameon=False)
    return ax


def budget(cases):
    """Draw for each label its parts, a dict from a part's name to bytes."""
    sums = {label: sum(parts.values()) for label, parts in cases.items()}
    said = {label: f"{size / 1e6:.2f} MB" for label, size in sums.items()}
    names = list(dict.fromkeys(name for parts in cases.values() for name in parts))
    colours = {name: svg.rank_colour(i) for i, name in enumerate(names)}
    lanes = Lanes(46 * len(cases) + 34, "Memory of one step: " + "; ".join(
        f"{label} {size}" for label, size in said.items()), max(sums.values()), 14, 96)
    lanes.y = 8
    for label, parts in cases.items():
        lanes.panel(label, 8, size=13)
        so_far = 0
        for name in filter(parts.get, names):
            lanes.box(so_far, so_far + parts[name], 18, 20, colours[name], rx=0)
            so_far += parts[name]
        lanes.words(said[label], lanes.at(so_far) + 6, 28)
        lanes.y += 46
    lanes.legend(colours, 10)
    return svg.picture(lanes.drawing)


def plan(rows):
    """Draw the `Row`s of a plan: what computes, what waits, how much is used."""
    said = {row.world_size: f"{_say(row.step)}, {row.efficiency:.0%}" for row in rows}
    lanes = Lanes(92 + 30 * len(rows), "A step on so many devices: " + ", ".join(
        f"{number}: {words}" for number, words in said.items()),
        max(row.step for row in rows), 76, 118)
    lanes.y = 0
    for x, colour, what in ((76, COLOURS[0], "arithmetic"),
                            (186, COLOURS[1], "waits for the all-reduce")):
        svg.box(lanes.drawing, x, 14, 14, 14, colour=colour, rx=2)
        lanes.words(what, x + 20, 21)
    lanes.words("devices", 66, 45, 11.5, svg.SOFT, "end")
    lanes.words("step, efficiency", lanes.right + 8, 45, 11.5, svg.SOFT)
    lanes.y = 58
    for row in rows:
        lanes.label(f"{row.world_size:,}", 11, 10, 12.5)
        svg.box(lanes.drawing, 76, lanes.y, lanes.right - 76, 22, colour=FAINT, rx=3)
        so_far = 0
        for part, colour in ((row.compute, COLOURS[0]), (row.exposed, COLOURS[1])):
            if part * lanes.scale >= 0.1:
                lanes.box(so_far, so_far + part, 0, 22, colour, rx=0)
            so_far += part
        lanes.words(said[row.world_size], lanes.right + 8, 11)
        lanes.y += 30
    lanes.words("A prediction: no loading, no update, no slower ranks.", 14, 16, 11.5,
                svg.SOFT)
    return svg.picture(lanes.drawing)


def _say(seconds):
    """Say seconds with three digits, in microseconds, milliseconds or seconds."""
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1, "s")):
        if seconds * factor < 999.5 or unit == "s":
            return f"{seconds * factor:.3g} {unit}"
