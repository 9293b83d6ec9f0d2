"""Where the time of a step goes: one stacked bar for each run.

    draw    seconds of each part, on top of each other                      lesson 12
"""

from course.lab.figures import plot


def draw(runs, title="", **size):
    """Draw a bar for each label, of {part: seconds}; return the axes."""
    ax = plot.axes("milliseconds a step", "", title, **size)
    left = [0.0] * len(runs)
    for part, colour in zip(next(iter(runs.values())), plot.COLOURS):
        widths = [1000 * seconds[part] for seconds in runs.values()]
        ax.barh(range(len(runs)), widths, left=left, color=colour, label=part)
        left = [begin + width for begin, width in zip(left, widths)]
    ax.set_yticks(range(len(runs)), runs)
    ax.invert_yaxis()  # the first run on top
    ax.grid(axis="y", visible=False)
    ax.legend(ncols=len(next(iter(runs.values()))), loc="lower center",
              bbox_to_anchor=(0.5, 1), fontsize=9, frameon=False)
    return ax
