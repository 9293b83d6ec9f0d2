"""LeNet on raw tensors: eight parameters, no `nn.Module` (d2l.ai 12.5.3).

    init_params     draw [W1, b1, W2, b2, W3, b3, W4, b4]
    lenet           map images to ten scores each
    loss            cross-entropy of each example

In shapes, n is the number of images:

    X  (n, 1, 28, 28) -conv 3x3-> (n, 20, 26, 26) -pool-> (n, 20, 13, 13)
       -conv 5x5-> (n, 50, 9, 9) -pool-> (n, 50, 4, 4) -> (n, 800)
       -linear-> (n, 128) -linear-> (n, 10)
"""

import math

import torch
from torch.nn import functional as F

SHAPES = [
    (20, 1, 3, 3),
    (20,),
    (50, 20, 5, 5),
    (50,),
    (800, 128),
    (128,),
    (128, 10),
    (10,),
]


def init_params(scale=0.01, generator=None, dtype=torch.float32):
    """Draw LeNet's eight tensors: weights from N(0, scale^2), biases zero.

    scale: a number >= 0, or "he" for sqrt(2 / fan_in) layer by layer (He et al. 2015).
    Over the minibatches of a data set, the loss rests near ln 10 = 2.30 for a hundred
    steps with the book's 0.01; with "he" it falls from the first.
    Draws in float64 and rounds, so float32 and float64 start from the same numbers.
    They live on the CPU, and want no gradient: `get_params` makes the replicas.
    """
    number = isinstance(scale, (int, float)) and 0 <= scale < math.inf
    if not number and scale != "he":
        raise ValueError(f'scale must be a finite number >= 0 or "he", got {scale!r}')
    params = []
    for shape in SHAPES:
        if len(shape) == 1:
            params.append(torch.zeros(shape, dtype=dtype))
            continue
        fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        std = math.sqrt(2 / fan_in) if scale == "he" else scale
        W = torch.randn(shape, generator=generator, dtype=torch.float64) * std
        params.append(W.to(dtype))
    return params


def lenet(X, params):
    """Map images to scores, one row of ten for each image.

    X: (n, 1, 28, 28), n >= 0, dtype and device of `params`. Returns (n, 10).
    Raises ValueError for another shape, TypeError for another dtype.
    """
    check_images(X, params)
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h2 = F.avg_pool2d(F.relu(F.conv2d(h1, W2, b2)), 2)
    h3 = F.relu(h2.flatten(1) @ W3 + b3)
    return h3 @ W4 + b4


def loss(y_hat, y):
    """Return the cross-entropy of each example: n values, neither sum nor mean.

    y_hat: (n, classes) scores. y: (n,) int64 labels from 0 to classes - 1.
    Raises TypeError for another dtype, ValueError for another shape or a label out
    of range. (On a GPU the labels are not read: that would make the host wait.)
    """
    _check_scores(y_hat, y)
    if y.device.type == "cpu":
        check_labels(y, y_hat.shape[1])
    return F.cross_entropy(y_hat, y, reduction="none")


def check_labels(y, classes=10):
    """Raise ValueError with index and value if a label is not in 0 .. classes - 1.

    torch alone would skip a label of -100 in silence, and lose a GPU to a label of 10.
    """
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"y must be a tensor, got {type(y).__name__}")
    if y.dtype != torch.int64:
        raise TypeError(f"y must be int64 labels, got {y.dtype}")
    if y.dim() != 1:
        raise ValueError(
            f"y must have one label an example, got shape {tuple(y.shape)}"
        )
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        i = int(wrong.nonzero()[0])
        raise ValueError(f"y[{i}] is {int(y[i])}, not a label from 0 to {classes - 1}")


def check_images(X, params):
    """Raise ValueError or TypeError, naming X, unless lenet takes X with `params`."""
    if not isinstance(X, torch.Tensor):
        raise TypeError(f"X must be a tensor, got {type(X).__name__}")
    if len(params) != len(SHAPES):
        raise ValueError(f"lenet needs {len(SHAPES)} parameters, got {len(params)}")
    if X.dim() != 4 or X.shape[1:] != (1, 28, 28):
        raise ValueError(f"X must have shape (n, 1, 28, 28), got {tuple(X.shape)}")
    if X.dtype != params[0].dtype:
        raise TypeError(f"X is {X.dtype}, the parameters are {params[0].dtype}")


def _check_scores(y_hat, y):
    for name, tensor in (("y_hat", y_hat), ("y", y)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if y.dtype != torch.int64:
        raise TypeError(f"y must be int64 labels, got {y.dtype}")
    if y_hat.dim() != 2 or y.shape != y_hat.shape[:1]:
        raise ValueError(
            f"y_hat {tuple(y_hat.shape)} and y {tuple(y.shape)} must be "
            "(n, classes) and (n,)"
        )
