"""What must hold of every function of course/lab/gpu, on the CPU as on a GPU.

A check takes a device. tests/course/lab/gpu runs them on the CPU, tests/test_gpu.py on GPU 0;
PAIRS takes two devices, which may be one twice.
"""

import math

from course.lab.gpu import equal, mixed, pair, sharing, speed, timeline


def step(device):
    for world_size, rows in ((1, 5), (2, 9), (3, 2)):
        assert equal.step(device, world_size, rows) <= equal.STEPWISE


def ledger(device):
    found = equal.ledger(device, steps=2, batch_size=6)
    assert found["methods"] + len(found["notes"]) == 12 and found["methods"] >= 11
    assert found["equal"] and found["stepwise"] <= 1e-12


def sums(device):
    for ranks in (1, 2):
        assert sharing.sums([device] * ranks, sharing.backend(device, ranks)) == {
            "sum": True, "stays": True}


def ddp(device):
    for ranks in (1, 2):
        for wrap in sharing.WRAPS:
            found = sharing.ddp([device] * ranks, sharing.backend(device, ranks), wrap)
            assert found["equal"] and found["stepwise"] <= equal.STEPWISE


def seconds(device):
    found = sharing.seconds([device] * 2, numbers=100, count=3)
    assert list(found) == ["device", "cpu"] and min(found.values()) > 0


def losses(device):
    found = mixed.losses(device, steps=30)
    assert all(map(math.isfinite, found["losses"]))
    assert found["losses"][-1] < found["losses"][0]
    short = "float16" if device.type == "cuda" else "bfloat16"
    assert (found["weights"], found["products"]) == ("float32", short)
    assert found["skipped"] < 15 and found["scale"] >= 1


def skip(device):
    assert mixed.skip(device) == {"moved": False, "scale": 0.5}


def clip(device):
    found = mixed.clip(device)
    assert abs(found["unscale, clip"] - 1) < 1e-4
    assert abs(found["clip, unscale"] * mixed.SCALE - 1) < 1e-4


def parts(device):
    found = timeline.parts(device, rows=8, steps=3)
    assert list(found) == ["forward", "backward", "all-reduce", "update", "whole"]
    assert min(found.values()) > 0 and found["whole"] >= max(found.values())


def clocks(device):
    found = timeline.clocks(device, *((2048, 20) if device.type == "cuda" else (256, 9)))
    assert 0 < found["asked"] <= found["done"]
    if device.type == "cuda":  # asked for in a tenth of a millisecond, done in some
        assert found["asked"] < 0.9 * found["done"]


def images(device):
    for name, mixed_precision in (("LeNet", False), ("LeNet", True), ("ResNet-18", True)):
        assert speed.images(device, name, 2, 1, mixed_precision) > 0


CHECKS = [step, ledger, sums, ddp, seconds, losses, skip, clip, parts, clocks, images]


def two_ranks(devices):
    found = pair.nccl(devices, numbers=1000, count=2)
    assert found["sum"] and found["equal"] and found["bytes"] > 0
    assert found["stepwise"] <= equal.STEPWISE


def peer(devices):
    found = pair.peer(devices, numbers=1000, count=2)
    assert found["right"] and found["bytes"] > 0
    assert found["direct"] in ((True, False) if devices[0].type == "cuda" else (False,))


def wrappers(devices):
    found = pair.wrappers(devices, "LeNet", rows=4, count=2)
    assert list(found) == ["one", "DataParallel", "DDP"] and min(found.values()) > 0


PAIRS = [two_ranks, peer, wrappers]
