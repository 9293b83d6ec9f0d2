"""What each rank does, and when: a row for each rank, a colour for each phase.

    draw    a panel for each run, all on one clock                          lesson 17
"""

from course.lab.figures import svg
from course.lab.figures.plot import FAINT, INK
from manual_dp.lab.timeline.spans import COMPUTE, PHASES, buckets, length

LEFT, RIGHT = 62, svg.WIDTH - 16
HIGH, LOW, GAP = 24, 9, 6  # a rank's own row, a bucket's, and below both
COLOURS = {"load": svg.rank_colour(6), "forward": svg.rank_colour(0),
           "backward": svg.rank_colour(2), "wait": FAINT, "update": svg.rank_colour(4)}
SENT = svg.rank_colour(1)  # all-reduces under way


def draw(runs, unit, form="{:g}"):
    """Draw for each label the spans of a run, one panel below the other.

    unit: of their times, such as "ticks". form: how a time is written. A thin bar
    below a rank is an all-reduce that is under way.
    """
    ends = {label: form.format(length(spans)) for label, spans in runs.items()}
    title = "; ".join(f"{label}, {end} {unit}" for label, end in ends.items())
    heights = [32 + sum(_high(spans, rank) for rank in _ranks(spans))
               for spans in runs.values()]
    drawing = svg.card(sum(heights) + 50, f"Timeline: {title}")
    scale = (RIGHT - LEFT) / max(map(length, runs.values()))
    y = 2
    for (label, spans), height in zip(runs.items(), heights):
        svg.text(drawing, f"{label}: {ends[label]} {unit}", 14, y + 14, 14, INK,
                 "start", font_weight="bold")
        _panel(drawing, spans, y + 27, scale)
        y += height
    svg.arrow(drawing, (LEFT, y + 2), (RIGHT, y + 2))
    svg.text(drawing, f"time, in {unit}", RIGHT, y + 14, 11.5, INK, "end")
    _legend(drawing, list(runs.values()), y + 34)
    return svg.picture(drawing)


def _ranks(spans):
    return sorted({span.rank for span in spans})


def _buckets(spans, rank):
    return buckets([span for span in spans if span.rank == rank])


def _high(spans, rank):
    return HIGH + LOW * len(_buckets(spans, rank)) + GAP


def _panel(drawing, spans, y, scale):
    begin = min(span.start for span in spans)
    for rank in _ranks(spans):
        svg.text(drawing, f"rank {rank}", LEFT - 8, y + HIGH / 2, 12, INK, "end")
        for span in spans:
            x = LEFT + scale * (span.start - begin)
            width = max(scale * (span.end - span.start), 1)
            if (span.rank, span.lane) == (rank, COMPUTE):
                fits = width > svg.wide(span.name, 10.5) + 2
                svg.box(drawing, x, y, width, HIGH, span.name if fits else "",
                        COLOURS[span.name], INK if span.name == "wait" else "#ffffff",
                        10.5, rx=0, stroke="#ffffff", stroke_width=0.6)
        for i, lane in enumerate(_buckets(spans, rank)):
            for span in spans:
                if (span.rank, span.lane) == (rank, lane):
                    svg.box(drawing, LEFT + scale * (span.start - begin),
                            y + HIGH + LOW * i + 2,
                            max(scale * (span.end - span.start), 1), LOW - 3,
                            colour=SENT, rx=2)
        y += _high(spans, rank)


def _legend(drawing, runs, y):
    seen = {span.name for spans in runs for span in spans if span.lane == COMPUTE}
    names = [(name, COLOURS[name]) for name in PHASES if name in seen]
    if any(span.lane != COMPUTE for spans in runs for span in spans):
        names.append(("all-reduce", SENT))
    x = 14
    for name, colour in names:
        svg.box(drawing, x, y - 6, 12, 12, colour=colour, rx=0)
        svg.text(drawing, name, x + 17, y, 11.5, INK, "start")
        x += 27 + svg.wide(name, 11.5)
