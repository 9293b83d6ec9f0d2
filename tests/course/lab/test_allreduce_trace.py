"""The recorder of sends, on random programs of sends and on functions counted by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.lab import allreduce_trace
from course.lab.allreduce_trace import busiest, longest, record, rounds, states, traffic
from manual_dp import allreduce, ring_allreduce, tree_allreduce
from manual_dp.allreduce import halving_doubling


def spread_allreduce(tensors):
    """Sum chunk r on rank r and send it to everyone: as a learner writes it."""
    ranks = range(len(tensors))
    chunks = [tensor.view(-1).tensor_split(len(tensors)) for tensor in tensors]
    for rank in ranks:
        for peer in ranks:
            if peer != rank:
                chunks[rank][rank].add_(chunks[peer][rank])
    for rank in ranks:
        for peer in ranks:
            if peer != rank:
                chunks[peer][rank].copy_(chunks[rank][rank])


# of N ranks: a star sends N - 1 tensors, a ring 2 (N - 1) chunks, a tree log2 N tensors
@pytest.mark.parametrize(
    "way, world_size, steps, tensors",
    [
        (allreduce, 3, 4, 2),
        (allreduce, 8, 14, 7),
        (ring_allreduce, 3, 4, 4 / 3),
        (ring_allreduce, 8, 14, 14 / 8),
        (tree_allreduce, 3, 4, 2),
        (tree_allreduce, 8, 6, 3),
        (halving_doubling, 3, 4, 2),
        (halving_doubling, 8, 6, 14 / 8),
        (spread_allreduce, 3, 6, 4 / 3),
        (spread_allreduce, 8, 21, 14 / 8),
    ],
)
def test_steps_and_bytes_are_the_formulas(way, world_size, steps, tensors):
    assert len(rounds(way, world_size)) == steps
    sent = traffic(way, [torch.rand(840) for _ in range(world_size)])
    assert busiest(sent) == pytest.approx(tensors * 840 * 4)
    if way is not halving_doubling:  # only there a message may be half of another
        assert set(rounds(way, world_size)) <= {1, 1 / world_size}


@st.composite
def programs(draw):
    """Draw (ranks, sends): each (source, target, first, last, kind)."""
    ranks = draw(st.integers(2, 5))
    rank, place = st.integers(0, ranks - 1), st.integers(0, ranks**2)
    send = st.tuples(rank, rank, place, place, st.sampled_from(["add", "copy"]))
    return ranks, draw(
        st.lists(send.filter(lambda s: s[0] != s[1] and s[2] < s[3]), max_size=12)
    )


@given(programs())
def test_what_is_sent_at_once_leaves_what_the_program_leaves(program):
    ranks, wanted = program

    def run(tensors):
        for source, target, first, last, kind in wanted:
            into, what = tensors[target][first:last], tensors[source][first:last]
            (into.add_ if kind == "add" else into.copy_)(what)

    log, held = states(run, ranks)
    assert [transfer[1:6] for transfer in log] == wanted
    assert [transfer.size for transfer in log] == [8 * (s[3] - s[2]) for s in wanted]
    now = torch.tensor(held[0]).flatten(1)
    for step in range(len(longest(log))):
        together = [transfer for transfer in log if transfer.step == step]
        assert together, "a step in which nothing is sent"
        for ends in zip(*(transfer[1:3] for transfer in together)):
            assert len(set(ends)) == len(ends), "a rank sends or receives twice"
        before, now = now, now.clone()
        for _, source, target, first, last, kind, _ in together:
            kept = before[target, first:last] if kind == "add" else 0
            now[target, first:last] = before[source, first:last] + kept
        assert torch.tensor(held[step + 1]).flatten(1).equal(now)


def two_halves(tensors):
    tensors[1][:2].copy_(tensors[0][:2])
    tensors[2][2:].copy_(tensors[1][2:])


def read_then_written(tensors):
    tensors[1].copy_(tensors[0])
    tensors[2].copy_(tensors[0])
    tensors[0].copy_(tensors[3])


def computed_first(tensors):
    tensors[1][2:].copy_(tensors[0][2:] * 1)


def received_into_a_buffer(tensors):
    buffer = torch.empty_like(tensors[1])
    buffer.copy_(tensors[0])
    tensors[1].add_(buffer)
    tensors[2].copy_(tensors[1])


@pytest.mark.parametrize(
    "function, ranks, expected",
    [
        (two_halves, 3, [(0, 0, 1), (0, 1, 2)]),
        (read_then_written, 4, [(0, 0, 1), (1, 0, 2), (1, 3, 0)]),
        (computed_first, 2, [(0, 0, 1)]),  # its part: known by where it goes
        (received_into_a_buffer, 3, [(0, 0, 1), (1, 1, 2)]),
    ],
)
def test_who_sends_to_whom_in_which_step(function, ranks, expected):
    log = record(function, [torch.rand(4) for _ in range(ranks)])
    assert [transfer[:3] for transfer in log] == expected
    if function is computed_first:
        assert log[0][3:5] == (2, 4)


@pytest.mark.parametrize(
    "function, held",
    [
        (received_into_a_buffer, [[1, 0, 0], [1, 1, 0], [1, 1, 0]]),
        (
            lambda tensors: tensors[0].add_(tensors[1]).div_(2),
            [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]],
        ),
    ],
)
def test_what_ranks_hold_at_the_end_is_what_the_function_left(function, held):
    assert states(function, 3)[1][-1] == [[row] * 3 for row in held]


def test_a_measured_function_does_its_work_and_the_core_checks_again_afterwards():
    tensors = [torch.full((2,), 10.0**rank) for rank in range(3)]
    record(ring_allreduce, tensors)
    assert [tensor.tolist() for tensor in tensors] == [[111, 111]] * 3
    with pytest.raises(TypeError, match="without numbers"):
        ring_allreduce([torch.empty(4, device="meta")] * 2)


def test_a_round_costs_its_delay_and_its_bytes():
    assert (
        allreduce_trace.seconds([1, 0.5], 100, alpha=3.0, beta=0.25)
        == 2 * 3.0 + 150 * 0.25
    )
    assert allreduce_trace.seconds([], 100, 1, 1) == 0
