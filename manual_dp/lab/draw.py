"""The course's pictures: what happens where, in the ranks' colours.

    step        one step of data parallel training, left to right     lesson 00
    three_ways  LeNet split by layer, inside a layer, by data          lesson 01
    pipeline    who works when, with p stages and m micro-batches      lesson 01
    tables      numbers as shades, one table beside the other         lesson 02
    holdings    who holds what after each step of an all-reduce        lesson 03
    shards      the rows of a minibatch, coloured by rank              lesson 04
"""

from manual_dp.lab.plot import COLOURS, FAINT, INK

LAYERS = ["conv 1", "conv 2", "linear 1", "linear 2"]


def canvas(width, height, xlim, ylim):
    """Make bare axes of the given size in inches."""
    import matplotlib.pyplot as plt
    _, ax = plt.subplots(figsize=(width, height), dpi=110, layout="constrained")
    ax.set_xlim(*xlim)
    ax.set_ylim(*ylim)
    ax.axis("off")
    return ax


def box(ax, x, y, width, height, text="", colour=FAINT, ink=INK, size=9, alpha=1.0):
    """Draw a rounded box with its lower left corner at (x, y), and text in it."""
    from matplotlib.patches import FancyBboxPatch
    ax.add_patch(FancyBboxPatch((x + 0.03, y + 0.03), width - 0.06, height - 0.06,
                                boxstyle="round,pad=0,rounding_size=0.06",
                                facecolor=colour, edgecolor="white", alpha=alpha))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center",
            fontsize=size, color=ink)


def arrow(ax, start, end, colour=INK, style="-|>", bend=0.0):
    """Draw an arrow from start to end, both (x, y)."""
    ax.annotate("", end, start, arrowprops={
        "arrowstyle": style, "color": colour, "lw": 1.4, "shrinkA": 2, "shrinkB": 2,
        "connectionstyle": f"arc3,rad={bend}"})


def step(world_size=2, rows=4):
    """Draw one step: split, forward and backward, all-reduce, update."""
    ax = canvas(7.6, 0.9 + 0.75 * world_size, (0, 11.3), (-0.1, world_size + 0.55))
    heads = [(0.7, "minibatch"), (2.65, "shards"), (5.0, "replicas"),
             (7.5, "gradients"), (9.95, "new weights")]
    for x, text in heads:
        ax.text(x, world_size + 0.25, text, ha="center", fontsize=10, color=INK)
    for rank in range(world_size):
        colour, y = COLOURS[rank], world_size - 1 - rank
        for i in range(rows):
            row, thick = y + 0.12 + i * 0.8 / rows, 0.8 / rows
            box(ax, 0.1, row, 1.2, thick, colour=colour)
            box(ax, 2.05, row, 1.2, thick, colour=colour)
        arrow(ax, (1.35, y + 0.5), (2.05, y + 0.5), colour)
        arrow(ax, (3.3, y + 0.5), (4.0, y + 0.5), colour)
        box(ax, 4.05, y + 0.1, 1.9, 0.8, f"rank {rank}\nall weights", colour, "white")
        arrow(ax, (6.0, y + 0.5), (6.6, y + 0.5), colour)
        box(ax, 6.65, y + 0.1, 1.7, 0.8, f"of shard {rank}", colour, "white",
            alpha=0.75)
        arrow(ax, (8.4, y + 0.5), (9.05, y + 0.5), INK)
        box(ax, 9.1, y + 0.1, 1.7, 0.8, "the same", FAINT)
    box(ax, 8.5, 0.0, 0.42, world_size, "", INK)
    ax.text(8.71, world_size / 2, "all-reduce: sum", rotation=90, ha="center",
            va="center", fontsize=8.5, color="white")
    return ax


