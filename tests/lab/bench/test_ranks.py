"""The bench's rows of processes run on tiny sizes. No test asserts a time."""

import subprocess
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.lab import bench as bench_page
from manual_dp.lab.bench import ROWS, bench
from manual_dp.lab.bench import ranks as page
from manual_dp.lab.bench.ranks import _turns
from manual_dp.ranks import DDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

TINY = {"repeat": 1, "batch_size": 4, "numbers": 640}


def test_the_rows_of_ranks_are_rows_of_the_bench():
    assert list(ROWS)[-len(page.ROWS):] == list(page.ROWS) == [
        "launch-2", "launch-4", "launch-8", "launch-first", "ring-2-1", "ring-2-4",
        "ring-2-16", "ring-2-64", "ring-4-1", "ring-4-4", "ring-4-16", "ring-4-64",
        "ddp-lenet", "ddp-resnet18", "weak-scaling", "weak-machine"]
    assert {name: ROWS[name][2] for name in ("launch-8", "launch-first", "ring-4-64",
                                             "ddp-lenet", "weak-scaling")} == {
        "launch-8": 1.2, "launch-first": 3, "ring-4-64": 1.0, "ddp-lenet": 1.05,
        "weak-scaling": 0.9}


def test_rows_of_ranks_run_and_fit_the_table(capsys):
    names = ["launch-2", "ring-2-1", "ddp-lenet", "ddp-resnet18", "weak-scaling",
             "weak-machine"]
    report = bench(names, **TINY)
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


def test_a_launch_is_divided_by_one_second(monkeypatch):
    asked = []
    monkeypatch.setattr(page, "run_ranks", lambda *given: asked.append(given))
    what, ours, theirs = page.ROWS["launch-8"][0](None)
    assert what.endswith("in seconds") and theirs() == 1.0
    assert 0 <= ours() < 60 and asked == [(int, 8)]


def test_the_first_launch_is_timed_in_a_python_of_its_own(monkeypatch):
    asked = []

    def check_output(command, cwd):
        asked.append(command)
        assert (cwd / "manual_dp").is_dir()
        return b"1.25\n"
    monkeypatch.setattr(subprocess, "check_output", check_output)
    what, ours, theirs = page.ROWS["launch-first"][0](None)
    assert what.endswith("in seconds") and (ours(), theirs()) == (1.25, 1.0)
    [(python, flag, code)] = asked
    begin, end = code.split("t = time.time(); ")
    assert python == sys.executable and "import run_ranks" in begin
    assert end == "run_ranks(int, 2); print(time.time() - t)"


@pytest.mark.parametrize("name, mib", [("ring-2-1", 1), ("ring-4-64", 64)])
def test_the_ring_passes_as_many_mib_as_the_row_names(monkeypatch, name, mib):
    asked = []
    monkeypatch.setattr(page, "run_ranks", lambda _, world_size, make, args, turns,
                        timeout: asked.append((world_size, make, args)) or [])
    setup = bench_page.SimpleNamespace(numbers=2**24)
    what, pairs = page.ROWS[name][0](setup)
    assert what == f"{name[5]} x {mib} MiB: ring / dist.all_reduce"
    assert pairs(3) == []
    [(world_size, make, [numbers])] = asked
    assert (str(world_size), make, 4 * numbers) == (name[5], page._ring_rank, mib * 2**20)


def log_of(events, turns):
    """Be a rank that notes which side runs; the second side is rank 1's slow one."""
    def make():
        return (lambda: events.append("a")), (lambda: events.append("b"))
    pairs = page._rank(make, (), turns)
    return "".join(events), len(pairs)


def test_sides_take_turns_in_every_rank():
    assert run_ranks(log_of, 2, [], 4) == [("abbaabba", 4)] * 2


def late(rank):
    import time
    return (lambda: time.sleep(0.05 if dist.get_rank() == rank else 0)), lambda: None


def test_a_turn_lasts_until_the_slowest_rank_is_done():
    for rank in (0, 1):
        for slow, _ in _turns(2, late, rank, 2):
            assert slow >= 0.05


def sums(numbers):
    ours, theirs = page._ring_rank(numbers)
    tensors = [cell.cell_contents for cell in ours.__closure__]
    [tensor] = tensors
    tensor += dist.get_rank() + 1
    ours()
    first = tensor.tolist()
    theirs()
    return first, tensor.tolist()


def test_both_sides_of_a_ring_row_sum_the_same_tensor():
    assert run_ranks(sums, 2, 3) == [([3] * 3, [6] * 3)] * 2


def kinds():
    seen = []

    def step(net, shape):
        seen.append(net)
        return net
    page._step = step  # of this rank alone
    page._ddp_rank(lambda: nn.Linear(2, 2), (3, 2))
    first, _ = page._weak_rank(DDP, (1, 1, 28, 28))
    return [type(net).__name__ for net in seen], type(first).__name__


def test_what_is_compared_is_ours_and_torchs_and_one_rank_alone():
    names = [DDP.__name__, DistributedDataParallel.__name__, "LeNet", DDP.__name__]
    assert run_ranks(kinds, 2) == [(names, "LeNet"), (names, "function")]


def test_a_step_moves_the_weights():
    net = nn.Linear(2, 10)
    before = net.weight.detach().clone()
    page._step(net, (3, 2))()
    assert not torch.equal(net.weight, before)
