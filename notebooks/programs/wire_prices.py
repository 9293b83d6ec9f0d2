"""Prices of all-reduces and of steps, for the pictures of two lessons.

LINKS            {name: (alpha in s, bytes a second)}, as they are sold
in_a_ring        seconds of a ring all-reduce
arrivals         when messages travel over one wire, each as soon as it is ready
eight, nodes     prices of all-reduces in one node, and in 16 nodes of eight GPUs
gpt2, filled     bytes of GPT-2's gradients, and the buckets that DDP makes of gradients
vgg16_takes      seconds of a step, with the real layers of VGG-16
vgg16_efficiency percent of it that are computing, for a published row
of_a_step        what a profiler's events say of one step
draw_three       one step on two links, in one message and in twenty
draw_steps       what a GPU and its wire do in a step
draw_two         a recorded step, and the predicted one
draw_rows        measured and predicted efficiencies
draw_hours       hours of computing and of waiting for the wire, and their price
"""

from course.lab import links
from course.lab.figures.plot import COLOURS, INK, axes

NAMES = {
    "Ethernet, 25 Gb/s": "eth25",
    "Ethernet, 100 Gb/s": "eth100",
    "PCI Express 4": "pcie4",
    "InfiniBand, 400 Gb/s": "ib400",
    "NVLink of an H100": "nvlink4",
}
# name: (alpha, bandwidth), from the course's table with its sources, and a slower one
LINKS = {"Ethernet, 10 Gb/s": (links.LINKS["eth25"].alpha, 10e9 / 8)} | {
    name: (links.LINKS[key].alpha, links.LINKS[key].bandwidth)
    for name, key in NAMES.items()
}
WAIT, MORE = "#c9ced6", "#ead7c6"
COLOUR = {
    "forward": COLOURS[0],
    "backward": COLOURS[2],
    "wait": WAIT,
    "wire": COLOURS[1],
}


def in_a_ring(size, ranks, alpha, bandwidth):
    """Return the seconds of 2 (ranks - 1) rounds of one chunk."""
    return 2 * (ranks - 1) * (alpha + size / ranks / bandwidth)


def arrivals(ready, sizes, price):
    """Return (start, end) of each message, which are sent in this order."""
    bars, free = [], 0
    for when, size in zip(ready, sizes):
        start = max(when, free)
        free = start + price(size)
        bars.append((start, free))
    return bars


def eight(link):
    """Return the price of an all-reduce on eight GPUs, all on links of a kind."""
    return lambda size: in_a_ring(size, 8, *link)


def nodes(cards, link, count=16):
    """Return it for nodes of eight GPUs with NVLink, and `cards` cards in each.

    As many rings as there are cards work at once. Each goes through all GPUs.
    """
    inside, n = LINKS["NVLink of an H100"], 8 * count

    def takes(size):
        waits = 2 * (count - 1) * link[0] + 2 * (n - count) * inside[0]
        return waits + 2 * (n - 1) / n * size / min(
            inside[1], cards * link[1]
        )

    return takes


def _vgg16():
    layers, channels, side = [], 3, 224
    for width, many in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(many):
            weights = 9 * channels * width
            layers.append((4 * (weights + width), weights * side**2))
            channels = width
        side //= 2  # a pooling
    for width, inputs in ((4096, 25088), (4096, 4096), (1000, 4096)):
        layers.append((4 * (inputs + 1) * width, inputs * width))
    return layers


VGG16 = _vgg16()


def vgg16_takes(seconds, price, cap=0):
    """Return the seconds of a step with VGG-16's layers, until all gradients are there.

    seconds: of forward and backward. A layer takes its share of the multiplications.
    cap: bytes up to which tensors that follow each other become one message.
    """
    all_work, now = sum(work for _, work in VGG16), seconds / 3
    ready, sizes = [], []
    for size, work in reversed(VGG16):
        now += seconds * 2 / 3 * work / all_work
        if sizes and sizes[-1] + size <= cap:
            ready[-1], sizes[-1] = now, sizes[-1] + size
        else:
            ready.append(now)
            sizes.append(size)
    return arrivals(ready, sizes, price)[-1][1]


