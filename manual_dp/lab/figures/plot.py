"""The course's charts, in one look: every rank keeps its colour throughout.

    axes        empty axes with the course's look, labelled
    lines       one line a label over common x, labelled at its end
    bars        one bar a label, with its number on top
    band        the spread of several runs, and their mean

Each draws and returns the axes; the lesson calls `plt.show()`. matplotlib is imported
inside, so that importing this file costs nothing.
"""

COLOURS = ["#3268a8", "#d9822b", "#3a9a6a", "#b5446e",
           "#7a5ea8", "#5b8f95", "#a08a2c", "#6b7078"]
INK, FAINT = "#30343a", "#e3e6ea"


def axes(xlabel="", ylabel="", title="", width=6.4, height=2.9, panels=1):
    """Make axes with the course's look; a list of them if `panels` is more than 1."""
    import matplotlib.pyplot as plt
    figure, grid = plt.subplots(1, panels, figsize=(width, height), dpi=110,
                                squeeze=False, layout="constrained")
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
    """Draw one line for each label in `rows`, a dict from label to values."""
    ax = ax or axes(xlabel, ylabel, title, **size)
    ends = []
    for i, (label, values) in enumerate(rows.items()):
        colour = COLOURS[i % len(COLOURS)]
        ax.plot(x[:len(values)], values, color=colour, marker="o", markersize=4, lw=1.8,
                alpha=0.9)
        ends.append((values[-1], label, colour, x[len(values) - 1]))
    if log:
        ax.set_yscale("log")
    _whole_ticks(ax)
    _label_ends(ax, ends)
    return ax


def bars(labels, values, ylabel, title="", form="{:g}", xlabel="", colours=None,
         **size):
    """Draw a bar for each label, the number above it."""
    ax = axes(xlabel, ylabel, title, **size)
    colours = colours or [COLOURS[0]] * len(values)
    places = range(len(values))
    ax.bar(places, values, color=colours, width=0.6)
    for place, value in zip(places, values):
        ax.annotate(form.format(value), (place, value), (0, 3), ha="center",
                    textcoords="offset points", fontsize=9, color=INK)
    ax.set_xticks(list(places), labels)
    ax.margins(y=0.15)
    return ax


def band(x, rows, xlabel, ylabel, title="", ylim=None, ax=None, **size):
    """Draw for each label the mean of its runs, and the band between their extremes."""
    ax = ax or axes(xlabel, ylabel, title, **size)
    ends = []
    for i, (label, runs) in enumerate(rows.items()):
        colour = COLOURS[i % len(COLOURS)]
        columns = list(zip(*runs))
        mean = [sum(column) / len(column) for column in columns]
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        ax.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
        ax.plot(x, mean, color=colour, lw=1.8)
        ends.append((mean[-1], label, colour, x[-1]))
    ax.set_ylim(ylim)
    _whole_ticks(ax)
    _label_ends(ax, ends)
    return ax


def _whole_ticks(ax):
    """Mark whole numbers only: there is no half rank and no half epoch."""
    from matplotlib.ticker import MaxNLocator
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _label_ends(ax, ends):
    """Write each label beside its line's end, pushed apart where they would touch."""
    to_pixels = ax.transData.transform
    ax.autoscale_view()
    room = 13 * ax.figure.dpi / 100
    floor = -float("inf")
    for value, label, colour, x in sorted(ends):
        pixel = to_pixels((x, value))[1]
        place = max(pixel, floor + room)
        floor = place
        ax.annotate(label, (x, value), (8, (place - pixel) * 72 / ax.figure.dpi),
                    textcoords="offset points", va="center", fontsize=9, color=colour,
                    annotation_clip=False)
