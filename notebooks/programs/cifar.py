"""Images of 32x32 in three colours: CIFAR-10, or digits in its place.

    image_sets    a training set and a test set by name, one image at a time
    stand_in      1,797 digits in random colours: needs no files, trains in a minute
    cifar10       60,000 photographs of ten classes (Krizhevsky 2009)

An image is (3, 32, 32), from -1 to 1, as ToTensor and Normalize(0.5) leave it. Of
CIFAR-10 two forms are read, whichever lies in the folder:

    cifar-10-batches-py/data_batch_1 ...   the official files: every pixel as it was
    train/airplane/0001.jpg, test/...      a folder of images for each of ten classes
"""

import os
from pathlib import Path

import torch
from torch.utils.data import Subset, TensorDataset

from manual_dp.data import load_data
from manual_dp.files.vision import ensure_torchvision

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse",
           "ship", "truck"]
FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
IMAGES = (".jpg", ".jpeg", ".png")


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


def cifar10(root=None):
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


READERS = {"stand-in": stand_in, "cifar10": cifar10}
