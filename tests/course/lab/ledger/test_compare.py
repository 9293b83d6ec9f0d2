"""The ledger: all methods agree with one device, and a method that does not is seen."""

import functools
import json
import sys
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course.__main__ import main
from course.lab.ledger import compare as page
from course.lab.ledger import methods
from course.lab.ledger.compare import compare, largest_difference, plot, table
from course.lab.ledger.plan import Plan, alone, follow, minibatches, start
from manual_dp import allreduce
from manual_dp.allreduce import WAYS
from manual_dp.lenet import lenet
from manual_dp.ranks import BucketDDP

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BYTES = 129_068 * 8  # LeNet's numbers, in float64
OVER_PROCESSES = ["ring over processes", "DDP, each gradient", "DDP, buckets",
                  "DDP, overlapped", "torch DDP"]
IN_ONE = [*WAYS, "DataParallel by hand"]


# largest_difference

def test_the_largest_difference_by_hand():
    params = [torch.tensor([1.0, 2.0]), torch.tensor([[5.0], [-3.0]])]
    others = [torch.tensor([1.0, 2.5]), torch.tensor([[5.25], [-5.0]])]
    assert largest_difference(params, others) == 2.0
    assert largest_difference(others, params) == 2.0
    assert largest_difference(params, params) == 0.0


def test_leaves_that_want_gradients_are_compared_outside_the_graph(replicas):
    first, second = replicas(2)
    second[7].data[3] += 0.5
    difference = largest_difference(first, second)
    assert isinstance(difference, float) and difference == 0.5


def test_a_parameter_too_few_is_no_agreement(replicas):
    [params] = replicas(1)
    with pytest.raises(ValueError, match="shorter"):
        largest_difference(params, params[:7])


@pytest.mark.parametrize("place", [0, 7])
def test_what_is_not_a_number_is_no_agreement(replicas, place):
    first, second = replicas(2)
    second[place].data.view(-1)[0] = torch.nan
    assert not largest_difference(first, second) <= 1e300


# every method against one device

@functools.cache
def report(world_size):
    return compare(world_size, steps=10, batch_size=24)


def rows(world_size):
    return {row["method"]: row for row in report(world_size)["rows"]}


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_method_ends_where_one_device_ends(world_size):
    assert report(world_size)["after"] == [1, 10]
    assert report(world_size)["moved"] > 1e-3
    found = rows(world_size)
    assert list(found) == list(methods.METHODS)
    for name in IN_ONE + OVER_PROCESSES:
        assert 0 <= found[name]["stepwise"] <= 1e-12, name
        for kind in ("even", "uneven"):
            assert max(found[name]["difference"][kind]) <= 1e-12, (name, kind)
            assert len(found[name]["difference"][kind]) == 2
        copies = 1 if name == "DataParallel by hand" else world_size
        assert (found[name]["replicas"], found[name]["equal"]) == (copies, True)


@pytest.mark.parametrize("world_size, even, uneven, shards, shares", [
    (2, 24, 23, [12, 11], [18, 5]), (3, 24, 22, [8, 8, 6], [14, 4, 4]),
    (4, 24, 21, [6, 6, 6, 3], [12, 3, 3, 3])])
