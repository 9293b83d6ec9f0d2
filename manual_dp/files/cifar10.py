"""CIFAR-10's files: found or fetched, checked, read through torchvision's classes.

    sets    the training set and the test set (Krizhevsky 2009)
    fetch   the same; what is missing is downloaded or unpacked first

Two forms are read, whichever lies in the folder:

    cifar-10-batches-py/data_batch_1 ...   the official files: every pixel as it was
    train/airplane/0001.jpg, test/...      a folder of images for each of ten classes
"""

import os
import socket
from pathlib import Path

from manual_dp.files.vision import ensure_torchvision

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
           "ship", "truck"]
FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
IMAGES = (".jpg", ".jpeg", ".png")


def sets(root=None):
    """Return CIFAR-10's training set and test set: X (3, 32, 32) in [-1, 1], and y.

    root: the folder in which either form lies; by default the folder in
    MANUAL_DP_DATA, else a cache folder. Pixels go through ToTensor and Normalize(0.5).
    Raises FileNotFoundError, with what to put where, or ValueError for a damaged file.
    """
    folder, form = _find(_folder(root))
    transforms, datasets = _torchvision()
    pixels = transforms.Compose([transforms.ToTensor(),
                                 transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    if form == "images":
        return [datasets.ImageFolder(folder / part, pixels, loader=_open,
                                     is_valid_file=_is_image)
                for part in ("train", "test")]
    return [datasets.CIFAR10(folder, train, pixels) for train in (True, False)]


def form(root=None):
    """Return "batches" or "images", the form that lies in the folder."""
    return _find(_folder(root))[1]


def fetch(root=None):
    """Return `sets(root)`; if there is nothing, download the official archive.

    One process alone may call this: it writes. It also unpacks an archive that lies
    in the folder.
    """
    folder = _folder(root)
    try:
        return sets(root)
    except FileNotFoundError as error:
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            raise  # images, but not all: the archive would not complete them
        _, datasets = _torchvision()
        limit = socket.getdefaulttimeout()
        try:
            socket.setdefaulttimeout(30)
            datasets.CIFAR10(folder, download=True)
        except Exception as cause:
            raise FileNotFoundError(f"{error} It could not be downloaded "
                                    f"({type(cause).__name__}).") from cause
        finally:
            socket.setdefaulttimeout(limit)
    return sets(root)


def _folder(root):
    cache = Path.home() / ".cache" / "manual_dp" / "cifar10"
    return Path(root or os.environ.get("MANUAL_DP_DATA") or cache)


def _find(folder):
    """Return the folder that torchvision's class is given, and the form."""
    if (folder / "train").is_dir() or (folder / "test").is_dir():
        _check_images(folder)
        return folder, "images"
    if folder.name == FOLDER:
        folder = folder.parent
    if not (folder / FOLDER).is_dir():
        raise FileNotFoundError(
            f"CIFAR-10 is not in {folder}. Put the folder {FOLDER} there (it comes out "
            f"of {ARCHIVE}), or folders of images, train/airplane/0001.jpg and "
            "test/airplane/0001.jpg; or name another folder by MANUAL_DP_DATA; or use "
            'data="stand-in", which needs no files.')
    _check_batches(folder / FOLDER)
    return folder, "batches"


def _check_batches(folder):
    _, datasets = _torchvision()
    official = datasets.CIFAR10
    files = [*official.train_list, *official.test_list,
             [official.meta["filename"], official.meta["md5"]]]
    missing = [name for name, _ in files if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}: put what is in "
                                f"{ARCHIVE} there, whole")
    for name, md5 in files:
        if not datasets.utils.check_integrity(str(folder / name), md5):
            raise ValueError(f"{folder / name} is damaged: its MD5 is not {md5}; "
                             f"unpack {ARCHIVE} there again")


def _check_images(folder):
    for part in ("train", "test"):
        lacking = [name for name in CLASSES
                   if not any(map(_is_image, _listed(folder / part / name)))]
        if lacking:
            raise FileNotFoundError(f"{folder / part} has no images of "
                                    f"{', '.join(lacking)}: put them there, as "
                                    f"{part}/{lacking[0]}/0001.jpg")
        other = sorted({path.name for path in (folder / part).iterdir()
                        if path.is_dir()} - set(CLASSES))
        if other:
            raise ValueError(f"{folder / part} has the folder {other[0]}, which is no "
                             "class of CIFAR-10; move it away")


def _listed(folder):
    return map(str, folder.iterdir()) if folder.is_dir() else []


def _is_image(path):
    return str(path).lower().endswith(IMAGES)


def _open(path):
    """Read an image; name the file if it cannot be read."""
    from PIL import Image
    try:
        with Image.open(path) as image:
            image = image.convert("RGB")
    except OSError as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} while it was "
                         "decoded; put the image there again") from None
    if image.size != (32, 32):
        raise ValueError(f"{path} has {image.size[0]} x {image.size[1]} pixels, an "
                         "image of CIFAR-10 has 32 x 32; put the image there again")
    return image


def _torchvision():
    ensure_torchvision()
    from torchvision import datasets, transforms
    return transforms, datasets
