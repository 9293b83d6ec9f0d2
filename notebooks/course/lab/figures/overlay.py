"""Masks over images: what is there, outlined, and what was found, shaded.

The outline runs exactly between pixels. Under each image stands its own IoU, of the
shade with the outlined: the mean of these is not the IoU of all images together.
"""

from torch.nn import functional as F

from course.lab.figures.plot import COLOURS, INK

FOUND, TRUE = COLOURS[0], COLOURS[1]


def overlay(X, y, found, title="", width=7.4):
    """Draw images with the true masks outlined and the masks that were found shaded.

    X: (n, h, w) or (n, 1, h, w), from 0 to 1. y: (n, h, w), 0 where nothing is.
    found: a dict from label to such masks, a row of images for each; {} draws the
    truth alone. width: in inches. Returns the axes, a list for each row.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch
    X = X.squeeze(1) if X.dim() == 4 else X
    rows = [*found.items()] or [("", None)]
    height = len(rows) * (width - 0.6) / len(X) * X.shape[1] / X.shape[2]
    figure, grid = plt.subplots(len(rows), len(X), dpi=110, squeeze=False,
                                figsize=(width, height + 0.3 * len(rows) + 0.6),
                                layout="constrained")
    for axes, (label, masks) in zip(grid, rows):
        axes[0].set_ylabel(label, color=INK, fontsize=9)
        for i, ax in enumerate(axes):
            _panel(ax, X[i], y[i], None if masks is None else masks[i])
    handles = [Patch(facecolor="none", edgecolor=TRUE, lw=1.6, label="true")]
    if found:
        handles.append(Patch(facecolor=FOUND, alpha=0.55, label="found"))
    figure.legend(handles=handles, loc="outside lower right", ncols=2, frameon=False,
                  fontsize=9, labelcolor=INK)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=11, color=INK)
    return [list(axes) for axes in grid]


def outline(mask):
    """Return the edges of a mask (h, w): lines ((x, y), (x, y)) of one pixel's length.

    As `imshow` has it, the pixel in row r and column c has its middle at (c, r).
    """
    edges = F.pad(mask.bool().long(), (1, 1, 1, 1))
    lines = []
    for r, c in edges.diff(dim=0)[:, 1:-1].nonzero().tolist():
        lines.append(((c - 0.5, r - 0.5), (c + 0.5, r - 0.5)))
    for r, c in edges.diff(dim=1)[1:-1].nonzero().tolist():
        lines.append(((c - 0.5, r - 0.5), (c - 0.5, r + 0.5)))
    return lines


def _panel(ax, image, true, found):
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap
    ax.imshow(image.tolist(), cmap="gray", vmin=0, vmax=1)
    if found is not None:
        alpha = (found.bool() * 0.55).tolist()
        ax.imshow(found.bool().long().tolist(), cmap=ListedColormap([FOUND]),
                  alpha=alpha)
        ax.set_xlabel(_iou(found.bool(), true.bool()), color=INK, fontsize=8.5)
    ax.add_collection(LineCollection(outline(true), colors=TRUE, lw=1.3))
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


def _iou(found, true):
    both, either = int((found & true).sum()), int((found | true).sum())
    return f"IoU {both / either:.2f}" if either else "both empty"