def test_shards_are_equal_once_and_different_once(world_size, even, uneven, shards,
                                                  shares):
    equal = [even // world_size] * world_size
    assert report(world_size)["shards"] == {
        "even": {"rows": even, "in one process": equal, "over processes": equal},
        "uneven": {"rows": uneven, "in one process": shards, "over processes": shares}}
    assert sum(shards) == sum(shares) == uneven


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_sent_are_those_of_the_closed_forms(world_size):
    found = rows(world_size)
    sent = {name: row["sent"]["even"] for name, row in found.items() if "sent" in row}
    n = world_size
    assert sent["single device"] == sent["single, 1 ulp off"] == 0
    assert sent["star"] == (n - 1) * BYTES
    assert sent["tree"] == (n - 1).bit_length() * BYTES
    other_rows = 24 - 24 // n
    assert sent["DataParallel by hand"] == ((n - 1) * BYTES
                                            + other_rows * (28 * 28 + 10) * 8)
    assert sent["halving-doubling"] == {2: 1, 3: 2, 4: 1.5}[n] * BYTES
    for name in ["ring", *OVER_PROCESSES]:  # 8: chunks may differ by a number
        assert abs(sent[name] - 2 * (n - 1) * BYTES / n) <= 8 * n, name
    assert sent["ring over processes"] == sent["ring"]  # of the busiest, to the byte
    counted = [name for name in sent if found[name]["counted"]]
    assert counted == ["single device", "single, 1 ulp off", *WAYS, "ring over processes"]


def test_the_yardstick_takes_one_of_itself():
    for row in report(2)["rows"]:
        if "ratio" in row:
            assert row["seconds"] > 0
            wanted = row["seconds"] / rows(2)["torch DDP"]["seconds"]
            assert row["ratio"] == pytest.approx(wanted)


def test_weights_are_kept_after_1_10_100_and_the_last_step():
    single = methods.single(Plan(1, 12, 3, [3], 0, 0.05))
    assert list(single["weights"]) == [1, 10, 12]
    first, tenth, last = (replicas[0][0] for replicas in single["weights"].values())
    assert not torch.equal(first, tenth) and not torch.equal(tenth, last)
    taken = []
    plan = Plan(1, 101, 1, [1], 0, 0.05)
    kept = follow(plan, lambda X, y: taken.append(1), [start(plan)], torch.device("cpu"))
    assert list(kept["weights"]) == [1, 10, 100, 101] and len(taken) == 101


def test_one_device_alone_takes_the_step_of_torchs_sgd():
    plan = Plan(1, 1, 5, [5], 0, 0.3)
    [(X, y)] = minibatches(plan)
    params = [p.requires_grad_() for p in start(plan)]
    ended = alone(params, X, y, plan.lr)
    assert all(map(torch.equal, params, start(plan)))
    torch.nn.functional.cross_entropy(lenet(X, params), y).backward()
    torch.optim.SGD(params, lr=0.3).step()
    assert largest_difference(params, ended) < 1e-15
    assert largest_difference(ended, start(plan)) > 1e-3


def test_the_control_is_one_device_from_a_start_one_last_place_away():
    plan = Plan(1, 2, 6, [6], 0, 0.05)
    control, single = methods.nudged(plan), methods.single(plan)
    assert control["stepwise"] <= 1e-15
    ends = [run["weights"][2][0] for run in (control, single)]
    assert 0 < largest_difference(*ends) < 1e-12


@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_a_rate_can_be_given_and_each_step_stays_within_the_promise(quick, lr):
    found = compare(3, 3, 12, lr=lr)
    assert found["lr"] == lr and f"3 steps at rate {lr}" in table(found)
    assert all(row["stepwise"] <= 1e-12 for row in found["rows"] if "stepwise" in row)
    assert found["moved"] == pytest.approx(compare(3, 3, 12, lr=lr)["moved"])
    assert found["moved"] != compare(3, 3, 12, lr=lr / 2)["moved"]


def test_a_step_that_is_wrong_once_is_seen_though_it_comes_back(monkeypatch):
    plan = Plan(1, 3, 4, [4], 0, 0.05)
    params, calls = start(plan), []

    def step(X, y):
        calls.append(1)
        for p, end in zip(params, alone(params, X, y, plan.lr)):
            p.copy_(end)
        params[0] += {2: 1e-6, 3: -1e-6}.get(len(calls), 0)
    found = follow(plan, step, [params], torch.device("cpu"))
    assert 5e-7 < found["stepwise"] < 1.1e-6  # a part of the largest weight, 1.5


def test_a_plan_draws_the_same_numbers_each_time_and_others_for_another_seed():
    one, same, other = (Plan(2, 2, 5, [3, 2], seed, 0.05) for seed in (0, 0, 1))
    assert all(map(torch.equal, start(one), start(same)))
    assert not torch.equal(start(one)[0], start(other)[0])
    (X, y), (X2, _) = minibatches(one)
    assert X.shape == (5, 1, 28, 28) and X.dtype == torch.float64 and len(y) == 5
    assert not torch.equal(X, X2) and X.unique().numel() == X.numel()
    assert torch.equal(next(minibatches(same))[0], X)
    assert not torch.equal(next(minibatches(other))[0], X)


def test_torchs_wrapper_is_no_comparison_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert methods.torch_data_parallel(Plan(2, 1, 6, [3, 3], 0, 0.05)) == {
        "note": "pass-through: not a comparison"}


# a method that is wrong

def mean_of_means(plan, module):
    """Let each rank divide by its own rows, as a loss with reduction="mean" does."""
    net, after, factor = methods.ddp(BucketDDP, module)
    return net, after, plan.rows / plan.shares[dist.get_rank()]


class ForgetsABucket(BucketDDP):
    def average(self, params):
        forgotten, *self.buckets = self.buckets
        try:
            super().average([p for p in params if p not in forgotten.views])
        finally:
            self.buckets.insert(0, forgotten)
        forgotten.empty()


def no_factor(module):
    net, after, _ = methods.ddp(BucketDDP, module)
    return net, after, 1


def not_a_word(module):
    return module, None, 1


def average(tensors):
    allreduce(tensors)
    for tensor in tensors:
        tensor /= len(tensors)


def keep_to_rank_0(tensors):
    copies = [tensor.clone() for tensor in tensors]
    allreduce(copies)
    tensors[0].copy_(copies[0])


def over_processes(wrap):
    return partial(methods.over_processes, wrap)


@pytest.mark.parametrize("method, even, uneven, equal", [
    (lambda plan: methods.over_processes(partial(mean_of_means, plan), plan),
     True, False, True),
    (over_processes(partial(methods.ddp, ForgetsABucket, bucket_cap_mb=0.5)),
     False, False, False),
    (over_processes(no_factor), False, False, True),
    (over_processes(not_a_word), False, False, False),
    (partial(methods.by_hand, average), False, False, True),
    (partial(methods.by_hand, keep_to_rank_0), False, False, False),
], ids=["mean of means", "a bucket forgotten", "mean for sum", "no all-reduce",
        "average", "no copy back"])
def test_a_planted_bug_is_seen(monkeypatch, method, even, uneven, equal):
    names = {name: methods.METHODS[name] for name in ("single device", "torch DDP")}
    monkeypatch.setattr(methods, "METHODS", {**names, "planted": method})
    found = compare(2, steps=2, batch_size=12)
    *_, row = found["rows"]
    for kind, right in (("even", even), ("uneven", uneven)):
        difference = max(row["difference"][kind])
        assert difference <= 1e-12 if right else difference > 1e-6
    assert row["stepwise"] > 1e-6
    assert row["equal"] is equal
    line = table(found, timing=False).splitlines()[-1].split()
    yes = {True: "yes", False: "NO"}
    assert line[1:7] == ["NO"] + [yes[even]] * 2 + [yes[uneven]] * 2 + [yes[equal]]


# what is asked

@pytest.mark.parametrize("arguments, message", [
    ((0,), "world_size must be a whole number from 1, got 0"),
    ((2.0,), "world_size must be a whole number from 1, got 2.0"),
    ((65, 1, 1000), "world_size must be at most 64, got 65"),
    ((2, 0), "steps must be a whole number from 1, got 0"),
    ((2, 1, "all"), "batch_size must be a whole number from 1, got 'all'"),
    ((4, 1, 11), "at least three rows a rank, got 11 for 4 ranks")])
def test_nothing_runs_on_wrong_arguments(monkeypatch, arguments, message):
    monkeypatch.setattr(methods, "METHODS", None)
    with pytest.raises(ValueError, match=message):
        compare(*arguments)


@pytest.fixture
def quick(monkeypatch):
    """Leave three methods, none of which starts a process."""
    names = {name: methods.METHODS[name]
             for name in ("single device", "ring", "nn.DataParallel")}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(methods, "METHODS", {**names, "torch DDP": methods.data_parallel})


def test_the_progress_bar_goes_over_the_methods(quick, monkeypatch):
    seen = []
    monkeypatch.setattr(page, "bar", lambda *given: seen.append(given) or given[0])
    compare(2, 1, 6)
    assert seen == [(methods.METHODS.items(), "2 ranks")]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_computes_and_the_number_is_put_back(quick, monkeypatch, threads):
    before, seen = torch.get_num_threads(), []
    method = methods.METHODS["ring"]
    monkeypatch.setitem(methods.METHODS, "ring", lambda plan: seen.append(
        torch.get_num_threads()) or method(plan))
    try:
        torch.set_num_threads(threads)
        compare(2, 1, 6)
        assert seen == [1, 1] and torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


# table and figure

def by_hand():
    """Return a report as compare makes it, with figures of our own."""
    even = {"rows": 4, "in one process": [2, 2], "over processes": [2, 2]}
    uneven = {"rows": 3, "in one process": [2, 1], "over processes": [1, 2]}
    row = {"replicas": 2, "equal": True, "counted": True, "seconds": 0.5, "ratio": 1.0,
           "stepwise": 0.0}
    return {"world_size": 2, "steps": 10, "lr": 0.2, "after": [1, 10], "moved": 0.0312,
            "shards": {"even": even, "uneven": uneven}, "rows": [
        {"method": "single device", **row, "replicas": 1, "sent": {"even": 0},
         "difference": {"even": [0.0, 0.0], "uneven": [0.0, 0.0]}},
        {"method": "nn.DataParallel", "note": "pass-through: not a comparison"},
        {"method": "right", **row, "ratio": 0.5, "stepwise": 1e-12, "sent": {"even": 1234567},
         "difference": {"even": [0.0, 2e-17], "uneven": [1e-12, 3e-16]}},
        {"method": "wrong", **row, "ratio": 12.25, "stepwise": 2e-12, "sent": {"even": 10},
         "difference": {"even": [0.5, 2e-11], "uneven": [float("nan"), 3.0]},
         "equal": False, "counted": False}]}


HEAD = """\
world size 2, float64, 10 steps at rate 0.2; the largest change of a weight is 0.031
even: 4 rows, shards of 2, 2
uneven: 3 rows, shards of 2, 1; over processes 1, 2
each one: from the same weights in every step, promised: <= 1e-12
run: each from its own weights; the control is one device, 1 ulp off
"""


def test_the_table_by_hand():
    assert table(by_hand()) == HEAD + """\
~: computed, for DDP from the bytes that all_reduce was given; time: a step's, / torch DDP's

                       each   run: even run: uneven  ranks bytes sent   time
difference after step   one     1    10     1    10  equal    busiest /torch
single device             0     0     0     0     0      -          0   1.00
nn.DataParallel      pass-through: not a comparison
right                 1e-12     0 2e-17 1e-12 3e-16    yes  1,234,567   0.50
wrong                 2e-12 5e-01 2e-11   nan 3e+00     NO        ~10  12.25"""


def test_the_table_without_timing_by_hand():
    assert table(by_hand(), timing=False) == HEAD + """\
~: computed, for DDP from the bytes that all_reduce was given

                       each   run: even run: uneven  ranks bytes sent
difference after step   one     1    10     1    10  equal    busiest
single device           yes   yes   yes   yes   yes      -          0
nn.DataParallel      pass-through: not a comparison
right                   yes   yes   yes   yes   yes    yes  1,234,567
wrong                    NO    NO    NO    NO    NO     NO        ~10"""


def test_the_table_fits_a_page():
    wide = by_hand()
    for row in wide["rows"]:
        for values in row.get("difference", {}).values():
            values.append(1e-16)
    wide["after"].append(100)
    assert max(map(len, table(wide).splitlines())) <= 88
    assert max(map(len, table(report(4)).splitlines())) <= 88


def test_a_table_of_one_step_keeps_its_columns_apart(quick):
    lines = table(compare(2, 1, 6)).splitlines()
    assert lines[-6].split() == ["each", "run:", "even", "run:", "uneven", "ranks",
                                 "bytes", "sent", "time"]
    assert len({len(line) for line in lines[-6:] if "pass-through" not in line}) == 1


def test_the_figure_has_every_method_and_draws_zero_at_0():
    plt = pytest.importorskip("matplotlib.pyplot")
    shown = by_hand()
    shown["rows"][3]["difference"]["uneven"] = [0.25, 3.0]
    try:
        even, uneven = plot(shown)
        assert [text.get_text() for text in even.get_yticklabels()] == ["wrong", "right"]
        points = [line.get_xdata().tolist() for line in even.get_lines()[:2]]
        assert points == [[0.5, 1e-18], [2e-11, 2e-17]]
        labels = dict(zip(even.get_xticks(), (text.get_text() for text in
                                              even.get_xticklabels())))
        assert labels[1e-18] == "0" and labels[1e-12] == "1e-12"
        assert list(even.get_lines()[2].get_xdata()) == [1e-12, 1e-12]
        low, high = uneven.get_xlim()
        assert low == 1e-18 and high > 3.0 and "uneven" in uneven.get_title()
        assert uneven.get_xscale() == "log"
    finally:
        plt.close("all")


# the command

def test_the_command_prints_a_table_for_each_world_size_and_writes_json(
        quick, capfd, tmp_path):
    out = tmp_path / "out.json"
    assert main(["compare", "--world-size", "2", "3", "--steps", "2", "--batch-size",
                 "9", "--seed", "7", "--out", str(out)]) == 0
    printed, errors = capfd.readouterr()
    runs = json.loads(out.read_text())["runs"]
    assert printed == "\n\n".join(map(table, runs)) + "\n" and errors == ""
    assert [(run["world_size"], run["steps"], run["seed"]) for run in runs] == [
        (2, 2, 7), (3, 2, 7)]
    assert [run["shards"]["even"]["rows"] for run in runs] == [8, 9]
    assert all(run["after"] == [1, 2] for run in runs)


def test_what_has_finished_is_kept(quick, capsys, tmp_path):
    out = tmp_path / "out.json"
    with pytest.raises(SystemExit) as caught:
        main(["compare", "--world-size", "2", "5", "--steps", "1", "--batch-size", "12",
              "--out", str(out)])
    assert caught.value.code == 2
    assert capsys.readouterr().err == ("python -m course: error: batch_size must be "
                                       "at least three rows a rank, got 12 for 5 ranks\n")
    assert [run["world_size"] for run in json.loads(out.read_text())["runs"]] == [2]


def test_an_error_in_a_rank_is_one_line(monkeypatch, capsys):
    def breaks(module):
        raise KeyError("no such layer")
    monkeypatch.setitem(methods.METHODS, "single device", over_processes(breaks))
    with pytest.raises(SystemExit) as caught:
        main(["compare", "--steps", "1"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == ("python -m course: error: rank 0 raised "
                                       "KeyError: 'no such layer'\n")


def test_the_issues_command_is_the_default(monkeypatch):
    asked = []
    monkeypatch.setattr(page, "compare", lambda *given: asked.append(given) or {})
    monkeypatch.setattr(page, "table", lambda report: "")
    main(["compare"])
    main(["compare", "--world-size", "2", "--steps", "100"])
    main(["compare", "--lr", "0.2"])
    assert asked == [(2, 100, 24, 0, 0.05)] * 2 + [(2, 100, 24, 0, 0.2)]
