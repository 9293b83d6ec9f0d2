"""CIFAR-10's files in both forms: found, checked, read; never half of them."""

import hashlib
import os
import pickle
import re
import tarfile

import pytest
import torch
from PIL import Image

from manual_dp.data import ensure_torchvision
from manual_dp.files import cifar10
from manual_dp.files.cifar10 import CLASSES, FOLDER

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
    train, test = cifar10.sets(batches)
    assert (len(train), len(test), cifar10.form(batches)) == (10, 2, "batches")
    for number, (X, y) in enumerate([*train, *test]):
        torch.testing.assert_close(X, as_read(number))
        assert y == (9 if number % 2 else number // 2)


def test_the_folder_itself_may_be_named_and_so_may_an_environment_variable(
        batches, monkeypatch):
    assert len(cifar10.sets(batches / FOLDER)[0]) == 10
    monkeypatch.setenv("MANUAL_DP_DATA", str(batches))
    assert len(cifar10.sets()[0]) == 10


def test_folders_of_images_are_read_as_networks_want_them(images):
    train, test = cifar10.sets(images)
    assert (len(train), len(test), cifar10.form(images)) == (20, 10, "images")
    for label in range(10):
        for X, y in (train[2 * label], test[label]):
            torch.testing.assert_close(X, as_read(label))
            assert y == label
    assert train.classes == CLASSES


def test_the_real_dataset_class_is_told_the_same_names():
    official = ensure_torchvision().datasets.CIFAR10
    assert [name for name, _ in [*official.train_list, *official.test_list]] == BATCHES
    assert official.base_folder == FOLDER and official.filename == cifar10.ARCHIVE


def test_no_files_is_one_line_that_says_what_to_put_where(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        cifar10.sets(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"CIFAR-10 is not in {tmp_path}. Put the folder {FOLDER} ")
    for part in (cifar10.ARCHIVE, "train/airplane/0001.jpg", "MANUAL_DP_DATA", "stand-in"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("name", [BATCHES[1], "test_batch", "batches.meta"])
def test_a_missing_or_damaged_official_file_is_named(batches, name):
    path = batches / FOLDER / name
    packed = path.read_bytes()
    path.write_bytes(packed[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged: its MD5 is not .*; unpack"):
        cifar10.sets(batches)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {name}: put what is in"):
        cifar10.sets(batches)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_class_without_images_is_named(images, part):
    for path in (images / part / "frog").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(FileNotFoundError, match=f"{part} has no images of frog: put them"
                                                f" there, as {part}/frog/0001.jpg"):
        cifar10.sets(images)


def test_a_class_that_is_not_of_cifar10_is_named(images):
    (images / "train" / "zebra").mkdir()
    with pytest.raises(ValueError, match="has the folder zebra, which is no class"):
        cifar10.sets(images)


@pytest.mark.parametrize("how", ["cut short", "empty", "a page that says 404"])
def test_a_damaged_image_is_named_when_it_is_read(images, how):
    path = images / "train" / "bird" / "0000.png"
    packed = path.read_bytes()
    path.write_bytes({"cut short": packed[:len(packed) // 2], "empty": b"",
                      "a page that says 404": b"<html>404</html>"}[how])
    train, _ = cifar10.sets(images)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is damaged: "):
        train[4]


def test_an_image_of_another_size_is_named(images):
    path = images / "test" / "cat" / "0000.png"
    Image.new("RGB", (64, 48)).save(path)
    with pytest.raises(ValueError, match="0000.png has 64 x 48 pixels, .* has 32 x 32"):
        cifar10.sets(images)[1][3]


def test_what_is_there_is_not_fetched_again(images, batches, monkeypatch):
    official = ensure_torchvision().datasets.CIFAR10
    monkeypatch.setattr(official, "download", lambda self: pytest.fail("downloads"))
    assert len(cifar10.fetch(images)[0]) == 20
    assert len(cifar10.fetch(batches)[0]) == 10


def test_an_archive_in_the_folder_is_unpacked(batches, tmp_path, monkeypatch):
    archive = tmp_path / "new" / cifar10.ARCHIVE
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(batches / FOLDER, FOLDER)
    official = ensure_torchvision().datasets.CIFAR10
    monkeypatch.setattr(official, "tgz_md5",
                        hashlib.md5(archive.read_bytes()).hexdigest())
    train, test = cifar10.fetch(tmp_path / "new")
    assert (len(train), len(test)) == (10, 2)


def test_what_is_missing_among_images_is_not_fetched(images, monkeypatch):
    official = ensure_torchvision().datasets.CIFAR10
    monkeypatch.setattr(official, "download", lambda self: pytest.fail("downloads"))
    (images / "test" / "deer" / "0000.png").unlink()
    with pytest.raises(FileNotFoundError, match="test has no images of deer"):
        cifar10.fetch(images)


def test_without_a_network_the_line_says_so_too(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^CIFAR-10 is not in .* It could not be "
                                                r"downloaded \(URLError\)\.$"):
        cifar10.fetch(tmp_path / "here")


@pytest.mark.skipif("MANUAL_DP_CIFAR10" not in os.environ,
                    reason="MANUAL_DP_CIFAR10 names no folder of the real images")
def test_the_real_images_are_read():
    train, test = cifar10.sets(os.environ["MANUAL_DP_CIFAR10"])
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train[0][0].shape == (3, 32, 32)
