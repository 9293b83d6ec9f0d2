"""On a GPU: what programs/on_a_gpu.py shows, and every lesson as it is stored.

Skipped without a GPU, what needs two below two. tests/notebooks/test_on_a_gpu.py makes
the same checks on the CPU. A lesson runs whole, in a kernel that sees the GPUs, and
nbval compares its outputs with the stored ones, which a CPU has printed.
"""

import pytest
import torch
from programs import on_a_gpu

from tests.support.stored import LESSONS, nbval

GPUS = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
gpu = pytest.mark.skipif(not GPUS, reason="needs a GPU: torch sees none here")
two_gpus = pytest.mark.skipif(
    len(GPUS) < 2, reason=f"needs 2 GPUs: torch sees {len(GPUS)} here"
)


def agree(devices):
    assert on_a_gpu.step(devices) <= 1e-12 and on_a_gpu.ddp(devices) <= 1e-12
    assert on_a_gpu.sums(devices)
    assert on_a_gpu.skip(devices) == [(False, 0.5)] * len(devices)


@gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_on_one_gpu_do_what_the_cpu_does(ranks):
    agree(GPUS[:1] * ranks)


@two_gpus
def test_two_gpus_do_what_the_cpu_twice_does():
    agree(GPUS[:2])


@gpu
@pytest.mark.parametrize("mixed", [False, True])
def test_a_gpu_trains_and_counts_its_memory(mixed):
    rate, peak = on_a_gpu.images(GPUS[0], "ResNet-18", 64, 3, mixed)
    assert rate > 0 and peak > 0


@gpu
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_on_a_gpu_what_is_stored(lesson):
    status, printed = nbval(lesson)
    assert status == 0, printed[-6000:]


def test_the_lessons_begin_with_the_first_and_none_is_left_out():
    numbers = [int(path.name[:2]) for path in LESSONS]
    assert numbers == list(range(len(LESSONS))) and len(LESSONS) > 20
