"""Who does what, and when: a row for each device, time to the right.

    pipeline    which device works on which micro-batch                 split_the_work
    loading     steps that wait for their minibatch                     resnet_cifar10
    turns       workers: who computes, who waits                        how_often
    timeline    what each rank does, and its all-reduces                count_price_look
"""

from course.lab.figures import svg
from course.lab.figures.lanes import Lanes, fitting, hand, listed
from course.lab.figures.plot import FAINT, INK
from course.lab.figures.svg import WIDTH, rank_colour
from course.lab.replay import idle
from course.lab.timeline import COMPUTE, PHASES, buckets, length

PHASE = {"load": rank_colour(6), "forward": rank_colour(0),
         "backward": rank_colour(2), "wait": FAINT, "update": rank_colour(4)}
SENT = rank_colour(1)  # all-reduces under way


def pipeline(schedule, stages):
    """Draw a schedule; slots in which a device has nothing to do stay empty.

    schedule: list of (start, stage, micro_batch, kind), a slot each; kind is "forward"
    or "backward". Micro-batches are written as they are numbered.
    """
    slots = 1 + max(start for start, *_ in schedule)
    room = 4 + svg.wide(f"F{max(number for _, _, number, _ in schedule)}", 10.5)
    wide = next((w for w in ((width - 78) / slots for width in (WIDTH, 720))
                 if w >= room), (720 - 78) / slots)
    idle = 1 - len(schedule) / (slots * stages)
    title = f"{stages} devices, idle {idle:.0%} of the time"
    right, bottom = 66 + wide * slots, 34 + 32 * stages
    card = Lanes(36 + bottom, f"A pipeline's schedule: {title}", left=66,
                 width=max(WIDTH, round(right + 12)))
    card.scale = wide
    card.heading(title, 14, 18)
    _slots(card, schedule, stages, slots)
    for stage in range(stages):
        card.label(f"device {stage}", 49 + 32 * stage)
        for kind in ("forward", "backward"):
            mine = [(start, number) for start, where, number, what in schedule
                    if (where, what) == (stage, kind)]
            _work(card, mine, 49 + 32 * stage, kind, rank_colour(stage), wide >= room)
    card.arrow((66, bottom + 8), (right, bottom + 8))
    back = any(kind == "backward" for *_, kind in schedule)
    card.text("F1: forward of micro-batch 1" + ", B1: its backward" * back
              if wide >= room else "full: forward" + ", outlined: backward" * back,
              66, bottom + 23, 11.5, INK, "start")
    card.text("time", right, bottom + 23, 11.5, INK, "end")
    hand(card, 66, right, [(30, bottom + 8)], 0.6 * slots, 0.6 * slots + 1)
    return card.picture()


def _slots(card, schedule, stages, slots):
    """Outline all slots; where there is room, say that one is idle."""
    busy = {(stage, start) for start, stage, *_ in schedule}
    every = [(stage, slot) for stage in range(stages) for slot in range(slots)]
    card.tiles([(card.at(slot) + 2, 36 + 32 * stage) for stage, slot in every],
               card.scale - 4, 26, "none", stroke="#c9ced6", stroke_dasharray="3 3")
    for stage, slot in every:
        if card.scale >= 30 and (stage, slot) not in busy:
            card.text("idle", card.at(slot + 0.5), 49 + 32 * stage, 11, svg.SOFT)


def _work(card, slots, y, kind, colour, written):
    """Fill a stage's slots of one kind: (start, micro-batch) each."""
    back, ground = ("#ffffff", colour) if kind == "forward" else (colour, "#ffffff")
    card.tiles([(card.at(start) + 2, y - 13) for start, _ in slots], card.scale - 4, 26,
               ground, stroke=colour, stroke_width=2, stroke_linejoin="round")
    with card.group(fill=back):
        for start, number in slots * written:
            card.text(f"{kind[0].upper()}{number}", card.at(start + 0.5), y,
                      12 if card.scale > 29 else 10.5)


