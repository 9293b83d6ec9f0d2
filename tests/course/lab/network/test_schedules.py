import subprocess
import sys
from collections import namedtuple
from functools import partial
from pathlib import Path

import pytest
import torch

from course.lab.network import forms, schedules
from course.lab.network.ledger import as_ledger
from course.lab.network.ways import WAYS
from course.lab.sends import sized

Sent = namedtuple("Sent", "step source target size")
NODELESS = ["star", "ring", "tree", "halving-doubling"]


def per_link(log):
    """Return the bytes of each message of each link, in the order of time."""
    links = {}
    for sent in sorted(log, key=lambda transfer: transfer.step):
        links.setdefault((sent.source, sent.target), []).append(sent.size)
    return links


def scheduled(way, world_size, numbers, *per_node):
    return [Sent(i, *transfer) for i, step in enumerate(
                schedules.SCHEDULES[way](world_size, numbers, *per_node))
            for transfer in zip(*(v.tolist() for v in (*step[:2], 4 * step[2])))]


def equal(way, world_size, numbers, per_node=None):
    """Hold a schedule against a run of the function that it stands for."""
    sizes = [per_node] if per_node else []
    function = partial(WAYS[way], per_node=per_node) if per_node else WAYS[way]
    log = sized(function, world_size, numbers)
    plan = scheduled(way, world_size, numbers, *sizes)
    assert per_link(plan) == per_link(log)
    ran, planned = (as_ledger(rows, world_size) for rows in (log, plan))
    # a rank that has nothing to do in a step may begin the next one early: no more
    assert [step.inside for step in planned.steps] == [
        step.inside for step in ran.steps]


@pytest.mark.parametrize("way", NODELESS)
@pytest.mark.parametrize("first", range(1, 65, 16))
def test_a_schedule_is_what_the_function_sends_on_up_to_64_ranks(way, first):
    for world_size in range(first, first + 16):
        equal(way, world_size, 1001)


@pytest.mark.parametrize("world_size", [1, 2, 4, 6, 8, 9, 12, 16, 24, 36, 48, 60, 64])
def test_a_two_level_schedule_is_what_the_function_sends(world_size):
    for per_node in range(1, world_size + 1):
        if world_size % per_node == 0:
            equal("two-level", world_size, 1001, per_node)


@pytest.mark.parametrize("way", NODELESS)
@pytest.mark.parametrize("numbers", [1, 7, 64])
def test_a_schedule_holds_for_fewer_numbers_than_ranks(way, numbers):
    for world_size in (2, 3, 7, 8, 13):
        equal(way, world_size, numbers)


# the closed forms

def counted(way, world_size, numbers, per_node=None):
    ledger = schedules.run(way, world_size, numbers, 4, per_node,
                           node_of=[0] * world_size)
    assert (len(ledger.steps), ledger.transfers, ledger.size, ledger.in_a_row,
            ledger.busiest) == (
        forms.steps(way, world_size, per_node),
        forms.transfers(way, world_size, per_node), forms.total(world_size, numbers),
        forms.in_a_row(way, world_size, numbers, 4, per_node),
        forms.busiest(way, world_size, numbers, 4, per_node))


@pytest.mark.parametrize("way", NODELESS)
def test_closed_forms_are_the_counts_exactly(way):
    for world_size in (*range(1, 40), 63, 64, 65, 100):
        for numbers in (0, 1, 5, world_size, 7 * world_size, 7 * world_size - 1, 1001):
            counted(way, world_size, numbers)


def test_closed_forms_of_two_levels_are_the_counts_exactly():
    for world_size in (1, 2, 6, 8, 12, 30, 64):
        for per_node in range(1, world_size + 1):
            if world_size % per_node == 0:
                for numbers in (0, 1, 5, 8 * world_size, 1001):
                    counted("two-level", world_size, numbers, per_node)


@pytest.mark.parametrize("way", [*NODELESS, "two-level"])
def test_closed_forms_hold_on_4096_ranks_of_10_gigabytes(way):
    counted(way, 4096, 2_500_000_001, 8 if way == "two-level" else None)


@pytest.mark.parametrize("way", ["ring", "two-level"])
@pytest.mark.parametrize("world_size, per_node", [(8, 2), (8, 4), (12, 3), (16, 1)])
def test_phases_over_nodes_are_the_counts_where_chunks_are_equal(way, world_size,
                                                                 per_node):
    ledger = schedules.run(way, world_size, 48 * 16, 4, per_node)
    steps = [(phase.inside, phase.between) for phase in
             forms.phases(way, world_size, 48 * 16, 4, per_node)
             for _ in range(phase.steps)]
    assert sorted(steps, key=str) == sorted(
        ((step.inside, step.between) for step in ledger.steps), key=str)


def test_a_tree_over_nodes_has_no_formula():
    with pytest.raises(ValueError, match='"ring" or "two-level", got \'tree\''):
        forms.phases("tree", 8, 100, per_node=2)
    with pytest.raises(ValueError, match="no formula for the way 'bus'"):
        forms.steps("bus", 4)


# arguments, size

@pytest.mark.parametrize("arguments, message", [
    (("bus", 4, 10), "way must be one of star, ring, tree, .* got 'bus'"),
    (("ring", 0, 10), "need world_size >= 1 and numbers >= 0, got 0 and 10"),
    (("ring", 4, -1), "got 4 and -1"),
    (("two-level", 4, 10), "two-level needs per_node"),
    (("two-level", 4, 10, 4, 3), "multiple of per_node, got 4 and 3"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        schedules.run(*arguments)


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_chunks_are_those_of_tensor_split(parts):
    for numbers in (0, 1, 7, 8, 9):
        assert schedules.split(numbers, parts).tolist() == [
            len(part) for part in torch.zeros(numbers).tensor_split(parts)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is Linux's")
def test_all_ways_at_4096_ranks_fit_into_500_megabytes():
    # not ru_maxrss: it begins with the peak of the process that started this one
    code = ("from course.lab.network.schedules import SCHEDULES, run\n"
            "for way in SCHEDULES:\n"
            "    run(way, 4096, 2_500_000_000, per_node=8)\n"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=300, check=True)
    assert 50e6 <= int(done.stdout) * 1024 <= 500e6
