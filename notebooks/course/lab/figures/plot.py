"""The course's charts, in one look: every rank keeps its colour throughout.

    axes        empty axes with the course's look, labelled
    lines       one line a label over common x, labelled at its end
    bars        one bar a label, with its number on top
    phases      where places lie, if each phase is equally wide

The first three draw and return the axes; the lesson calls `plt.show()`. matplotlib is
imported inside, so that importing this file costs nothing.
"""

from itertools import cycle, pairwise

COLOURS = [
    "#3268a8",
    "#d9822b",
    "#3a9a6a",
    "#b5446e",
    "#7a5ea8",
    "#5b8f95",
    "#a08a2c",
    "#6b7078",
]
INK, FAINT = "#30343a", "#e3e6ea"


def axes(xlabel="", ylabel="", title="", width=6.4, height=2.9, panels=1):
    """Make axes with the course's look; a list of them if `panels` is more than 1."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        1, panels, figsize=(width, height), dpi=110, squeeze=False, layout="constrained"
    )
    for ax in grid[0]:
        ax.set_xlabel(xlabel, color=INK)
        ax.set_ylabel(ylabel, color=INK)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#b5bac1")
        ax.tick_params(colors=INK, labelsize=9)
        ax.grid(axis="y", color=FAINT)
        ax.set_axisbelow(True)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=11, color=INK)
    return list(grid[0]) if panels > 1 else grid[0][0]


def lines(x, rows, xlabel, ylabel, title="", log=False, ax=None, **size):
    """Draw one line for each label in `rows`, a dict from label to values over x.

    log: the axes that are logarithmic, "x", "y" or "xy"; True is "y".
    """
    if log is True:
        log = "y"
    log = log or ""
    ax = ax or axes(xlabel, ylabel, title, **size)
    for colour, values in zip(cycle(COLOURS), rows.values()):
        ax.plot(
            x[: len(values)],
            values,
            color=colour,
            lw=1.8,
            alpha=0.9,
            markersize=4,
            marker="o" if len(values) <= 30 else "",
        )
    if "y" in log:
        ax.set_yscale("log")
    if "x" in log:
        ax.set_xscale("log")
        if len(x) <= 9 and max(x) < 1e5:  # few enough to be written out
            ax.set_xticks(list(x), [f"{value:g}" for value in x])
            ax.minorticks_off()
    return _label_ends(ax, rows)


def bars(
    labels, values, ylabel, title="", form="{:g}", xlabel="", colours=COLOURS[0], **size
):
    """Draw a bar for each label, with its number above it; colours: one, or a list."""
    ax = axes(xlabel, ylabel, title, **size)
    drawn = ax.bar(range(len(values)), values, color=colours, width=0.6)
    numbers = [form.format(value) for value in values]
    ax.bar_label(drawn, numbers, padding=3, fontsize=9, color=INK)
    ax.set_xticks(range(len(values)), labels)
    ax.margins(y=0.15)
    return ax


def _label_ends(ax, labels):
    """Write each label beside its line's end, pushed apart where they would touch."""
    from matplotlib.ticker import MaxNLocator

    if ax.get_xscale() == "linear":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))  # no half rank or epoch
    ends = [
        (label, line.get_xdata()[-1], line.get_ydata()[-1], line.get_color())
        for line, label in zip(ax.lines[-len(labels) :], labels)
    ]
    ends.sort(key=lambda end: end[2])  # by y
    ax.figure.draw_without_rendering()  # only now are the axes' pixels known
    point = ax.figure.dpi / 72  # in pixels
    pixels = [ax.transData.transform((x, y))[1] for _, x, y, _ in ends]
    places = _push_apart(pixels, 14 * point, ax.bbox.y0, ax.bbox.y1)
    for (label, x, y, colour), pixel, place in zip(ends, pixels, places):
        ax.annotate(
            label,
            (x, y),
            (8, (place - pixel) / point),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
            annotation_clip=False,
        )
    return ax


def _push_apart(pixels, room, bottom, top):
    """Move rising pixels until they are `room` apart, from bottom to top if they fit.

    Those that would touch are moved together, half of them up and half down.
    """
    groups = []  # of labels that touch: (where the first stands, how many they are)
    for i, pixel in enumerate(pixels):
        groups.append((pixel - room * i, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (one, n), (other, m) = groups[-2:]
            together = (n * one + m * other) / (n + m)
            groups[-2:] = [(together, n + m)]
    starts = [start for start, count in groups for _ in range(count)]
    places = [max(start, bottom) + room * i for i, start in enumerate(starts)]
    for i in reversed(range(len(places))):
        above = len(places) - 1 - i  # so many stand above it
        places[i] = min(places[i], top - room * above)
    return places


def phases(edges):
    """Return x for each place from the first edge up to the last: a phase is 1 wide."""
    return [
        phase + (place - left) / (right - left)
        for phase, (left, right) in enumerate(pairwise(edges))
        for place in range(left, right)
    ]
