"""The four files: found, fetched, checked; never half of them, never others."""

import gzip
import hashlib
import os
import socket
from types import SimpleNamespace

import pytest
import torch

from manual_dp import load_data
from manual_dp.files import fashion_mnist

NAMES = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
]

# four small files of our own


def idx(tensor):
    """Pack a uint8 tensor as the idx files are packed."""
    head = bytes([0, 0, 8, tensor.dim()])
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return gzip.compress(head + sizes + bytes(tensor.flatten().tolist()), mtime=0)


@pytest.fixture
def garments(monkeypatch, tmp_path):
    """Pretend that Fashion-MNIST is this small; return its files' contents."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (10, 28, 28), generator=generator, dtype=torch.uint8)
    images[0, 0, 0] = 255
    labels = torch.arange(10, dtype=torch.uint8)
    files = dict(zip(NAMES, map(idx, (images[:6], labels[:6], images[6:], labels[6:]))))
    monkeypatch.setattr(
        fashion_mnist,
        "FILES",
        {name: hashlib.sha256(packed).hexdigest() for name, packed in files.items()},
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return SimpleNamespace(files=files, images=images, labels=labels)


def put(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, packed in files.items():
        (folder / name).write_bytes(packed)
    return folder


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def no_network(monkeypatch):
    monkeypatch.setattr(fashion_mnist, "SOURCE", "file:///no/such/folder")


def check(garments, train_iter, test_iter):
    X = garments.images[:, None].float() / 255
    assert torch.equal(test_iter.X, X[6:]) and torch.equal(train_iter.X, X[:6])
    assert train_iter.y.tolist() == list(range(6))
    assert test_iter.y.tolist() == list(range(6, 10))
    assert test_iter.y.dtype == torch.int64


@pytest.mark.parametrize("where", ["root", "MANUAL_DP_DATA", "cache"])
def test_files_are_found_where_they_may_lie(monkeypatch, tmp_path, garments, where):
    no_network(monkeypatch)
    cache = tmp_path / "home" / ".cache" / "manual_dp" / "fashion-mnist"
    folder = put(cache if where == "cache" else tmp_path / "here", garments.files)
    named = {"root": tmp_path / "nowhere", "MANUAL_DP_DATA": folder, "cache": ""}
    monkeypatch.setenv("MANUAL_DP_DATA", str(named[where]))
    root = str(folder) if where == "root" else None
    check(garments, *load_data("fashion-mnist", root=root))
    assert listing(folder) == sorted(NAMES)  # nothing is unpacked


def one_bit_flipped(packed):
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 1
    return bytes(flipped)


def test_a_damaged_file_is_refused_by_name(monkeypatch, tmp_path, garments):
    no_network(monkeypatch)
    name = NAMES[2]
    packed = one_bit_flipped(garments.files[name])
    folder = put(tmp_path / "here", {**garments.files, name: packed})
    with pytest.raises(
        ValueError,
        match=f"{name} is damaged: {len(packed)} bytes with "
        "SHA-256 .*; delete it and try again",
    ):
        load_data("fashion-mnist", root=folder)
    assert (folder / name).read_bytes() == packed
    assert listing(folder) == sorted(NAMES)


def test_no_files_and_no_network_says_what_to_put_where(
    monkeypatch, tmp_path, garments
):
    no_network(monkeypatch)
    there = {name: garments.files[name] for name in NAMES[:2]}
    folder = put(tmp_path / "here", there)
    with pytest.raises(FileNotFoundError) as caught:
        load_data("fashion-mnist", root=folder)
    message = str(caught.value)
    assert f"not in {folder} " in message and "MANUAL_DP_DATA" in message
    assert [name in message for name in NAMES] == [name not in there for name in NAMES]
    assert 'data="digits"' in message
    assert isinstance(caught.value.__cause__, OSError)
    assert listing(folder) == sorted(there)


@pytest.fixture
def server(monkeypatch, tmp_path, garments):
    """Return a folder with the four files, from which files are fetched."""
    folder = put(tmp_path / "server", garments.files)
    monkeypatch.setattr(fashion_mnist, "SOURCE", folder.as_uri())
    return folder


@pytest.fixture
def fetched(monkeypatch):
    """Return a list that grows by (name, time limit of a socket) with every download."""
    seen, fetch = [], torch.hub.download_url_to_file

    def noted(url, path, *args, **kwargs):
        seen.append((path.name, socket.getdefaulttimeout()))
        fetch(url, path, *args, **kwargs)

    monkeypatch.setattr(torch.hub, "download_url_to_file", noted)
    return seen


def test_a_download_leaves_the_four_files_and_is_not_repeated(
    tmp_path, garments, server, fetched, capfd
):
    folder = tmp_path / "new" / "here"
    for _ in range(2):
        check(garments, *load_data("fashion-mnist", root=folder))
        assert listing(folder) == sorted(NAMES)
    assert [name for name, _ in fetched] == NAMES
    assert capfd.readouterr() == ("", "")


def test_a_file_that_was_there_is_not_replaced(tmp_path, garments, server, fetched):
    folder = put(tmp_path / "here", {NAMES[0]: garments.files[NAMES[0]]})
    check(garments, *load_data("fashion-mnist", root=folder))
    assert [name for name, _ in fetched] == NAMES[1:]


def test_a_download_that_is_interrupted_leaves_nothing(monkeypatch, tmp_path, server):
    class Breaks:
        def update(self, data):
            assert len(listing(tmp_path / "here")) == 1  # it is being written
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.hub.hashlib, "sha256", Breaks)
    with pytest.raises(KeyboardInterrupt):
        load_data("fashion-mnist", root=tmp_path / "here")
    assert listing(tmp_path / "here") == []


def test_wrong_content_under_the_right_name_is_not_kept(tmp_path, garments, server):
    (server / NAMES[0]).write_bytes(one_bit_flipped(garments.files[NAMES[0]]))
    with pytest.raises(FileNotFoundError, match="could not be downloaded") as caught:
        load_data("fashion-mnist", root=tmp_path / "here")
    assert "invalid hash value" in str(caught.value.__cause__)
    assert listing(tmp_path / "here") == []


def test_a_server_that_stalls_is_given_up_after_30_seconds(
    monkeypatch, tmp_path, garments, fetched
):
    no_network(monkeypatch)
    with pytest.raises(FileNotFoundError):
        load_data("fashion-mnist", root=tmp_path)
    assert fetched == [(NAMES[0], 30)]
    assert socket.getdefaulttimeout() is None  # other people's sockets are theirs


def test_the_official_files_are_named_and_hashed():
    assert list(fashion_mnist.FILES) == NAMES
    assert all(
        len(bytes.fromhex(digest)) == 32 for digest in fashion_mnist.FILES.values()
    )


@pytest.mark.skipif(
    "MANUAL_DP_DATA" not in os.environ,
    reason="MANUAL_DP_DATA names no folder of Fashion-MNIST's files",
)
def test_the_official_files_are_read():
    train_iter, test_iter = load_data("fashion-mnist")
    for batches, rows in ((train_iter, 60_000), (test_iter, 10_000)):
        assert batches.X.shape == (rows, 1, 28, 28)
        assert batches.X.min() == 0 and batches.X.max() == 1
        assert batches.y.bincount().tolist() == [rows // 10] * 10
    # the mean and the standard deviation that everybody normalises by
    assert round(train_iter.X.double().mean().item(), 4) == 0.2860
    assert round(train_iter.X.double().std().item(), 4) == 0.3530
