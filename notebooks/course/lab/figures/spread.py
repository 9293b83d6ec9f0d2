"""How numbers spread from one rank to all: a row for each round, a column a rank.

    draw    who has them after each round, and who sent them to whom   lesson 08
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK

LEFT, TOP, ROW, HIGH = 68, 16, 62, 30


def draw(sends, src=0):
    """Draw the spread that a run's messages make.

    sends: for each rank the ranks that it sent to, in order. A rank sends one message
    a round, from the round after the one in which it received. Raises ValueError if
    a rank receives twice, or never.
    """
    messages = rounds(sends, src)
    last = max((i for i, *_ in messages), default=0)
    drawing = svg.card(TOP + ROW * last + HIGH + 14,
                       f"The numbers of rank {src} reach {len(sends)} ranks "
                       f"in {last} rounds")
    wide = (svg.WIDTH - LEFT - 64) / len(sends)
    xs = [LEFT + wide * (rank + 0.5) for rank in range(len(sends))]
    got = {src: 0} | {peer: i for i, _, peer in messages}
    for i, rank, peer in messages:
        y = TOP + ROW * i
        svg.arrow(drawing, (xs[rank], y - ROW + HIGH + 2), (xs[peer], y - 2), INK)
    for i in range(last + 1):
        has = [got[rank] <= i for rank in range(len(sends))]
        _row(drawing, i, xs, min(wide - 6, 60), has)
    return svg.picture(drawing)


def rounds(sends, src=0):
    """Return (round, rank, peer) for each message; the first round is 1."""
    got, todo, found = {src: 0}, [src], []
    for rank in todo:  # grows on the way
        for i, peer in enumerate(sends[rank], start=got[rank] + 1):
            if peer in got:
                raise ValueError(f"rank {peer} receives twice, from {rank} too")
            got[peer] = i
            todo.append(peer)
            found.append((i, rank, peer))
    if never := sorted(set(range(len(sends))) - set(got)):
        raise ValueError(f"rank {never[0]} receives nothing")
    return sorted(found)


def _row(drawing, i, xs, width, has):
    """Draw all ranks after round i, in colour those that have the numbers."""
    y = TOP + ROW * i
    middle = y + HIGH / 2
    svg.text(drawing, f"round {i}" if i else "start", 12, middle, 12, INK, "start")
    svg.text(drawing, f"{sum(has)} of {len(has)}", svg.WIDTH - 12, middle, 12, INK,
             "end")
    for rank, (x, there) in enumerate(zip(xs, has)):
        colour, ink = (svg.rank_colour(0), "#ffffff") if there else (svg.PALE, INK)
        svg.box(drawing, x - width / 2, y, width, HIGH, rank, colour, ink,
                stroke=svg.SOFT)
