"""The bench runs every row on tiny sizes, and divides right. No test asserts a time."""

import json
import sys

import pytest
import torch

from course.lab.bench import ROWS, bench

WITH_D2L = ["epoch-1", "epoch-2", "loader"]
PROCESSES = ["import", "launch-2", "launch-4", "launch-8", "launch-first", "ring-2-1",
             "ring-2-4", "ring-2-16", "ring-2-64", "ring-4-1", "ring-4-4", "ring-4-16",
             "ring-4-64", "ddp-lenet", "ddp-resnet18", "weak-scaling", "weak-machine"]
WITHOUT = [name for name in ROWS if name not in WITH_D2L + PROCESSES]


def test_rows_of_processes_are_the_last_and_have_their_aims():
    assert list(ROWS)[-len(PROCESSES):] == PROCESSES
    assert {name: ROWS[name][2] for name in ("launch-8", "launch-first", "ring-4-64",
                                             "ddp-lenet", "weak-scaling")} == {
        "launch-8": 1.2, "launch-first": 3, "ring-4-64": 1.0, "ddp-lenet": 1.05,
        "weak-scaling": 0.9}


def test_rows_run_on_torch_alone(tiny, monkeypatch, capsys):
    for name in ("d2l", "torchvision", "tqdm"):
        monkeypatch.setitem(sys.modules, name, None)
    threads = torch.get_num_threads()
    report = tiny(*WITHOUT)
    assert list(report["rows"]) == WITHOUT
    for row in report["rows"].values():
        assert 0 < row["min"] <= row["median"] <= row["max"] and row["minima"] > 0
    assert list(json.loads(json.dumps(report))["rows"]) == WITHOUT
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == WITHOUT
    assert torch.get_num_threads() == report["threads"] == threads


def test_rows_of_ranks_run_and_fit_the_table(tiny, capsys):
    names = ["launch-2", "ring-2-1", "ddp-lenet", "ddp-resnet18", "weak-scaling",
             "weak-machine"]
    report = tiny(*names)
    for name, pairs in zip(names, (1, 4, 4, 1, 4, 4)):
        row = report["rows"][name]
        assert 0 < row["min"] <= row["median"] <= row["max"] and row["minima"] > 0
        assert len(row["seconds"]) == pairs
    assert [row["what"] for row in report["rows"].values()] == [
        "run_ranks on 2 ranks, in seconds",
        "2 x 3.81e-05 MiB: ring / dist.all_reduce",  # 10 numbers, were they the 64th
        "LeNet, 2 a rank: DDP / torch's", "ResNet-18, 1 a rank: DDP / torch's",
        "LeNet, 2 a rank: one / two DDP", "LeNet, 2 a rank: one / two"]
    lines = capsys.readouterr().out.splitlines()[1:]
    assert {len(line) for line in lines if "e-05" not in line} == {len(lines[0])}


def test_a_row_without_its_package_is_skipped_with_the_reason(
        tiny, no_files, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "d2l", None)
    report = tiny("epoch-1", "allreduce-lenet")
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


@pytest.mark.parametrize("repeat, share, pairs", [(10, 0.2, 2), (1, 0.2, 1), (2, 4, 8)])
def test_a_row_has_its_share_of_the_repeats(planted, repeat, share, pairs):
    planted([1.0] * 9, [1.0] * 9, share)
    row = bench(["planted"], repeat)["rows"]["planted"]
    assert len(row["seconds"]) == pairs
