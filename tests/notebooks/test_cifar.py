"""programs/cifar.py: the stand-in, and CIFAR-10's files in both forms."""

import hashlib
import os
import pickle
import re

import pytest
import torch
from PIL import Image
from programs import cifar
from programs.cifar import CLASSES, FOLDER, image_sets, stand_in

from manual_dp.data import ensure_torchvision

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def pixels(number):
    """Return an image's 3 x 32 x 32 bytes, another one for each number."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(256, (3, 32, 32), generator=generator, dtype=torch.uint8)


def as_read(number):
    """Return the image as a network gets it, worked out by hand."""
    return pixels(number).float() / 255 * 2 - 1


@pytest.fixture
def batches(monkeypatch, tmp_path):
    """Write the official form, two images a batch; torchvision holds it for the real one."""
    import numpy
    official = ensure_torchvision().datasets.CIFAR10
    folder, md5 = tmp_path / "here" / FOLDER, {}
    folder.mkdir(parents=True)
    for i, name in enumerate(BATCHES):
        rows = torch.stack([pixels(2 * i), pixels(2 * i + 1)]).flatten(1)
        packed = pickle.dumps({"data": numpy.array(rows.tolist(), dtype="uint8"),
                               "labels": [i, 9]})
        md5[name] = write(folder / name, packed)
    md5["batches.meta"] = write(folder / "batches.meta",
                                pickle.dumps({"label_names": CLASSES}))
    monkeypatch.setattr(official, "train_list", [[n, md5[n]] for n in BATCHES[:5]])
    monkeypatch.setattr(official, "test_list", [[n, md5[n]] for n in BATCHES[5:]])
    monkeypatch.setattr(official, "meta", {**official.meta, "md5": md5["batches.meta"]})
    return folder.parent


def write(path, packed):
    path.write_bytes(packed)
    return hashlib.md5(packed).hexdigest()


@pytest.fixture
def images(tmp_path):
    """Write the folders of images: two a class to train with, one to test with."""
    folder = tmp_path / "images"
    for part, rows in (("train", 2), ("test", 1)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for row in range(rows):
                image = pixels(10 * row + label).permute(1, 2, 0).contiguous()
                Image.frombytes("RGB", (32, 32), bytes(image.flatten().tolist())).save(
                    folder / part / name / f"{row:04d}.png")
    return folder


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Keep this machine's own files and the network out."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MANUAL_DP_DATA", raising=False)
    official = ensure_torchvision().datasets.CIFAR10
    monkeypatch.setattr(official, "url", "file:///no/such/folder/cifar-10-python.tar.gz")


def test_the_official_files_are_read_as_networks_want_them(batches):
    train, test = cifar.cifar10(batches)
    assert (len(train), len(test)) == (10, 2)
    for number, (X, y) in enumerate([*train, *test]):
        torch.testing.assert_close(X, as_read(number))
        assert y == (9 if number % 2 else number // 2)


def test_the_folder_itself_may_be_named_and_so_may_an_environment_variable(
        batches, monkeypatch):
    assert len(cifar.cifar10(batches / FOLDER)[0]) == 10
    monkeypatch.setenv("MANUAL_DP_DATA", str(batches))
    assert len(cifar.cifar10()[0]) == 10


def test_folders_of_images_are_read_as_networks_want_them(images):
    train, test = cifar.cifar10(images)
    assert (len(train), len(test)) == (20, 10)
    for label in range(10):
        for X, y in (train[2 * label], test[label]):
            torch.testing.assert_close(X, as_read(label))
            assert y == label
    assert train.classes == CLASSES


def test_the_real_dataset_class_is_told_the_same_names():
    official = ensure_torchvision().datasets.CIFAR10
    assert [name for name, _ in [*official.train_list, *official.test_list]] == BATCHES
    assert official.base_folder == FOLDER and official.filename == cifar.ARCHIVE


def test_no_files_is_one_line_that_says_what_to_put_where(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        cifar.cifar10(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"CIFAR-10 is not in {tmp_path}. Put the folder {FOLDER} ")
    for part in (cifar.ARCHIVE, "train/airplane/0001.jpg", "MANUAL_DP_DATA", "stand-in"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("name", [BATCHES[1], "test_batch", "batches.meta"])
def test_a_missing_or_damaged_official_file_is_named(batches, name):
    path = batches / FOLDER / name
    packed = path.read_bytes()
    path.write_bytes(packed[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged: its MD5 is not .*; unpack"):
        cifar.cifar10(batches)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {name}: put what is in"):
        cifar.cifar10(batches)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_class_without_images_is_named(images, part):
    for path in (images / part / "frog").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(FileNotFoundError, match=f"{part} has no images of frog: put them"
                                                f" there, as {part}/frog/0001.jpg"):
        cifar.cifar10(images)


def test_a_class_that_is_not_of_cifar10_is_named(images):
    (images / "train" / "zebra").mkdir()
    with pytest.raises(ValueError, match="has the folder zebra, which is no class"):
        cifar.cifar10(images)


@pytest.mark.parametrize("how", ["cut short", "empty", "a page that says 404"])
def test_a_damaged_image_is_named_when_it_is_read(images, how):
    path = images / "train" / "bird" / "0000.png"
    packed = path.read_bytes()
    path.write_bytes({"cut short": packed[:len(packed) // 2], "empty": b"",
                      "a page that says 404": b"<html>404</html>"}[how])
    train, _ = cifar.cifar10(images)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is damaged: "):
        train[4]


def test_an_image_of_another_size_is_named(images):
    path = images / "test" / "cat" / "0000.png"
    Image.new("RGB", (64, 48)).save(path)
    with pytest.raises(ValueError, match="0000.png has 64 x 48 pixels, .* has 32 x 32"):
        cifar.cifar10(images)[1][3]


@pytest.mark.skipif("MANUAL_DP_CIFAR10" not in os.environ,
                    reason="MANUAL_DP_CIFAR10 names no folder of the real images")
def test_the_real_images_are_read():
    train, test = cifar.cifar10(os.environ["MANUAL_DP_CIFAR10"])
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train[0][0].shape == (3, 32, 32)


# the stand-in

def test_the_stand_in_has_the_shape_and_the_range_of_cifar10():
    train, test = stand_in()
    assert (len(train), len(test)) == (1438, 359)
    X, y = train.tensors
    assert X.shape == (1438, 3, 32, 32) and X.dtype == torch.float32
    assert -1 <= X.min() and X.max() <= 1
    assert sorted(set(y.tolist())) == list(range(10)) and y.dtype == torch.int64


def test_each_digit_has_its_own_bright_colour_on_a_dark_ground():
    X, _ = stand_in()[0].tensors
    ground, ink = X.flatten(2).min(dim=2).values, X.flatten(2).max(dim=2).values
    assert (ground < ink - 0.2).all()  # every digit can be seen in every channel
    assert len({tuple(colour) for colour in ground.tolist()}) == len(X)
    # the brightest pixel of one channel is the brightest of the others: one shape
    first = X.flatten(2).argmax(dim=2)
    assert torch.equal(first[:, 0], first[:, 1]) and torch.equal(first[:, 0], first[:, 2])


def test_the_stand_in_is_always_the_same():
    assert torch.equal(stand_in()[0].tensors[0], stand_in()[0].tensors[0])


def test_a_smaller_set_is_drawn_from_all_classes_and_always_the_same():
    train, test = image_sets("stand-in", rows=200, test_rows=100)
    again, _ = image_sets("stand-in", rows=200)
    assert (len(train), len(test)) == (200, 100)
    X, y = (torch.stack([torch.as_tensor(image[i]) for image in train]) for i in (0, 1))
    assert torch.equal(X, torch.stack([image for image, _ in again]))
    assert y.bincount(minlength=10).min() > 5
    assert len({tuple(image.flatten().tolist()) for image in X}) == 200


@pytest.mark.parametrize("rows", [0, -1, 1439, 2.0, True])
def test_more_images_than_there_are_is_refused(rows):
    with pytest.raises(ValueError, match="rows must be a whole number from 1 to 1438, "
                                         f"the images that are there, got {rows}"):
        image_sets("stand-in", rows=rows)


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="data must be one of stand-in, cifar10, got 'x'"):
        image_sets("x")
