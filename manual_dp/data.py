"""Data in memory: small enough to hold, so an epoch is slicing and nothing else.

    load_data           (train_iter, test_iter) of a data set by name
    Batches             one tensor of images, one of labels, handed out in minibatches
    ensure_torchvision  import torchvision, also beside a CPU-only torch

    digits              1,797 digits of 8x8, in scikit-learn: no network (Alpaydin 1998)
    fashion-mnist       70,000 garments of 28x28 (Xiao, Rasul & Vollgraf 2017): four
                        files, which files/fashion_mnist.py finds or fetches

Images come out as (n, 1, 28, 28), between 0 and 1. More data: models/blobs.py.
"""

import torch

from manual_dp.files import fashion_mnist
from manual_dp.files.vision import ensure_torchvision  # noqa: F401, offered here


class Batches:
    """Hand out a data set in minibatches, as often as it is iterated over.

    X: images, y: as many labels. generator: a `torch.Generator` that puts the
    examples in a new order each time; None keeps them in theirs, and minibatches are
    views of X. The last minibatch may be short; none is dropped.
    """

    def __init__(self, X, y, batch_size, generator=None):
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be an integer >= 1, got {batch_size!r}")
        if len(X) != len(y):
            raise ValueError(f"X has {len(X)} rows but y has {len(y)}")
        self.X, self.y = X, y
        self.batch_size, self.generator = batch_size, generator

    def __len__(self):
        return -(-len(self.X) // self.batch_size)  # ceil

    def __iter__(self):
        if self.generator is None:
            yield from zip(self.X.split(self.batch_size), self.y.split(self.batch_size))
            return
        order = torch.randperm(len(self.X), generator=self.generator)
        for rows in order.split(self.batch_size):
            yield self.X[rows], self.y[rows]


def load_data(name="digits", batch_size=256, seed=0, root=None, dtype=torch.float32):
    """Load a data set by name; return (train_iter, test_iter), two `Batches`.

    name: "digits" or "fashion-mnist". Labels are int64, one an image. seed: of the
    training set's shuffling, which has a generator of its own: no other random draw
    changes it. root: where Fashion-MNIST's four .gz files lie, or shall; by default the
    folder in MANUAL_DP_DATA, else a cache folder. Missing files are downloaded.
    Raises ValueError for another name or a damaged file, FileNotFoundError (with
    what to put where) if there are neither files nor network.
    """
    if name not in READERS:
        raise ValueError(f"data must be one of {', '.join(READERS)}, got {name!r}")
    X, y, X_test, y_test = READERS[name](root)
    generator = torch.Generator().manual_seed(seed)
    white = X.max()
    X, X_test = (images.unsqueeze(1).to(dtype) / white for images in (X, X_test))
    return (
        Batches(X, y.long(), batch_size, generator),
        Batches(X_test, y_test.long(), batch_size),
    )


def _digits(root):
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn: pip install 'manual_dp[course]'"
        ) from error
    digits = load_digits()
    X = torch.from_numpy(digits.images).to(torch.uint8)
    X = X.repeat_interleave(3, 1).repeat_interleave(3, 2)  # 8x8 to 24x24
    X = torch.nn.functional.pad(X, (2, 2, 2, 2))  # to 28x28
    y = torch.from_numpy(digits.target)
    test = torch.arange(len(X)) % 5 == 4
    return X[~test], y[~test], X[test], y[test]


READERS = {"digits": _digits, "fashion-mnist": fashion_mnist.read}
