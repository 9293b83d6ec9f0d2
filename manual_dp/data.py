"""Data in memory: small enough to hold, so an epoch is slicing and nothing else.

    load_data           (train_iter, test_iter) of a data set by name
    Batches             one tensor of images, one of labels, handed out in minibatches
    ensure_torchvision  import torchvision, also beside a CPU-only torch

    digits              1,797 digits of 8x8, in scikit-learn: no network (Alpaydin 1998)
    fashion-mnist       70,000 garments of 28x28 (Xiao, Rasul & Vollgraf 2017)

Images come out as (n, 1, 28, 28), between 0 and 1. More data: models/blobs.py.
"""

import gzip
import hashlib
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import torch

FASHION_MNIST = {  # the four official files and their SHA-256
    "train-images-idx3-ubyte.gz":
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz":
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz":
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz":
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}


class Batches:
    """Hand out a data set in minibatches, as often as it is iterated over.

    X: images, y: as many labels. generator: a `torch.Generator` that puts the
    examples in a new order each time; None keeps them in theirs. The last minibatch
    may be short; none is dropped.
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
    changes it.
    root: where Fashion-MNIST's four .gz files lie, or shall; by default the folder
    in MANUAL_DP_DATA, else a cache folder. Missing files are downloaded.
    Raises ValueError for another name or a damaged file, FileNotFoundError (with
    what to put where) if there are neither files nor network.
    """
    if name not in READERS:
        raise ValueError(f"data must be one of {', '.join(READERS)}, got {name!r}")
    X, y, X_test, y_test = READERS[name](root)
    generator = torch.Generator().manual_seed(seed)
    white = X.max()
    X, X_test = (images.unsqueeze(1).to(dtype) / white for images in (X, X_test))
    return (Batches(X, y.long(), batch_size, generator),
            Batches(X_test, y_test.long(), batch_size))


def _digits(root):
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: "
                          "pip install 'manual_dp[course]'") from error
    digits = load_digits()
    X = torch.from_numpy(digits.images).to(torch.uint8)
    X = X.repeat_interleave(3, 1).repeat_interleave(3, 2)  # 8x8 to 24x24
    X = torch.nn.functional.pad(X, (2, 2, 2, 2))           # to 28x28
    y = torch.from_numpy(digits.target)
    test = torch.arange(len(X)) % 5 == 4
    return X[~test], y[~test], X[test], y[test]


def _fashion_mnist(root):
    folder = _fashion_mnist_folder(root)
    X, y, X_test, y_test = (_read_idx(folder / name, digest)
                            for name, digest in FASHION_MNIST.items())
    return X, y, X_test, y_test


def _fashion_mnist_folder(root):
    cache = Path.home() / ".cache" / "manual_dp" / "fashion-mnist"
    folder = Path(root or os.environ.get("MANUAL_DP_DATA") or cache)
    missing = [name for name in FASHION_MNIST if not (folder / name).is_file()]
    if missing:
        try:
            _download(folder, missing)
        except Exception as error:
            raise FileNotFoundError(
                f"Fashion-MNIST is not in {folder} and could not be downloaded. Put "
                f"{', '.join(missing)} there, or in a folder named by MANUAL_DP_DATA; "
                'or use data="digits", which needs no download.') from error
    return folder


def _download(folder, names):
    """Fetch through torchvision into a private folder, then move what is complete."""
    torchvision = ensure_torchvision()
    folder.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    limit = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(30)
        fetched = torchvision.datasets.FashionMNIST(private, download=True)
        for name in names:
            os.replace(Path(fetched.raw_folder) / name, folder / name)
    finally:
        socket.setdefaulttimeout(limit)
        shutil.rmtree(private)


def _read_idx(path, digest):
    """Read an idx file in memory: nothing is unpacked, so nothing is half unpacked."""
    packed = path.read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != digest:
        raise ValueError(f"{path} is damaged: {len(packed)} bytes with SHA-256 "
                         f"{found}, not {digest}; delete it and try again")
    raw = bytearray(gzip.decompress(packed))
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(dims)]
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * dims).view(shape)


def ensure_torchvision():
    """Import torchvision and return it.

    Its wheel is built for GPUs. Beside a CPU-only torch the import stops at two
    operators that were never declared; declaring them is enough for all but their
    use. Call this before d2l or lightning, in every process. Elsewhere it only
    imports.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in list(sys.modules):
            if name.split(".")[0] == "torchvision":
                del sys.modules[name]
        import torchvision
    return torchvision


READERS = {"digits": _digits, "fashion-mnist": _fashion_mnist}