def vgg16_efficiency(row, cap):
    """Return percent for a row of published.json, on the link as it is sold."""
    seconds = row["rows"] / row["images_a_second"]
    link = 14e-6, row["gigabits"] * 1e9 / 8
    took = vgg16_takes(
        seconds, lambda size: in_a_ring(size, row["gpus"], *link), cap
    )
    return 100 * seconds / took


def gpt2(blocks=12, width=768, words=50257, length=1024):
    """Return the bytes of the gradients; the first layer is the last one, too."""
    block = [1, 1, 3 * width, 3, width, 1, 1, 1, 4 * width, 4, 4 * width, 1]
    tensors = [words, length, *blocks * block, 1, 1]
    return [4 * width * rows for rows in tensors]


def filled(sizes, cap=25 * 2**20, first=2**20):
    """Return the bytes of DDP's buckets, in the order in which they fill."""
    buckets = [0]
    for size in reversed(sizes):
        if buckets[-1] >= (cap if len(buckets) > 1 else first):
            buckets.append(0)
        buckets[-1] += size
    return buckets


def of_a_step(events):
    """Return a step's begin and end of backward, the end of waiting, its all-reduces.

    events: (name, start, end) of a profiler. The clock starts with the first.
    """
    zero, at = min(start for _, start, _ in events), {}
    for name in ("backward", "AccumulateGrad", "all_reduce"):
        found = [event for event in events if event[0].endswith(name)]
        at[name] = sorted(
            (start - zero, end - zero) for _, start, end in found
        )
    begin, end = at["backward"][0]
    return (
        begin,
        max(end for _, end in at["AccumulateGrad"]),
        end,
        at["all_reduce"],
    )


# pictures


def draw_three():
    """Draw 210 ms of computing with 500 MB: on 25 Gb/s twice, then on NVLink."""
    steps = {}
    slow, fast = "Ethernet, 25 Gb/s", "NVLink of an H100"
    for link, many in ((slow, 1), (slow, 20), (fast, 20)):
        bars = arrivals(
            [70 + 140 * (i + 1) / many for i in range(many)],
            [500e6 / many] * many,
            lambda size, link=link: 1e3 * in_a_ring(size, 8, *LINKS[link]),
        )
        end, messages = (
            bars[-1][1],
            "20 messages" if many > 1 else "1 message",
        )
        label = f"{link}, {messages}: {end:.0f} ms, {8 * 210 / end:.1f} times one GPU"
        parts = [("forward", 70), ("backward", 140), ("wait", end - 210)]
        steps[label] = parts, bars
    return draw_steps(steps)


def draw_steps(steps, unit="ms"):
    """Draw {label: ([(what, how long)], [(start, end) on the wire])}."""
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(
        figsize=(7.2, 0.4 + 0.92 * len(steps)), dpi=110, layout="constrained"
    )
    last = max(
        max([sum(long for _, long in parts), *(end for _, end in sends)])
        for parts, sends in steps.values()
    )
    ax.set_xlim(0, 1.02 * last)
    for i, (label, (parts, sends)) in enumerate(steps.items()):
        row, now = 3.2 * i, 0
        ax.text(0, row - 0.72, label, fontsize=10, color=INK)
        for name, long in parts:
            ax.barh(row, long, left=now, height=1, color=COLOUR[name])
            if long > 0.1 * last:
                colour = INK if name == "wait" else "white"
                where = dict(ha="center", va="center", fontsize=10)
                ax.text(now + long / 2, row, name, color=colour, **where)
            now += long
        _draw_sends(ax, row + 0.9, sends, last)
    ax.set_ylim(3.2 * len(steps) - 1.7, -1.5)
    rows = [3.2 * i + down for i in range(len(steps)) for down in (0, 0.9)]
    ax.set_yticks(rows, ["rank", "wire"] * len(steps), fontsize=9)
    ax.set_xlabel(unit, fontsize=10)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def _draw_sends(ax, row, sends, last):
    # what travels at the same time lies in lanes of its own
    lanes, placed = [], []
    for start, end in sorted(sends):
        lane = next(
            (i for i, free in enumerate(lanes) if free <= start), None
        )
        if lane is None:
            lane = len(lanes)
            lanes.append(0)
        lanes[lane] = end
        placed.append((lane, start, end))
    high = 0.66 / max(len(lanes), 1)
    for lane, start, end in placed:
        at = row - 0.33 + high * (lane + 0.5)
        long = end - start
        # a white gap beside what is long, and a line at least of what is short
        edge = "white" if long > 0.005 * last else COLOUR["wire"]
        style = {"color": COLOUR["wire"], "edgecolor": edge, "linewidth": 0.8}
        ax.barh(at, long, left=start, height=high, **style)


