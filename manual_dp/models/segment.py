"""Segmentation on many devices: losses and scores that may be cut by rows.

    pixel_loss    cross-entropy, summed over the pixels of each example
    dice_loss     one minus the soft Dice of each example. Milletari et al. 2016
    overlap       whole numbers, to be added up over minibatches and ranks
    iou           both / either, of such numbers. Jaccard 1912
    dice          2 both / (one + other), of such numbers. Dice 1945

The losses give a value an example. So the course's rule holds: each rank sums, and the
sum is divided by the whole minibatch. A score is a quotient: the mean of the ranks'
scores is not the score of all. The pixels behind it do add up, over rows in any split.

The recipe for `load_blobs(10)`: UNet(), images as 4 * (X - 0.4), pixel_loss,
SGD with momentum 0.9, 16 epochs, lr 2e-4 * (1 - epoch / 16). The test IoU of class 1
comes to 0.90 to 0.93 (seeds 0 to 4, float32, 2 ranks by hand, 12 seconds of one core).
The best threshold on brightness has 0.70.
"""

import torch
from torch.nn import functional as F


def pixel_loss(y_hat, y):
    """Return the cross-entropy of each example, summed over its pixels: n values.

    y_hat: (n, classes, h, w) scores. y: (n, h, w) int64, from 0 to classes - 1.
    A sum over many pixels has a large gradient: a small lr belongs to it.
    """
    _check(y_hat, y)
    return F.cross_entropy(y_hat, y, reduction="none").sum((1, 2))


def dice_loss(y_hat, y, smooth=1.0):
    """Return 1 - Dice of each example, its classes' mean, by probabilities: n values.

    y_hat, y: as `pixel_loss`. smooth: pixels added above and below, so that a class
    that an example lacks counts as found, not as 0 / 0.
    Some take one Dice over the pixels of the whole minibatch. That is no sum over
    examples: no rank can compute its part of it alone.
    """
    _check(y_hat, y)
    p = y_hat.softmax(dim=1)
    truth = F.one_hot(y, y_hat.shape[1]).movedim(-1, 1).to(p.dtype)
    both, total = (p * truth).sum((2, 3)), (p + truth).sum((2, 3))
    return 1 - ((2 * both + smooth) / (total + smooth)).mean(dim=1)


@torch.no_grad()
def overlap(y_hat, y):
    """Count for each class the pixels in both masks, in y_hat's, and in y's.

    y_hat: (n, classes, h, w) scores; a pixel goes to the class with the highest.
    y: (n, h, w) int64. Returns (3, classes) int64: add such tables up over minibatches
    and ranks, then ask for `iou` or `dice`, once. Whole numbers: no rounding.
    """
    _check(y_hat, y)
    classes = torch.arange(y_hat.shape[1], device=y.device).view(-1, 1, 1, 1)
    found, there = y_hat.argmax(dim=1) == classes, y == classes
    return torch.stack(
        [(found & there).sum((1, 2, 3)), found.sum((1, 2, 3)), there.sum((1, 2, 3))]
    )


def iou(counts):
    """Return each class's pixels in both masks over those in either: float64.

    counts: (3, classes), a sum of `overlap`s. NaN for a class that is in no mask.
    """
    both, found, there = _counts(counts)
    return both / (found + there - both)


def dice(counts):
    """Return twice each class's pixels in both masks over the two masks' sum: float64.

    counts: as `iou`, from which it follows: 2 iou / (1 + iou).
    """
    both, found, there = _counts(counts)
    return 2 * both / (found + there)


def _counts(counts):
    if not isinstance(counts, torch.Tensor):
        raise TypeError(f"counts must be a tensor, got {type(counts).__name__}")
    if counts.dim() != 2 or len(counts) != 3 or counts.dtype != torch.int64:
        raise ValueError(
            "counts must be a sum of overlaps, (3, classes) int64, got "
            f"{tuple(counts.shape)} {counts.dtype}"
        )
    return counts.double()


def _check(y_hat, y):
    for name, tensor in (("y_hat", y_hat), ("y", y)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if y.dtype != torch.int64:
        raise TypeError(f"y must be int64, a class for each pixel, got {y.dtype}")
    if y_hat.dim() != 4 or y.shape != (len(y_hat), *y_hat.shape[2:]):
        raise ValueError(
            f"y_hat {tuple(y_hat.shape)} and y {tuple(y.shape)} must be "
            "(n, classes, h, w) and (n, h, w)"
        )
    classes = y_hat.shape[1]
    if y.numel() and y.device.type == "cpu" and not 0 <= y.min() <= y.max() < classes:
        raise ValueError(
            f"y has values from {y.min()} to {y.max()}, not from 0 to {classes - 1}"
        )
