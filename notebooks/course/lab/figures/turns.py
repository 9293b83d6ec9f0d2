"""Workers on a clock of ticks: who computes when, and who waits.

    draw    a panel for each way to train, a row for each worker       lesson 13
"""

from course.lab.figures import svg
from course.lab.figures.plot import FAINT, INK
from manual_dp.lab.replay import idle

LEFT, RIGHT, HIGH = 84, svg.WIDTH - 16, 26
SECONDS = 0.35  # a tick, of the hand that moves


def draw(runs, workers, ticks):
    """Draw for each label its turns; what a worker waits is grey.

    runs: a dict from labels to lists of `replay.Turn`. Every turn is one gradient.
    """
    titles = {label: f"{label}: {len(turns)} gradients, idle "
                     f"{idle(turns, workers, ticks):.0%}"
              for label, turns in runs.items()}
    high = 44 + HIGH * workers
    drawing = svg.card(high * len(runs) + 30,
                       f"{workers} workers. " + "; ".join(titles.values()))
    tops = [4 + high * i for i in range(len(runs))]
    for top, (label, turns) in zip(tops, runs.items()):
        svg.text(drawing, titles[label], 14, top + 16, 14, INK, "start",
                 font_weight="bold")
        _rows(drawing, turns, workers, top + 32, ticks)
    bottom = high * len(runs) + 2
    svg.arrow(drawing, (LEFT, bottom), (RIGHT, bottom))
    svg.text(drawing, f"time, {ticks} ticks", RIGHT, bottom + 15, 11.5, INK, "end")
    _hand(drawing, [top + 30 for top in tops], HIGH * workers, ticks)
    return svg.picture(drawing)


def _rows(drawing, turns, workers, top, ticks):
    scale = (RIGHT - LEFT) / ticks
    for worker in range(workers):
        y = top + HIGH * worker
        svg.text(drawing, f"worker {worker}", LEFT - 8, y + HIGH / 2, 12, INK, "end")
        svg.box(drawing, LEFT, y + 3, RIGHT - LEFT, HIGH - 6, colour=FAINT, rx=0)
        mine = [turn for turn in turns if turn.worker == worker]
        for turn in mine:
            svg.box(drawing, LEFT + scale * turn.start, y + 3,
                    scale * (turn.end - turn.start) - 1, HIGH - 6, rx=3,
                    colour=svg.rank_colour(worker))
        begins = [turn.start for turn in mine[1:]] + [ticks]
        for turn, begin in zip(mine, begins):
            if scale * (begin - turn.end) > svg.wide("waits", 11):
                x = LEFT + scale * (turn.end + begin) / 2
                svg.text(drawing, "waits", x, y + HIGH / 2, 11)


def _hand(drawing, tops, high, ticks):
    import drawsvg
    hand = drawsvg.Path(stroke="#c2410c", stroke_width=2, fill="none",
                        transform=f"translate({LEFT} 0)")
    for top in tops:  # beside the rows only: not through a title
        hand.M(0, top).L(0, top + high)
    end = SECONDS * ticks
    svg.travel(hand, [(0, (LEFT, 0)), (end, (RIGHT, 0))], end + 1)
    drawing.append(hand)
