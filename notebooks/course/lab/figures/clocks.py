"""Who does what, and when: a row for each device, time to the right.

    pipeline    which device works on which micro-batch                 lesson 01
    clock       when gradients were ready and buckets under way         lesson 09
    loading     steps that wait for their minibatch                     lesson 12
    turns       workers: who computes, who waits                        lesson 13
    timeline    what each rank does, and its all-reduces                lesson 17
"""

from course.lab.figures import svg
from course.lab.figures.lanes import Lanes, fitting, hand
from course.lab.figures.plot import FAINT, INK
from manual_dp.lab.replay import idle
from manual_dp.lab.timeline.spans import COMPUTE, PHASES, buckets, length

PHASE = {"load": svg.rank_colour(6), "forward": svg.rank_colour(0),
         "backward": svg.rank_colour(2), "wait": FAINT, "update": svg.rank_colour(4)}
SENT = svg.rank_colour(1)  # all-reduces under way


def pipeline(schedule, stages):
    """Draw a schedule; slots in which a device has nothing to do stay empty.

    schedule: list of (start, stage, micro_batch, kind), a slot each; kind is "forward"
    or "backward". Micro-batches are written as they are numbered.
    """
    slots = 1 + max(start for start, *_ in schedule)
    room = 4 + svg.wide(f"F{max(micro_batch for _, _, micro_batch, _ in schedule)}", 10.5)
    wide = next((w for w in ((width - 78) / slots for width in (svg.WIDTH, 720))
                 if w >= room), (720 - 78) / slots)
    idle = 1 - len(schedule) / (slots * stages)
    title = f"{stages} devices, idle {idle:.0%} of the time"
    lanes = Lanes(70 + 32 * stages, f"A pipeline's schedule: {title}", left=66, right=12,
                  width=max(svg.WIDTH, round(66 + wide * slots + 12)))
    lanes.scale, lanes.right, lanes.y = wide, 66 + wide * slots, 0
    lanes.panel(title, 18)
    _slots(lanes, schedule, stages, slots)
    for stage in range(stages):
        y = 33 + 32 * (stage + 0.5)
        lanes.label(f"device {stage}", y)
        for kind in ("forward", "backward"):
            mine = [(lanes.at(start), micro_batch)
                    for start, where, micro_batch, what in schedule
                    if (where, what) == (stage, kind)]
            _work(lanes, mine, y, kind, svg.rank_colour(stage), wide >= room)
    bottom = 34 + 32 * stages
    svg.arrow(lanes.drawing, (66, bottom + 8), (lanes.right, bottom + 8))
    back = any(kind == "backward" for *_, kind in schedule)
    lanes.words("F1: forward of micro-batch 1" + ", B1: its backward" * back
                if wide >= room else "full: forward" + ", outlined: backward" * back,
                66, bottom + 23, 11.5)
    lanes.words("time", lanes.right, bottom + 23, 11.5, anchor="end")
    hand(lanes.drawing, 66, lanes.right, [(30, bottom + 8)], 0.6 * slots, 0.6 * slots + 1)
    return svg.picture(lanes.drawing)


def _slots(lanes, schedule, stages, slots):
    """Outline all slots; where there is room, say that one is idle."""
    wide, busy = lanes.scale, {(stage, start) for start, stage, *_ in schedule}
    every = [(stage, slot) for stage in range(stages) for slot in range(slots)]
    svg.tiles(lanes.drawing, [(lanes.at(slot) + 2, 36 + 32 * stage)
                              for stage, slot in every],
              wide - 4, 26, "none", stroke="#c9ced6", stroke_dasharray="3 3")
    for stage, slot in every:
        if wide >= 30 and (stage, slot) not in busy:
            lanes.words("idle", lanes.at(slot + 0.5), 33 + 32 * (stage + 0.5), 11,
                        svg.SOFT, "middle")


