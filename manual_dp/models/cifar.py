"""Images of 32x32 in three colours: CIFAR-10, or digits in its place.

    image_sets    a training set and a test set by name, one image at a time
    take          some of its images, stacked
    load_images   all of them in memory, in minibatches
    stand_in      1,797 digits in random colours: needs no files, trains in a minute

    cifar10       60,000 photographs of ten classes (Krizhevsky 2009): files/cifar10.py

An image is (3, 32, 32), from -1 to 1, as ToTensor and Normalize(0.5) leave it.
"""

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from manual_dp.data import Batches, load_data
from manual_dp.files import cifar10


def image_sets(name="stand-in", root=None, rows=None, test_rows=None):
    """Return a training set and a test set: set[i] is an image and its class.

    name: "stand-in" or "cifar10". root: of CIFAR-10's files. rows, test_rows: draw so
    many images, always the same ones; None takes all.
    Raises ValueError for another name, a damaged file or more images than there are,
    FileNotFoundError with what to put where.
    """
    if name not in READERS:
        raise ValueError(f"data must be one of {', '.join(READERS)}, got {name!r}")
    train, test = READERS[name](root)
    return _draw(train, rows, "rows"), _draw(test, test_rows, "test_rows")


def take(images, rows):
    """Return the images of these numbers and their classes, as X, y."""
    return default_collate([images[int(row)] for row in rows])


def load_images(name="stand-in", batch_size=128, seed=0, root=None, rows=None,
                test_rows=None, dtype=torch.float32):
    """Return (train_iter, test_iter), two `Batches` of what `image_sets` returns.

    seed: of the training set's shuffling, as in `load_data`. All images are decoded
    now and kept: 50,000 are 0.6 GB in float32.
    """
    sets = image_sets(name, root, rows, test_rows)
    (X, y), (X_test, y_test) = (take(images, range(len(images))) for images in sets)
    generator = torch.Generator().manual_seed(seed)
    return (Batches(X.to(dtype), y, batch_size, generator),
            Batches(X_test.to(dtype), y_test, batch_size))


def stand_in(root=None):
    """Return 1,438 digits to train with and 359 to test with, in random colours.

    Each is drawn in one bright colour on a dark one. On one device torchvision's
    ResNet-18 got 0.958 of the test digits right after three epochs, each of 12 seconds
    on one core: 32 rows a step, rate 0.01, momentum 0.9. root is not used.
    """
    generator = torch.Generator().manual_seed(0)
    return [TensorDataset(_coloured(batches.X, generator), batches.y)
            for batches in load_data("digits", dtype=torch.float64)]


def _coloured(X, generator):
    """Return (n, 1, 28, 28) from 0 to 1 as (n, 3, 32, 32) from -1 to 1."""
    X = torch.nn.functional.pad(X, (2, 2, 2, 2))
    ground, ink = torch.rand(2, len(X), 3, 1, 1, dtype=torch.float64,
                             generator=generator)
    dark, bright = 0.4 * ground, 0.6 + 0.4 * ink
    return (2 * (dark + (bright - dark) * X) - 1).float()


def _draw(images, rows, name):
    if rows is None:
        return images
    if type(rows) is not int or not 1 <= rows <= len(images):
        raise ValueError(f"{name} must be a whole number from 1 to {len(images)}, the "
                         f"images that are there, got {rows!r}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return Subset(images, order[:rows].tolist())


READERS = {"stand-in": stand_in, "cifar10": cifar10.sets}