def three_ways():
    """Draw LeNet on two devices, split in the three ways."""
    ax = canvas(7.6, 3.0, (0, 15.6), (-0.9, 5.6))
    for i, title in enumerate(["by layer", "inside a layer", "by data"]):
        x = 5.3 * i
        ax.text(x + 2.3, 5.15, title, ha="center", fontsize=11, color=INK)
        for layer, name in enumerate(LAYERS):
            y = 3.6 - 1.15 * layer
            if i == 0:
                box(ax, x + 0.9, y, 2.8, 0.9, name, COLOURS[layer // 2], "white")
            else:
                for rank in range(2):
                    text = name if i == 2 else f"half of\n{name}"
                    box(ax, x + 0.35 + 2.0 * rank, y, 1.9, 0.9, text, COLOURS[rank],
                        "white", 8)
                if i == 1 and layer < 3:
                    arrow(ax, (x + 1.7, y - 0.13), (x + 2.9, y - 0.13), INK, "<|-|>")
        if i == 0:
            arrow(ax, (x + 2.3, 2.55), (x + 2.3, 2.1), INK)
        if i == 2:
            arrow(ax, (x + 1.7, -0.2), (x + 2.9, -0.2), INK, "<|-|>")
        crosses = ["activations cross once", "activations cross at each layer",
                   "gradients cross, at the end"]
        ax.text(x + 2.3, -0.75, crosses[i], ha="center", fontsize=8.5, color=INK)
    return ax


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


def pipeline(stages, micro_batches):
    """Draw the forward pass of a pipeline: time to the right, a row for each stage."""
    slots = micro_batches + stages - 1
    ax = canvas(7.0, 0.55 + 0.36 * stages, (-1.6, max(slots, 11)), (-0.2, stages + 0.1))
    for stage in range(stages):
        y = stages - 1 - stage
        ax.text(-0.15, y + 0.5, f"device {stage}", ha="right", va="center", fontsize=9,
                color=INK)
        for slot in range(slots):
            busy = 0 <= slot - stage < micro_batches
            box(ax, slot, y, 1, 1, str(slot - stage + 1) if busy else "",
                COLOURS[stage % len(COLOURS)] if busy else FAINT, "white")
    return ax


def holdings(states, titles):
    """Draw tables side by side: in s, states[s][rank][chunk] ranks are summed there."""
    world_size = len(states[0])
    wide = world_size + 0.9
    ax = canvas(7.6, 0.6 + 0.3 * world_size, (-1.3, wide * len(states)),
                (-0.1, world_size + 0.75))
    for s, (state, title) in enumerate(zip(states, titles)):
        ax.text(wide * s + world_size / 2, world_size + 0.3, title, ha="center",
                fontsize=9, color=INK)
        for rank, row in enumerate(state):
            y = world_size - 1 - rank
            if s == 0:
                ax.text(-0.15, y + 0.5, f"rank {rank}", ha="right", va="center",
                        fontsize=9, color=INK)
            for chunk, summed in enumerate(row):
                box(ax, wide * s + chunk, y, 1, 1, str(summed), COLOURS[2],
                    "white" if summed > world_size / 2 else INK,
                    alpha=0.15 + 0.85 * (summed - 1) / max(1, world_size - 1))
    return ax


def shards(sizes_by_case):
    """Draw each case's rows as squares, in the colour of the rank that gets them."""
    cases = list(sizes_by_case.items())
    most = max(sum(sizes) for _, sizes in cases)
    ax = canvas(7.0, 0.3 + 0.34 * len(cases), (-3.2, max(most, 12) + 3.6),
                (-0.1, len(cases)))
    for place, (label, sizes) in enumerate(cases):
        y, x = len(cases) - 1 - place, 0
        ax.text(-0.3, y + 0.5, label, ha="right", va="center", fontsize=9, color=INK)
        for rank, size in enumerate(sizes):
            for _ in range(size):
                box(ax, x, y + 0.05, 1, 0.9, str(rank), COLOURS[rank], "white", 8)
                x += 1
        ax.text(x + 0.4, y + 0.5, ", ".join(map(str, sizes)), va="center", fontsize=9,
                color=INK)
    return ax