def _work(lanes, slots, y, kind, colour, written):
    """Fill a stage's slots of one kind: (x, micro-batch) each."""
    import drawsvg
    wide, full = lanes.scale, kind == "forward"
    svg.tiles(lanes.drawing, [(x + 2, y - 13) for x, _ in slots], wide - 4, 26,
              colour if full else "#ffffff", stroke=colour, stroke_width=2,
              stroke_linejoin="round")
    words = drawsvg.Group(fill="#ffffff" if full else colour)
    for x, micro_batch in slots * written:
        svg.text(words, f"{kind[0].upper()}{micro_batch}", x + wide / 2, y,
                 12 if wide > 29 else 10.5)
    lanes.drawing.append(words)


def clock(runs, unit, form="{:g}"):
    """Draw for each label what `trace.record` saw of a backward.

    runs: a dict from labels to events. unit: of their times, such as "ticks". form: how
    a time is written. Gradients have the colour of their bucket.
    """
    last = {label: events[-1].time for label, events in runs.items()}
    ends = {label: f"{form.format(end)} {unit}" for label, end in last.items()}
    counts = {label: 1 + max(e.bucket for e in events if e.bucket is not None)
              for label, events in runs.items()}
    lanes = Lanes(sum(82 + 20 * count for count in counts.values()) + 34,
                  "Backward on one rank: "
                  + "; ".join(f"{label}, {end}" for label, end in ends.items()),
                  max(last.values()))
    for label, events in runs.items():
        lanes.panel(f"{label}: {ends[label]}")
        lanes.y += 32
        _backward(lanes, events, counts[label])
        lanes.y += 50 + 20 * counts[label]
    lanes.axis(f"time, in {unit} from the end of forward")
    return svg.picture(lanes.drawing)


def _backward(lanes, events, count):
    at = {event.what: event.time for event in events}
    lanes.box(at["wait"], at["end"], 0, 30 + 20 * count, FAINT, rx=0)
    if lanes.scale * (at["end"] - at["wait"]) > svg.wide("waits", 11):
        lanes.words("waits", lanes.at((at["wait"] + at["end"]) / 2), 15, 11,
                    anchor="middle")
    lanes.label("gradients", 15)
    before = 0
    for event in (e for e in events if e.what == "ready"):
        name = event.name.removesuffix(".weight")
        words = fitting(lanes.scale * (event.time - before), 11, 4, name,
                        name.split(" ")[-1])
        lanes.box(before, event.time, 3, 24, svg.rank_colour(event.bucket), words,
                  less=1, least=1, size=11, rx=3)
        before = event.time
    for bucket in range(count):
        lanes.label(f"bucket {bucket + 1}", 40 + 20 * bucket)
        start, end = [e.time for e in events
                      if e.bucket == bucket and e.what in ("start", "arrive")]
        lanes.box(start, end, 33 + 20 * bucket, 14, svg.rank_colour(bucket), least=1.5,
                  rx=3)


def loading(waits, compute):
    """Draw for each label how long its steps wait, and the steps, one after another.

    waits: {label: ticks that each step waits}. compute: ticks that each step takes.
    """
    ends = {label: sum(ticks) + compute * len(ticks) for label, ticks in waits.items()}
    lanes = Lanes(34 * len(waits) + 34, "Waits and steps. " + "; ".join(
        f"{label}: {end} ticks" for label, end in ends.items()), max(ends.values()), 96)
    lanes.y = 6
    for label, ticks in waits.items():
        lanes.label(label, 17)
        now = 0
        for wait in ticks:
            if wait:
                lanes.box(now, now + wait, 4, 26, FAINT, wait, less=1, ink=INK)
            now += wait + compute
            lanes.box(now - compute, now, 4, 26, svg.rank_colour(0), "step", less=1,
                      size=11)
        lanes.y += 34
    lanes.axis("time, in ticks; in grey a step waits", 13, 4)
    return svg.picture(lanes.drawing)