def loading(waits, compute):
    """Draw for each label how long its steps wait, and the steps, one after another.

    waits: {label: ticks that each step waits}. compute: ticks that each step takes.
    """
    ends = {label: sum(ticks) + compute * len(ticks) for label, ticks in waits.items()}
    said = {label: f"{end} ticks" for label, end in ends.items()}
    card = Lanes(34 * len(waits) + 34, f"Waits and steps. {listed(said)}",
                 max(ends.values()), 96)
    for label, ticks in waits.items():
        card.label(label, 23)
        now = 0
        for wait in ticks:
            if wait:
                card.bar(now, now + wait, 10, 26, FAINT, wait, less=1, ink=INK)
            now += wait + compute
            card.bar(now - compute, now, 10, 26, rank_colour(0), "step", less=1,
                     size=11)
        card.y += 34
    card.axis("time, in ticks; in grey a step waits", 10, 13)
    return card.picture()


def turns(runs, workers, ticks):
    """Draw for each label its turns; what a worker waits is grey.

    runs: a dict from labels to lists of `replay.Turn`. Every turn is one gradient.
    """
    titles = {label: f"{label}: {len(turns)} gradients, idle "
                     f"{idle(turns, workers, ticks):.0%}"
              for label, turns in runs.items()}
    high = 44 + 26 * workers
    card = Lanes(high * len(runs) + 30, f"{workers} workers. "
                 + "; ".join(titles.values()), ticks)
    for number, (label, turns) in enumerate(runs.items()):
        card.y = 4 + high * number
        card.heading(titles[label], 14, 16)
        for worker in range(workers):
            _worker(card, worker, [t for t in turns if t.worker == worker], ticks)
            card.y += 26
    card.y = high * len(runs)
    card.axis(f"time, {ticks} ticks", 2)
    hand(card, card.left, card.right, [(34 + high * i, high * (i + 1) - 10)
                                       for i in range(len(runs))],
         0.35 * ticks, 0.35 * ticks + 1)
    return card.picture()


def _worker(card, worker, turns, ticks):
    card.label(f"worker {worker}", 45)
    card.bar(0, ticks, 35, 20, FAINT, rx=0)
    for turn in turns:
        card.bar(turn.start, turn.end, 35, 20, rank_colour(worker), less=1, rx=3)
    for turn, begin in zip(turns, [turn.start for turn in turns[1:]] + [ticks]):
        if card.scale * (begin - turn.end) > svg.wide("waits", 11):
            card.text("waits", card.at((turn.end + begin) / 2), 45, 11)


def timeline(runs, unit, form="{:g}"):
    """Draw for each label the spans of a run, one panel below the other.

    unit: of their times, such as "ticks". form: how a time is written. A thin bar
    below a rank is an all-reduce that is under way.
    """
    ends = {label: f"{form.format(length(spans))} {unit}"
            for label, spans in runs.items()}
    ranks = {label: [[span for span in spans if span.rank == rank]
                     for rank in sorted({span.rank for span in spans})]
             for label, spans in runs.items()}
    high = sum(32 + sum(30 + 9 * len(buckets(spans)) for spans in mine)
               for mine in ranks.values())
    card = Lanes(high + 50, f"Timeline: {listed(ends, ', ')}",
                 max(map(length, runs.values())), 62)
    for label, spans in runs.items():
        card.heading(f"{label}: {ends[label]}", 14, 16)
        for mine in ranks[label]:
            _rank(card, mine, min(span.start for span in spans))
        card.y += 32
    card.axis(f"time, in {unit}", 4, 12)
    every = [span for spans in runs.values() for span in spans]
    seen = {span.name for span in every if span.lane == COMPUTE}
    names = {name: PHASE[name] for name in PHASES if name in seen}
    if any(span.lane != COMPUTE for span in every):
        names["all-reduce"] = SENT
    card.legend(names, 36, 27)
    return card.picture()


def _rank(card, spans, begin):
    card.label(f"rank {spans[0].rank}", 41)
    lanes = buckets(spans)
    for lane in (COMPUTE, *lanes):
        for span in (span for span in spans if span.lane == lane):
            start, end = span.start - begin, span.end - begin
            if lane == COMPUTE:
                words = fitting(max(card.scale * (end - start), 1), 10.5, 2, span.name)
                card.bar(start, end, 29, 24, PHASE[span.name], words, least=1,
                         size=10.5, ink=INK if span.name == "wait" else "#ffffff",
                         rx=0, stroke="#ffffff", stroke_width=0.6)
            else:
                card.bar(start, end, 55 + 9 * lanes.index(lane), 6, SENT, least=1, rx=2)
    card.y += 30 + 9 * len(lanes)
