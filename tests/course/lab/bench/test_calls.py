"""Both sides do the same work; imports and first launches have their own Python.

An epoch is made from a slice: the same images on both sides, scaled right.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from course.lab import book
from course.lab.bench import ROWS, bench
from course.lab.bench import calls as page
from manual_dp.data import Batches
from manual_dp.lenet import init_params


@pytest.mark.parametrize("world_size", [2, 8])
def test_a_plain_step_is_the_step_of_train_batch(tiny, monkeypatch, world_size):
    kept, replicas = [], page.replicas
    monkeypatch.setattr(page, "replicas",
                        lambda devices: kept.append(replicas(devices)) or kept[-1])
    tiny(f"step-{world_size}")
    many, (plain,) = kept
    assert len(many) == world_size
    for params in many:
        for p, q, start in zip(params, plain, replicas(["cpu"])[0]):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
            assert not torch.equal(p, start)


def test_both_sides_of_allreduce_lenet_sum_every_gradient_of_four_ranks(tiny, monkeypatch):
    sizes = {"ours": [], "theirs": []}

    def counting(side):
        return lambda tensors: sizes[side].append([t.numel() for t in tensors])
    monkeypatch.setattr(page, "allreduce", counting("ours"))
    monkeypatch.setattr(page.book, "allreduce", counting("theirs"))
    tiny("allreduce-lenet")
    assert sizes["ours"][0] == [sum(p.numel() for p in init_params())] * 4
    assert [sum(rank) for rank in zip(*sizes["theirs"][:8])] == sizes["ours"][0]


def test_big_tensors_are_four_of_the_size_that_the_row_names():
    seen = []
    setup = SimpleNamespace(numbers=2**10, device=torch.device("cpu"))
    what, ours, theirs = page.big(seen.append, setup)
    ours(), theirs()
    assert what.startswith("4 x 0.00391 MiB / ")
    assert [t.numel() * t.element_size() / 2**20 for t in seen[0]] == [2**-8] * 4


def test_imports_are_timed_in_processes_of_their_own(monkeypatch):
    check_output, codes = subprocess.check_output, []

    def quick(command, cwd):
        python, flag, code = command
        assert python == sys.executable and (cwd / "manual_dp").is_dir()
        codes.append(code)
        name = "manual_dp" if "manual_dp" in code else "torch"
        return check_output([python, flag, code.replace(name, "json")], cwd=cwd)
    monkeypatch.setattr(subprocess, "check_output", quick)
    row = bench(["import"], repeat=1)["rows"]["import"]
    assert row["min"] > 0
    assert ["manual_dp" in code for code in codes] == [True, False, False, True]
    assert ["import torch" in code for code in codes] == [False, True, True, False]


def test_a_launch_is_divided_by_one_second(monkeypatch):
    asked = []
    monkeypatch.setattr(page, "run_ranks", lambda *given: asked.append(given))
    what, ours, theirs = ROWS["launch-8"][0](None)
    assert what.endswith("in seconds") and theirs() == 1.0
    assert 0 <= ours() < 60 and asked == [(int, 8)]


def test_the_first_launch_is_timed_in_a_python_of_its_own(monkeypatch):
    asked = []

    def check_output(command, cwd):
        asked.append(command)
        assert (cwd / "manual_dp").is_dir()
        return b"1.25\n"
    monkeypatch.setattr(subprocess, "check_output", check_output)
    what, ours, theirs = ROWS["launch-first"][0](None)
    assert what.endswith("in seconds") and (ours(), theirs()) == (1.25, 1.0)
    [(python, flag, code)] = asked
    begin, end = code.split("t = time.time(); ")
    assert python == sys.executable and "import run_ranks" in begin
    assert end == "run_ranks(int, 2); print(time.time() - t)"


# epochs

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
