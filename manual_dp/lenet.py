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

from manual_dp.checks import check_images, check_scale, check_scores

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
    With the book's 0.01 the loss stays near ln 10 = 2.30 for about a hundred steps;
    with "he" it falls from the first step.
    Draws in float64 and rounds, so float32 and float64 start from the same numbers.
    The tensors live on the CPU and want no gradient: `get_params` makes replicas of
    them.
    """
    check_scale(scale)
    params = []
    for shape in SHAPES:
        if len(shape) == 1:
            params.append(torch.zeros(shape, dtype=dtype))
            continue
        # how many numbers make one output: a linear layer's W is (in, out), a
        # convolution's (out, in, height, width)
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
    of range. (On a GPU the range is not checked: the CPU would have to wait for it.)
    """
    check_scores(y_hat, y)
    return F.cross_entropy(y_hat, y, reduction="none")
