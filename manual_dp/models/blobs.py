"""Images to segment, made up: bright blobs on a textured ground, and where they are.

    blobs        images, and a mask for each: 1 where a blob is, 0 elsewhere
    load_blobs   500 of them, in minibatches to train on and to test with

An image is noise of three grain sizes, and on it 1 to 3 soft ellipses of any place,
size, tilt and brightness. The ground is in places as bright as a blob: a threshold
finds the blobs badly, a network that looks around each pixel finds them well.

Only +, -, *, / of float64 lead from `torch.rand` to a pixel. These are rounded in one
way everywhere; sin and exp are not. So the images are the same on every machine.
"""

import torch

from manual_dp.data import Batches

MOST = 3  # blobs in an image
GRAINS = [(8, 0.5), (4, 0.2), (1, 0.1)]  # size in pixels, share of the brightness


def blobs(rows, seed=0, size=32):
    """Generate `rows` images and their masks: X, y.

    X: (rows, size, size) float64, between 0 and 1. y: (rows, size, size) int64.
    A pixel belongs to a blob where that has at least half of its brightness.
    seed: of a generator of the function's own. Other `rows` are other images.
    Raises ValueError unless rows >= 1 and size is a multiple of 8.
    """
    _check(rows, size)
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, *shape):
        values = torch.rand(rows, *shape, dtype=torch.float64, generator=generator)
        return low + (high - low) * values

    X = sum(share * _texture(draw, size, grain) for grain, share in GRAINS)
    y = torch.zeros_like(X, dtype=torch.bool)
    count = draw(1, MOST + 1, 1, 1).floor()
    for i in range(MOST):
        distance = _ellipse(draw, size)
        present = count > i
        edge = distance * distance * distance * distance
        light = draw(0.35, 0.7, 1, 1) / (1 + edge * edge) * present  # half at 1
        X = X + light * (1 - X)  # never above 1
        y |= (distance <= 1) & present
    return X, y.long()


def load_blobs(batch_size=256, seed=0, dtype=torch.float32):
    """Return (train_iter, test_iter), two `Batches` of 400 and 100 blobs' images.

    Images are (n, 1, 32, 32). seed: of the training set's shuffling, as in `load_data`.
    """
    generator = torch.Generator().manual_seed(seed)
    (X, y), (X_test, y_test) = blobs(400, seed=0), blobs(100, seed=1)
    return (
        Batches(X.unsqueeze(1).to(dtype), y, batch_size, generator),
        Batches(X_test.unsqueeze(1).to(dtype), y_test, batch_size),
    )


def _ellipse(draw, size):
    """Return each pixel's squared distance from a centre, 1 on a tilted ellipse."""
    at = torch.arange(size, dtype=torch.float64)
    dx, dy = at - draw(0.1, 0.9, 1, 1) * size, at[:, None] - draw(0.1, 0.9, 1, 1) * size
    half = draw(-1, 1, 1, 1)  # the tangent of half the tilt: no sin, no cos
    cos, sin = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    along = (cos * dx + sin * dy) / (draw(0.1, 0.24, 1, 1) * size)
    across = (cos * dy - sin * dx) / (draw(0.1, 0.24, 1, 1) * size)
    return along * along + across * across


def _texture(draw, size, grain):
    """Return noise from 0 to 1, `grain` pixels from one random number to the next."""
    cells = size // grain + 1
    noise = _stretch(draw(0, 1, cells, cells), grain)
    return _stretch(noise.transpose(1, 2), grain)


def _stretch(values, grain):
    """Go from each value to the next, along the last dimension, in `grain` steps."""
    part = torch.arange(grain, dtype=torch.float64) / grain
    here, there = values[..., :-1, None], values[..., 1:, None]
    return (here + (there - here) * part).flatten(-2)


def _check(rows, size):
    if type(rows) is not int or rows < 1:
        raise ValueError(f"rows must be an integer >= 1, got {rows!r}")
    if type(size) is not int or size < 8 or size % 8:
        raise ValueError(f"size must be a multiple of 8 pixels, got {size!r}")
