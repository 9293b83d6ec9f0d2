"""Buckets on a clock: gradients get ready, buckets travel, the rank waits.

    draw    a panel for each run, all on one clock                          lesson 09
"""

from course.lab.figures import svg
from course.lab.figures.plot import FAINT, INK

LEFT, RIGHT = 84, svg.WIDTH - 16
HIGH, LOW = 30, 20  # a row of layers, of a bucket


def draw(runs, unit, form="{:g}"):
    """Draw for each label what `trace.record` saw of a backward.

    runs: a dict from labels to events. unit: of their times, such as "ticks". form: how
    a time is written. Gradients have the colour of their bucket.
    """
    last = {label: events[-1].time for label, events in runs.items()}
    ends = "; ".join(f"{label}, {form.format(end)} {unit}"
                     for label, end in last.items())
    counts = {label: 1 + max(e.bucket for e in events if e.bucket is not None)
              for label, events in runs.items()}
    heights = [52 + HIGH + LOW * count for count in counts.values()]
    drawing = svg.card(sum(heights) + 34, f"Backward on one rank: {ends}")
    scale, y = (RIGHT - LEFT) / max(last.values()), 4
    for (label, events), height in zip(runs.items(), heights):
        title = f"{label}: {form.format(last[label])} {unit}"
        _panel(drawing, events, counts[label], title, y, scale)
        y += height
    svg.arrow(drawing, (LEFT, y), (RIGHT, y))
    svg.text(drawing, f"time, in {unit} from the end of forward", RIGHT, y + 15, 11.5,
             INK, "end")
    return svg.picture(drawing)


def _panel(drawing, events, count, title, top, scale):
    svg.text(drawing, title, 14, top + 16, 14, INK, "start", font_weight="bold")
    y = top + 32
    at = {event.what: LEFT + scale * event.time for event in events}
    bottom = y + HIGH + LOW * count
    wait = at["end"] - at["wait"]
    svg.box(drawing, at["wait"], y, wait, bottom - y, colour=FAINT, rx=0)
    if wait > svg.wide("waits", 11):
        svg.text(drawing, "waits", at["wait"] + wait / 2, y + HIGH / 2, 11)
    svg.text(drawing, "gradients", LEFT - 8, y + HIGH / 2, 12, INK, "end")
    _gradients(drawing, [e for e in events if e.what == "ready"], y, scale)
    for bucket in range(count):
        row = y + HIGH + LOW * bucket
        svg.text(drawing, f"bucket {bucket + 1}", LEFT - 8, row + LOW / 2, 12, INK,
                 "end")
        start, end = [e.time for e in events
                      if e.bucket == bucket and e.what in ("start", "arrive")]
        svg.box(drawing, LEFT + scale * start, row + 3, max(scale * (end - start), 1.5),
                LOW - 6, colour=svg.rank_colour(bucket), rx=3)


def _gradients(drawing, events, y, scale):
    before = 0
    for event in events:
        x, width = LEFT + scale * before, scale * (event.time - before)
        name = event.name.removesuffix(".weight")
        words = next((words for words in (name, name.split(" ")[-1])
                      if width > svg.wide(words, 11) + 4), "")
        svg.box(drawing, x, y + 3, max(width - 1, 1), HIGH - 6, words,
                svg.rank_colour(event.bucket), size=11, rx=3)
        before = event.time
