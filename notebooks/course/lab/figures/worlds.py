"""One process that holds every rank's number, and a process for each rank.

    draw    above, a list in one process; below, a process a rank   lesson 08
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, TOP, BELOW, FOOT = 16, 34, 146, 276  # of the card's parts, in pixels


def draw(alone, apart):
    """Draw the numbers of a list in one process, and those of the ranks' processes.

    alone: the list. apart: what each rank holds, in rank order; as many.
    """
    if len(alone) != len(apart):
        raise ValueError(f"alone has {len(alone)} numbers, apart {len(apart)}; "
                         "need one of each for every rank")
    many = f"{len(apart)} processes" if len(apart) > 1 else "1 process"
    drawing = svg.card(FOOT, f"One process with a list of {len(alone)}, and {many} "
                             "that hold one number each and send messages")
    _list(drawing, alone)
    _processes(drawing, apart)
    return svg.picture(drawing)


def _list(drawing, numbers):
    """Draw one process, and in it a cell for each entry of the list."""
    svg.text(drawing, "lessons 0 to 7: one process holds a list", LEFT, 18, 13, INK,
             "start", font_weight="bold")
    svg.box(drawing, LEFT, TOP, svg.WIDTH - 2 * LEFT, 78, colour=svg.PALE, stroke=INK)
    for rank, (x, width) in enumerate(_columns(numbers)):
        _cell(drawing, numbers[rank], rank, x, TOP + 10, width)
        svg.text(drawing, f"[{rank}]", x, TOP + 64, 11, font_family="monospace")


def _processes(drawing, numbers):
    """Draw a process for each rank, and an arrow between neighbours."""
    svg.text(drawing, "from now on: a process for each rank", LEFT, BELOW - 14, 13, INK,
             "start", font_weight="bold")
    columns = _columns(numbers)
    for rank, (x, width) in enumerate(columns):
        svg.box(drawing, x - width / 2 - 3, BELOW, width + 6, 76, colour=svg.PALE,
                stroke=INK)
        svg.text(drawing, f"rank {rank}", x, BELOW + 16, 11)
        _cell(drawing, numbers[rank], rank, x, BELOW + 32, width - 6)
    for (x, _), (peer, _) in zip(columns, columns[1:]):
        svg.arrow(drawing, (x + 4, BELOW + 94), (peer - 4, BELOW + 94), INK, both=True)
    svg.text(drawing, "nothing is shared: what a rank has to know is sent to it",
             svg.WIDTH / 2, BELOW + 116, 12)


def _cell(drawing, number, rank, x, y, width):
    svg.box(drawing, x - width / 2, y, width, 36, f"{number:g}", svg.rank_colour(rank))


def _columns(numbers):
    """Return (middle, width) of each rank's column."""
    wide = (svg.WIDTH - 2 * LEFT) / len(numbers)
    return [(LEFT + wide * (rank + 0.5), min(wide - 10, 92))
            for rank in range(len(numbers))]
