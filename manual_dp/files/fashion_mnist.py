"""Fashion-MNIST's four official files: find or download them, check them, read them.

Files are unpacked in memory only. A download that is cut short leaves no file.
"""

import gzip
import hashlib
import os
import socket
from pathlib import Path

import torch

SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # torchvision's
FILES = {  # and their SHA-256
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}


def read(root):
    """Return images and labels for training and test: X, y, X_test, y_test, all uint8.

    root: as in `load_data`. Raises ValueError for a damaged file, FileNotFoundError,
    with what to put where, if there are neither files nor network.
    """
    folder = _find(root)
    return [_read_idx(folder / name, digest) for name, digest in FILES.items()]


def _find(root):
    cache = Path.home() / ".cache" / "manual_dp" / "fashion-mnist"
    folder = Path(root or os.environ.get("MANUAL_DP_DATA") or cache)
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        limit = socket.getdefaulttimeout()
        try:
            socket.setdefaulttimeout(30)
            folder.mkdir(parents=True, exist_ok=True)
            for name in missing:
                torch.hub.download_url_to_file(
                    f"{SOURCE}/{name}", folder / name, FILES[name], progress=False
                )
        except Exception as error:
            raise FileNotFoundError(
                f"Fashion-MNIST is not in {folder} and could not be downloaded. Put "
                f"{', '.join(missing)} there, or in a folder named by MANUAL_DP_DATA; "
                'or use data="digits", which needs no download.'
            ) from error
        finally:
            socket.setdefaulttimeout(limit)
    return folder


def _read_idx(path, digest):
    """Return the numbers in an idx file, which is unpacked in memory."""
    packed = path.read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != digest:
        raise ValueError(
            f"{path} is damaged: {len(packed)} bytes with SHA-256 "
            f"{found}, not {digest}; delete it and try again"
        )
    # two zeros, a code of the type, the number of dimensions, 4 bytes for the size of
    # each, then the numbers
    raw = bytearray(gzip.decompress(packed))
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * dims).view(shape)
