"""Both sides do the same work; imports and first launches have their own Python."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from manual_dp.lab.bench import ROWS, bench
from manual_dp.lab.bench import calls as page
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
