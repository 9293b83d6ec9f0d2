"""The bench runs every row on tiny sizes, and divides right. No test asserts a time."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from manual_dp.data import Batches
from manual_dp.lab import bench as page
from manual_dp.lab import book
from manual_dp.lab.bench import ROWS, bench, ranks

TINY = {"repeat": 1, "batches": 3, "batch_size": 4, "numbers": 100}
WITH_D2L = ["epoch-1", "epoch-2", "loader"]
WITHOUT = [name for name in ROWS  # test_bench_ranks.py has the rows of processes
           if name not in [*WITH_D2L, "import", *ranks.ROWS]]


@pytest.fixture
def no_files(monkeypatch):
    def load_data(name, root):
        raise FileNotFoundError("neither files nor network")
    monkeypatch.setattr(page, "load_data", load_data)


@pytest.fixture
def planted(monkeypatch):
    """Return a function that adds a row whose sides return the given seconds."""
    def plant(ours, theirs, share=1):
        ours, theirs = iter(ours), iter(theirs)
        monkeypatch.setitem(ROWS, "planted", (
            lambda setup: ("a / b", lambda: next(ours), lambda: next(theirs)),
            share, 1.5))
    return plant


def images(n):
    """Return n different images, of whole 255ths, and labels."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(256, (n, 1, 28, 28), generator=generator)
    return X / 255, torch.randint(10, (n,), generator=generator)


def test_rows_run_on_torch_alone(monkeypatch, capsys):
    for name in ("d2l", "torchvision", "tqdm"):
        monkeypatch.setitem(sys.modules, name, None)
    threads = torch.get_num_threads()
    report = bench(WITHOUT, **TINY)
    assert list(report["rows"]) == WITHOUT
    for row in report["rows"].values():
        assert 0 < row["min"] <= row["median"] <= row["max"] and row["minima"] > 0
    assert list(json.loads(json.dumps(report))["rows"]) == WITHOUT
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == WITHOUT
    assert torch.get_num_threads() == report["threads"] == threads


def test_epochs_run_on_random_images_and_say_so(
        no_files, monkeypatch, tmp_path, capsys):
    pytest.importorskip("d2l")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    report = bench(["epoch-2", "loader"], **TINY)
    assert [row["what"] for row in report["rows"].values()] == [
        "epoch on 2 / book's, random images", "our loader / d2l's, random images"]
    out = capsys.readouterr().out
    assert out.count("random images") == 2 and max(map(len, out.splitlines())) <= 88
    assert Path.cwd() == home and list(tmp_path.rglob("*")) == [home]


def test_both_loaders_hold_the_same_first_images_of_fashion_mnist(monkeypatch):
    X, y = images(20)
    seen = []
    data = {("fashion-mnist", "here"): (Batches(X, y, 5), None)}
    monkeypatch.setattr(page, "load_data", lambda name, root: data[name, root])
    monkeypatch.setattr(page.book, "load_data", lambda *given: seen.append(given) or [])
    monkeypatch.setattr(page, "_epoch_seconds", lambda step, loader, scale: (
        seen.append((loader, scale)) or 1.0))
    row = bench(["epoch-1"], root="here", **TINY)["rows"]["epoch-1"]
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


def test_a_row_without_its_package_is_skipped_with_the_reason(
        no_files, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "d2l", None)
    report = bench(["epoch-1", "allreduce-lenet"], **TINY)
    reason = report["rows"]["epoch-1"]["skipped"]
    assert "d2l" in reason and list(report["rows"]["epoch-1"]) == ["skipped"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f"epoch-1         skipped: {reason}"
    assert lines[3].startswith("allreduce-lenet packed")


def test_an_unknown_row_is_refused_before_anything_runs(planted, capsys):
    planted([], [])
    with pytest.raises(ValueError, match="'step-3'; rows: epoch-1, epoch-2, step-2, "):
        bench(["planted", "step-3"])
    assert capsys.readouterr().out == ""


def test_figures_are_of_the_pairs_after_the_first(planted, capsys):
    planted([9, 4, 3, 8], [1, 2, 2, 1])  # 9 warms up; then 2, 1.5, 8
    row = bench(["planted"], repeat=3)["rows"]["planted"]
    assert row == {"what": "a / b", "aim": 1.5, "median": 2, "min": 1.5, "max": 8,
                   "minima": 3, "seconds": [[4, 2], [3, 2], [8, 1]]}
    assert capsys.readouterr().out.split()[-8:] == [
        "a", "/", "b", "2.000", "1.500", "8.000", "3.000", "1.5"]


def test_sides_take_turns(monkeypatch):
    turns = []
    monkeypatch.setitem(ROWS, "planted", (lambda setup: (
        "a / b", lambda: turns.append("a") or 1, lambda: turns.append("b") or 1),
        1, None))
    bench(["planted"], repeat=3)
    assert "".join(turns) == "abbaabba"


@pytest.mark.parametrize("repeat, share, pairs", [(10, 0.2, 2), (1, 0.2, 1), (2, 4, 8)])
def test_a_row_has_its_share_of_the_repeats(planted, repeat, share, pairs):
    planted([1.0] * 9, [1.0] * 9, share)
    row = bench(["planted"], repeat)["rows"]["planted"]
    assert len(row["seconds"]) == pairs


def test_an_epoch_counts_start_and_end_of_the_loader_once(monkeypatch):
    now = [0]
    monkeypatch.setattr(page, "_clock", lambda: now[0])

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
    seconds = page._epoch_seconds(lambda X, y: passing(X + y), Loader(), 5)
    assert seconds == 1000 + 3 * (10 + 3) * 5 + 10_000


@pytest.mark.parametrize("world_size", [2, 8])
def test_a_plain_step_is_the_step_of_train_batch(monkeypatch, world_size):
    kept, replicas = [], page._replicas
    monkeypatch.setattr(page, "_replicas",
                        lambda devices: kept.append(replicas(devices)) or kept[-1])
    bench([f"step-{world_size}"], **TINY)
    many, (plain,) = kept
    assert len(many) == world_size
    for params in many:
        for p, q, start in zip(params, plain, replicas(["cpu"])[0]):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
            assert not torch.equal(p, start)


def test_both_sides_of_allreduce_lenet_sum_every_gradient_of_four_ranks(monkeypatch):
    sizes = {"ours": [], "theirs": []}

    def counting(side):
        return lambda tensors: sizes[side].append([t.numel() for t in tensors])
    monkeypatch.setattr(page, "allreduce", counting("ours"))
    monkeypatch.setattr(page.book, "allreduce", counting("theirs"))
    bench(["allreduce-lenet"], **TINY)
    assert sizes["ours"][0] == [sum(p.numel() for p in page.init_params())] * 4
    assert [sum(rank) for rank in zip(*sizes["theirs"][:8])] == sizes["ours"][0]


def test_big_tensors_are_four_of_the_size_that_the_row_names():
    seen = []
    setup = SimpleNamespace(numbers=2**10, device=torch.device("cpu"))
    what, ours, theirs = page._big(seen.append, setup)
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
