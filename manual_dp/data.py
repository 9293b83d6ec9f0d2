"""Data in memory: small enough to hold, so that an epoch only slices tensors.

    load_data           (train_iter, test_iter) of a data set by name
    Batches             a tensor of images and one of labels, in minibatches
    ensure_torchvision  import torchvision, also beside a CPU-only torch

    digits              1,797 digits of 8x8, in scikit-learn: no network (Alpaydin 1998)
    fashion-mnist       70,000 garments of 28x28 (Xiao, Rasul & Vollgraf 2017): four
                        files, which files/fashion_mnist.py finds or downloads

Images come out as (n, 1, 28, 28), between 0 and 1.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import torch

from manual_dp.checks import check_batches
from manual_dp.files import fashion_mnist
from manual_dp.files.vision import ensure_torchvision  # noqa: F401, offered here


class Batches:
    """Yield a data set in minibatches; each iteration is an epoch.

    X: images, y: as many labels. generator: a `torch.Generator` that draws a new order
    of the examples for each epoch. With None their order stays, and minibatches are
    views of X. The last minibatch may be shorter; no example is left out.
    """

    def __init__(self, X, y, batch_size, generator=None):
        check_batches(X, y, batch_size)
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

    name: "digits" or "fashion-mnist". Labels are int64, one for each image. seed: of
    the generator that shuffles the training set and nothing else, so that no other
    random draw changes the order. root: the folder of Fashion-MNIST's four .gz files,
    into which missing ones are downloaded; by default the folder in MANUAL_DP_DATA, or
    else a cache folder.
    Raises ValueError for another name or a damaged file, FileNotFoundError (with
    what to put where) if there are neither files nor network.
    """
    if name not in READERS:
        raise ValueError(f"data must be one of {', '.join(READERS)}, got {name!r}")
    X, y, X_test, y_test = READERS[name](root)
    generator = torch.Generator().manual_seed(seed)
    white = X.max()  # 16 in the digits, 255 in Fashion-MNIST
    X = X.unsqueeze(1).to(dtype) / white
    X_test = X_test.unsqueeze(1).to(dtype) / white
    return (
        Batches(X, y.long(), batch_size, generator),
        Batches(X_test, y_test.long(), batch_size),
    )


def _digits(root):
    # the file alone: to import scikit-learn takes each rank one to three seconds
    sklearn = find_spec("sklearn")
    if sklearn is None:
        raise ImportError(
            "the digits come with scikit-learn: pip install 'manual_dp[course]'"
        )
    path = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:  # 64 pixels and a label in each line
        rows = torch.tensor([[int(x) for x in line.split(",")] for line in file])
    X = rows[:, :64].reshape(-1, 8, 8).to(torch.uint8)
    X = X.repeat_interleave(3, 1).repeat_interleave(3, 2)  # 8x8 to 24x24
    X = torch.nn.functional.pad(X, (2, 2, 2, 2))  # to 28x28
    y = rows[:, 64]
    test = torch.arange(len(X)) % 5 == 4  # every fifth image
    return X[~test], y[~test], X[test], y[test]


READERS = {"digits": _digits, "fashion-mnist": fashion_mnist.read}
