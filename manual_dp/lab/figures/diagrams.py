"""Pictures with matplotlib: what happens where, in the ranks' colours.

    tables        numbers as shades, one table beside the other         lesson 02
    dataparallel  what crosses between device 0 and the others          lesson 07
    worlds        two replicas in one process; two processes            lesson 08
    buckets       which gradients lie in which bucket                   lesson 09
    timeline      when gradients were ready and buckets under way       lesson 09
"""

from manual_dp.lab.figures.plot import COLOURS, FAINT, INK, axes


def canvas(width, height, xlim, ylim):
    """Make bare axes of the given size in inches."""
    import matplotlib.pyplot as plt
    _, ax = plt.subplots(figsize=(width, height), dpi=110, layout="constrained")
    ax.set_xlim(*xlim)
    ax.set_ylim(*ylim)
    ax.axis("off")
    return ax


def box(ax, x, y, width, height, text="", colour=FAINT, size=9, alpha=1.0, ink=None):
    """Draw a rounded box with its lower left corner at (x, y), and text in it."""
    from matplotlib.patches import FancyBboxPatch
    ax.add_patch(FancyBboxPatch((x + 0.03, y + 0.03), width - 0.06, height - 0.06,
                                boxstyle="round,pad=0,rounding_size=0.06",
                                facecolor=colour, edgecolor="white", alpha=alpha))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center",
            fontsize=size, color=ink or (INK if colour == FAINT else "white"))


def arrow(ax, start, end, colour=INK, style="-|>"):
    """Draw an arrow from start to end, both (x, y)."""
    ax.annotate("", end, start, arrowprops={
        "arrowstyle": style, "color": colour, "lw": 1.4, "shrinkA": 2, "shrinkB": 2})


def write(ax, y, texts, size=9, **style):
    """Write texts side by side at height y: a dict from each one's middle to it."""
    for x, text in texts.items():
        ax.text(x, y, text, ha="center", fontsize=size, color=INK, **style)


def rows(ax, labels, x=-0.2):
    """Write the labels left of x, the first on top; return the y of their rows."""
    ys = range(len(labels) - 1, -1, -1)
    for y, label in zip(ys, labels):
        ax.text(x, y + 0.5, label, ha="right", va="center", fontsize=9, color=INK)
    return ys