def draw_two(begin, full, **runs):
    """Print and draw {name: (end of waiting, its all-reduces)} of one computing."""
    steps = {}
    for name, (last, bars) in runs.items():
        mean = sum(end - start for start, end in bars) / len(bars)
        print(
            f"{name}: a message {mean:.1f} ms, exposed {last - full:.1f} ms"
        )
        parts = [
            ("forward", begin),
            ("backward", full - begin),
            ("wait", last - full),
        ]
        steps[name] = parts, bars
    return draw_steps(steps)


def draw_rows(rows):
    """Print and draw rows of published.json, each with `found`: {what: efficiency}."""
    marks = {"measured": ("X", INK), "alone": ("s", COLOURS[7])}
    ax = axes("efficiency, %", width=7.2, height=3.4)
    labels = [
        f"{row['gpus']} GPUs, {row['network']}, {row['label']}"
        for row in rows
    ]
    for label, row in zip(labels, rows):
        print(
            f"{label:41}",
            *(f"{name} {x:3.0f}" for name, x in row["found"].items()),
        )
    for what in rows[0]["found"]:
        mark, colour = marks.get(what, ("o", COLOURS[1]))
        at = [row["found"][what] for row in rows]
        ax.plot(at, range(len(rows)), mark, color=colour, ms=8, label=what)
    ax.set_yticks(range(len(rows)), labels)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, 102))
    ax.legend(frameon=False, fontsize=9, loc="lower center")
    return ax


def draw_hours(cases, dollars):
    """Draw {title: [(label, GPUs, hours)]}.

    hours: of computing, of waiting, and what comes on top if nothing overlaps; empty
    if it does not fit. dollars: for an hour of one GPU.
    """
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        len(cases),
        1,
        figsize=(
            7.2,
            0.5 + 0.4 * sum(len(bars) + 1 for bars in cases.values()),
        ),
        dpi=110,
        layout="constrained",
        gridspec_kw={"height_ratios": [len(bars) for bars in cases.values()]},
    )
    for ax, (title, bars) in zip(panels, cases.items()):
        longest = max(sum(hours) for *_, hours in bars)
        for i, (_, gpus, hours) in enumerate(bars):
            now = 0
            for long, colour in zip(hours, (COLOURS[2], WAIT, MORE)):
                ax.barh(i, long, left=now, height=0.66, color=colour)
                now += long
            words = "does not fit"
            if hours:
                few, money = sum(hours[:2]), dollars * gpus
                digits = 1 if now < 100 else 0
                words = f"{few:,.{digits}f} to {now:,.{digits}f} hours,"
                words += f" ${money * few:,.0f} to {money * now:,.0f}"
            ax.text(
                now + longest / 90,
                i,
                words,
                va="center",
                fontsize=9,
                color=INK,
            )
        ax.set_yticks(
            range(len(bars)), [label for label, *_ in bars], fontsize=9
        )
        ax.set(ylim=(len(bars) - 0.5, -0.5), xlim=(0, 1.9 * longest))
        ax.set_title(title, fontsize=10, loc="left", color=INK)
        ax.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("hours", fontsize=10)
    words = "computing", "waiting, 20 buckets", "more, if nothing overlaps"
    boxes = [
        plt.Rectangle((0, 0), 1, 1, color=c) for c in (COLOURS[2], WAIT, MORE)
    ]
    figure.legend(
        boxes, words, loc="outside upper center", ncols=3, frameon=False
    )
    return panels