def turns(runs, workers, ticks):
    """Draw for each label its turns; what a worker waits is grey.

    runs: a dict from labels to lists of `replay.Turn`. Every turn is one gradient.
    """
    titles = {label: f"{label}: {len(turns)} gradients, idle "
                     f"{idle(turns, workers, ticks):.0%}"
              for label, turns in runs.items()}
    high = 44 + 26 * workers
    lanes = Lanes(high * len(runs) + 30,
                  f"{workers} workers. " + "; ".join(titles.values()), ticks)
    spans = [(34 + high * i, high * (i + 1) - 10) for i in range(len(runs))]
    for label, turns in runs.items():
        lanes.panel(titles[label])
        lanes.y += 32
        for worker in range(workers):
            _worker(lanes, worker, [t for t in turns if t.worker == worker], ticks)
            lanes.y += 26
        lanes.y += 12
    lanes.axis(f"time, {ticks} ticks", at=-2)
    hand(lanes.drawing, lanes.left, lanes.right, spans, 0.35 * ticks, 0.35 * ticks + 1)
    return svg.picture(lanes.drawing)


def _worker(lanes, worker, turns, ticks):
    lanes.label(f"worker {worker}", 13)
    lanes.box(0, ticks, 3, 20, FAINT, rx=0)
    for turn in turns:
        lanes.box(turn.start, turn.end, 3, 20, svg.rank_colour(worker), less=1, rx=3)
    for turn, begin in zip(turns, [turn.start for turn in turns[1:]] + [ticks]):
        if lanes.scale * (begin - turn.end) > svg.wide("waits", 11):
            lanes.words("waits", lanes.at((turn.end + begin) / 2), 13, 11,
                        anchor="middle")


def timeline(runs, unit, form="{:g}"):
    """Draw for each label the spans of a run, one panel below the other.

    unit: of their times, such as "ticks". form: how a time is written. A thin bar
    below a rank is an all-reduce that is under way.
    """
    ends = {label: f"{form.format(length(spans))} {unit}" for label, spans in runs.items()}
    ranks = {label: [[span for span in spans if span.rank == rank]
                     for rank in sorted({span.rank for span in spans})]
             for label, spans in runs.items()}
    high = sum(32 + sum(30 + 9 * len(buckets(spans)) for spans in mine)
               for mine in ranks.values())
    lanes = Lanes(high + 50, "Timeline: " + "; ".join(
        f"{label}, {end}" for label, end in ends.items()),
        max(map(length, runs.values())), 62)
    lanes.y = 2
    for label, spans in runs.items():
        lanes.panel(f"{label}: {ends[label]}", 14)
        lanes.y += 27
        for mine in ranks[label]:
            _rank(lanes, mine, min(span.start for span in spans))
        lanes.y += 5
    lanes.axis(f"time, in {unit}", 12, 2)
    every = [span for spans in runs.values() for span in spans]
    seen = {span.name for span in every if span.lane == COMPUTE}
    names = {name: PHASE[name] for name in PHASES if name in seen}
    if any(span.lane != COMPUTE for span in every):
        names["all-reduce"] = SENT
    lanes.legend(names, 34, 27)
    return svg.picture(lanes.drawing)


def _rank(lanes, spans, begin):
    lanes.label(f"rank {spans[0].rank}", 12)
    for span in spans:
        if span.lane == COMPUTE:
            width = max(lanes.scale * (span.end - span.start), 1)
            lanes.box(span.start - begin, span.end - begin, 0, 24, PHASE[span.name],
                      fitting(width, 10.5, 2, span.name), least=1, size=10.5, rx=0,
                      ink=INK if span.name == "wait" else "#ffffff", stroke="#ffffff",
                      stroke_width=0.6)
    for i, lane in enumerate(buckets(spans)):
        for span in spans:
            if span.lane == lane:
                lanes.box(span.start - begin, span.end - begin, 26 + 9 * i, 6, SENT,
                          least=1, rx=2)
    lanes.y += 30 + 9 * len(buckets(spans))