def tables(values_by_label, xlabel, ylabel):
    """Shade each table's numbers by their size, each on a scale of its own."""
    import matplotlib.pyplot as plt
    figure, grid = plt.subplots(1, len(values_by_label), figsize=(7.4, 2.9), dpi=110,
                                layout="constrained", squeeze=False)
    for ax, (label, values) in zip(grid[0], values_by_label.items()):
        reach = float(values.abs().max())
        image = ax.imshow(values, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
        ax.set_title(label, fontsize=10, color=INK)
        ax.set_xlabel(xlabel, color=INK)
        ax.set_ylabel(ylabel, color=INK)
        ax.spines[:].set_visible(False)
        figure.colorbar(image, ax=ax, label="score")


def worlds():
    """Draw two replicas in one process, and a process for each of two ranks."""
    ax = canvas(7.6, 2.3, (0, 15.2), (-0.2, 4.5))
    write(ax, 4.15, {3.3: "lessons 0 to 7: one process",
                     11.4: "from now on: a process for each rank"}, 10)
    box(ax, 0.2, 0, 6.2, 3.8)
    ax.text(0.55, 3.25, "one Python", fontsize=8.5, color=INK)
    for rank in range(2):
        x = 7.6 + 4.4 * rank
        box(ax, x, 0, 3.2, 3.8)
        ax.text(x + 0.35, 3.25, f"rank {rank}'s Python", fontsize=8.5, color=INK)
        for left, text, name in (
                (0.7 + 2.8 * rank, f"replica {rank}", f"device_params[{rank}]"),
                (x + 0.4, "replica", "params")):
            box(ax, left, 0.5, 2.4, 1.2, text, COLOURS[rank])
            write(ax, 2.2, {left + 1.2: name}, 8, family="monospace")
            arrow(ax, (left + 1.2, 2.15), (left + 1.2, 1.7))
    arrow(ax, (10.85, 1.1), (11.95, 1.1), style="<|-|>")
    write(ax, 1.35, {11.4: "send\nrecv"}, 8)


def buckets(sizes_by_case):
    """Draw for each case its buckets, one colour each, as long as their numbers.

    sizes_by_case: dict from a label to the buckets, each a list of (name, numel).
    """
    cases = len(sizes_by_case)
    ax = canvas(7.6, 0.35 + 0.5 * cases, (-3.6, 20.3), (-0.1, cases + 0.1))
    for y, groups in zip(rows(ax, sizes_by_case), sizes_by_case.values()):
        x = 0.0
        total = sum(numel for group in groups for _, numel in group)
        for i, group in enumerate(groups):
            # no narrower than its text; then in proportion
            width = 1.6 + (20 - 1.6 * len(groups)) * sum(n for _, n in group) / total
            names = [name for name, _ in group]
            text = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            box(ax, x, y + 0.12, width, 0.76, text, COLOURS[i % len(COLOURS)],
                7.5 if width > 3 else 6)
            x += width


def timeline(logs):
    """Draw for each label what `trace.record` saw: gradients, buckets, the end."""
    panels = axes("milliseconds after the end of forward", width=7.4,
                  height=2.5, panels=len(logs))
    last = max(log["end"] for log in logs.values()) * 1e3
    for ax, (label, log) in zip(panels, logs.items()):
        times = [seconds * 1e3 for _, seconds in log["ready"]]
        ax.barh(1, times[-1], height=0.42, color=FAINT)
        ax.text(times[-1] / 2, 1.36, "backward", fontsize=8, ha="center", color=INK)
        ax.plot(times, [1] * len(times), "|", color=INK, markersize=15, mew=1.3)
        for i, (start, end) in enumerate(log["buckets"]):
            ax.barh(0, (end - start) * 1e3, left=start * 1e3, height=0.42,
                    color=COLOURS[i % len(COLOURS)])
        ax.axvline(log["end"] * 1e3, color=INK, lw=1, ls=":")
        ax.set_title(label, fontsize=10, color=INK, loc="left")
        ax.set_yticks([0, 1], ["all-reduce", "gradients"])
        ax.set_xlim(0, last * 1.04)
        ax.set_ylim(-0.5, 1.7)
        ax.grid(False)
    panels[-1].set_yticklabels([])


def dataparallel(world_size=2):
    """Draw one forward of DataParallel: what lies on which device, and what crosses."""
    ax = canvas(7.6, 0.9 + 0.72 * world_size, (-1.6, 13.9), (-0.1, world_size + 0.5))
    write(ax, world_size + 0.22, {2.15: "scatter", 5.75: "replicate",
                                  8.2: "parallel_apply", 10.75: "gather"},
          family="monospace")
    write(ax, world_size + 0.22, {13.1: "loss"})
    top = world_size - 0.5
    labels = [f"device {rank}" for rank in range(world_size)]
    for rank, y in enumerate(rows(ax, labels, -0.1)):
        colour = COLOURS[rank % len(COLOURS)]
        box(ax, 1.4, y + 0.12, 1.5, 0.76, f"shard {rank}", colour, 8, 0.6)
        box(ax, 4.9, y + 0.12, 1.7, 0.76, f"replica {rank}", colour, 8)
        box(ax, 7.3, y + 0.12, 1.7, 0.76, f"output {rank}", colour, 8, 0.75)
        arrow(ax, (6.6, y + 0.5), (7.3, y + 0.5), colour)
        if rank:
            arrow(ax, (0.85, top - 0.35), (1.45, y + 0.75))
            arrow(ax, (4.1, top - 0.35), (4.95, y + 0.75))
            arrow(ax, (9.0, y + 0.5), (9.8, top - 0.2))
    for x, width, text in ((0.05, 0.85, "X"), (3.05, 1.25, "module"),
                           (9.75, 2.0, "all outputs"), (12.5, 1.2, "loss")):
        box(ax, x, world_size - 0.88, width, 0.76, text, size=8)
    for start, end in ((0.9, 1.4), (4.3, 4.9), (9.0, 9.75), (11.75, 12.5)):
        arrow(ax, (start, top), (end, top))
