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
from course.lab import ledger
from manual_dp import allreduce
from manual_dp.allreduce import WAYS
from manual_dp.ranks import BucketDDP

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BYTES = 129_068 * 8  # LeNet's numbers, in float64
OVER_PROCESSES = [
    "ring over processes",
    "DDP, each gradient",
    "DDP, buckets",
    "DDP, overlapped",
    "torch DDP",
]


N = 3  # ranks: the least whose chunks, halves and shards are all uneven


@functools.cache  # every method starts its ranks once for all tests of this file
def report():
    # some seconds: only here do all methods train on the same minibatches, beside one
    # device. Three steps: torch's DDP packs its buckets anew after the first
    return ledger.compare(N, steps=3, batch_size=24)


def test_every_method_steps_and_ends_where_one_device_does():
    assert report()["after"] == [1, 3] and report()["moved"] > 1e-3
    for row in report()["rows"]:
        assert 0 <= row["stepwise"] <= 1e-12, row["method"]
        assert max(sum(row["difference"], [])) <= 1e-12, row["method"]
        copies = 1 if row["method"][:4] in ("sing", "Data") else N
        assert (row["replicas"], row["equal"]) == (copies, True), row["method"]
    control = report()["rows"][1]
    assert min(sum(control["difference"], [])) > 0


def test_bytes_sent_are_those_of_the_closed_forms():
    rows = {row["method"]: row for row in report()["rows"]}
    sent = {name: row["sent"] for name, row in rows.items()}
    n = N
    assert sent["single device"] == sent["single, 1 ulp off"] == 0
    assert sent["star"] == (n - 1) * BYTES
    assert sent["tree"] == (n - 1).bit_length() * BYTES
    assert sent["DataParallel by hand"] == (
        (n - 1) * BYTES + (24 - 24 // n) * (28 * 28 + 10) * 8
    )
    assert sent["halving-doubling"] == 2 * BYTES  # two ranks exchange, one hands in
    for name in ["ring", *OVER_PROCESSES]:  # 8: chunks may differ by a number
        assert abs(sent[name] - 2 * (n - 1) * BYTES / n) <= 8 * n, name
    assert sent["ring over processes"] == sent["ring"]  # of the busiest, to the byte
    assert [name for name in sent if rows[name]["counted"]] == [
        "single device",
        "single, 1 ulp off",
        *WAYS,
        "ring over processes",
    ]


def test_shards_are_equal_once_and_different_once():
    assert report()["shards"] == {
        "even": {"in one process": [8] * 3, "over processes": [8] * 3},
        "uneven": {"in one process": [8, 8, 6], "over processes": [14, 4, 4]},
    }


# a method that is wrong


def mean_of_means(shares, module):
    """Let each rank divide by its own rows, as a loss with reduction="mean" does."""
    net, after, _ = ledger.ddp(BucketDDP, module)
    return net, after, sum(shares) / shares[dist.get_rank()]


class ForgetsABucket(BucketDDP):
    def average(self, params):
        forgotten, *self.buckets = self.buckets
        try:
            super().average([p for p in params if p not in forgotten.views])
        finally:
            self.buckets.insert(0, forgotten)
        forgotten.empty()


def keep_to_rank_0(tensors):
    copies = [tensor.clone() for tensor in tensors]
    allreduce(copies)
    tensors[0].copy_(copies[0])


@pytest.mark.parametrize(
    "method, even, uneven, equal",
    [
        (
            lambda shares, steps: ledger.over_processes(
                partial(mean_of_means, shares), shares, steps
            ),
            "yes",
            "NO",
            "yes",
        ),
        (
            partial(
                ledger.over_processes,
                partial(ledger.ddp, ForgetsABucket, bucket_cap_mb=0.5),
            ),
            "NO",
            "NO",
            "NO",
        ),
        (partial(ledger.by_hand, keep_to_rank_0), "NO", "NO", "NO"),
    ],
    ids=["mean of means", "a bucket forgotten", "no copy back"],
)
def test_a_planted_bug_is_seen(monkeypatch, method, even, uneven, equal):
    monkeypatch.setattr(
        ledger,
        "METHODS",
        {
            "single device": ledger.single,
            "torch DDP": ledger.data_parallel,
            "planted": method,
        },
    )
    found = ledger.compare(2, steps=2, batch_size=12)
    assert found["rows"][-1]["stepwise"] > 1e-6
    line = ledger.table(found, timing=False).splitlines()[-1].split()
    assert line[1:7] == ["NO", even, even, uneven, uneven, equal]


# the command


def test_the_command_prints_a_table_for_each_world_size_and_writes_what_it_has(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(
        ledger,
        "METHODS",
        {"single device": ledger.single, "torch DDP": ledger.data_parallel},
    )
    out, threads = tmp_path / "out.json", torch.get_num_threads()
    words = "compare --world-size 2 3 5 --steps 2 --batch-size 12 --out".split()
    with pytest.raises(SystemExit) as caught:
        main([*words, str(out)])
    printed, errors = capsys.readouterr()
    assert caught.value.code == 2 and "three rows a rank, got 5 and 12" in errors
    runs = json.loads(out.read_text())["runs"]
    assert [run["world_size"] for run in runs] == [2, 3]
    assert printed == "\n\n".join(map(ledger.table, runs)) + "\n"
    assert max(map(len, printed.splitlines())) <= 92
    assert torch.get_num_threads() == threads
