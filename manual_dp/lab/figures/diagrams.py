"""Pictures with matplotlib: what happens where, in the ranks' colours.

    tables        numbers as shades, one table beside the other         lesson 02
    turns         which rank sees which example, epoch by epoch         lesson 10
"""

from manual_dp.lab.figures.plot import COLOURS, FAINT, INK


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


def turns(epochs, examples):
    """Draw which rank sees which example: a row an epoch, a column an example.

    epochs: dict from a label to the ranks' lists of indices. A cell's colour is its
    rank's; a stripe for each rank that sees it, none if nobody does.
    """
    top = len(epochs) + 0.3
    ax = canvas(6.4, 0.5 + 0.42 * len(epochs), (-3.2, examples), (-0.1, top + 0.5))
    write(ax, top, {i + 0.5: i for i in range(examples)})
    ax.text(-0.2, top, "example", ha="right", fontsize=9, color=INK)
    for y, ranks in zip(rows(ax, epochs), epochs.values()):
        for i in range(examples):
            box(ax, i, y, 1, 1)
            seen = [rank for rank, mine in enumerate(ranks) for j in mine if j == i]
            for part, rank in enumerate(seen):
                box(ax, i + part / len(seen), y, 1 / len(seen), 1, str(rank),
                    COLOURS[rank % len(COLOURS)], 8)
