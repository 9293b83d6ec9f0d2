"""An epoch is made from a slice: the same images on both sides, scaled right."""

from pathlib import Path

import pytest
import torch

from manual_dp.data import Batches
from manual_dp.lab import book
from manual_dp.lab.bench import epochs as page


def images(n):
    """Return n different images, of whole 255ths, and labels."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(256, (n, 1, 28, 28), generator=generator)
    return X / 255, torch.randint(10, (n,), generator=generator)


def test_epochs_run_on_random_images_and_say_so(
        tiny, no_files, monkeypatch, tmp_path, capsys):
    pytest.importorskip("d2l")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    report = tiny("epoch-2", "loader")
    assert [row["what"] for row in report["rows"].values()] == [
        "epoch on 2 / book's, random images", "our loader / d2l's, random images"]
    out = capsys.readouterr().out
    assert out.count("random images") == 2 and max(map(len, out.splitlines())) <= 88
    assert Path.cwd() == home and list(tmp_path.rglob("*")) == [home]


def test_both_loaders_hold_the_same_first_images_of_fashion_mnist(tiny, monkeypatch):
    X, y = images(20)
    seen = []
    data = {("fashion-mnist", "here"): (Batches(X, y, 5), None)}
    monkeypatch.setattr(page, "load_data", lambda name, root: data[name, root])
    monkeypatch.setattr(page.book, "load_data", lambda *given: seen.append(given) or [])
    monkeypatch.setattr(page, "epoch_seconds", lambda step, loader, scale: (
        seen.append((loader, scale)) or 1.0))
    row = tiny("epoch-1", root="here")["rows"]["epoch-1"]
    assert row["what"] == "epoch on 1 / book's"
    (their_X, their_y, batch_size), (ours, scale), (theirs, their_scale) = seen[:3]
    assert theirs == [] and batch_size == ours.batch_size == 4
    assert scale == their_scale == 60_000 / 12
    for held in (their_X, ours.X):
        assert torch.equal(held, X[:12])
    for held in (their_y, ours.y):
        assert torch.equal(held, y[:12])


def test_the_book_loader_is_d2l_s_over_the_given_images():
    pytest.importorskip("d2l")
    X, y = images(6)
    loader = book.load_data(X, y, 4)
    assert (loader.num_workers, loader.batch_size, len(loader)) == (4, 4, 2)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
    for i in range(6):
        image, label = loader.dataset[i]
        assert torch.equal(image, X[i]) and label == y[i]


def test_an_epoch_counts_start_and_end_of_the_loader_once(monkeypatch):
    now = [0]
    monkeypatch.setattr(page, "clock", lambda: now[0])

    def passing(seconds):
        now[0] += seconds

    class Loader:
        def __len__(self):
            return 3

        def __iter__(self):
            passing(1000)  # at once, as a DataLoader starts its workers
            return self.batches()

        def batches(self):
            for _ in range(3):
                passing(10)
                yield 1, 2
            passing(10_000)
    seconds = page.epoch_seconds(lambda X, y: passing(X + y), Loader(), 5)
    assert seconds == 1000 + 3 * (10 + 3) * 5 + 10_000
