import pytest
import torch

from manual_dp import allreduce, ring_allreduce
from manual_dp.lab.network.ledger import Ledger, Transfer, as_ledger, record


def test_a_star_of_three_ranks_line_by_line():
    assert record(allreduce, 3, 10) == [
        Transfer(0, 1, 0, 40), Transfer(1, 2, 0, 40),
        Transfer(2, 0, 1, 40), Transfer(3, 0, 2, 40)]


def test_a_ring_sends_a_chunk_from_each_rank_in_each_step():
    log = record(ring_allreduce, 4, 8, torch.float64)
    assert [(t.source, t.target, t.size) for t in log if t.step == 2] == [
        (rank, (rank + 1) % 4, 16) for rank in range(4)]
    assert max(t.step for t in log) + 1 == 6


def test_tensors_too_large_for_any_memory_are_counted():
    log = record(allreduce, 4, 10**15)
    assert sum(t.size for t in log) == 6 * 4 * 10**15


def test_what_has_to_arrive_first_is_sent_in_a_later_step():
    def passed_on(tensors):
        tensors[1].copy_(tensors[0])
        tensors[2].copy_(tensors[1])
    assert [t.step for t in record(passed_on, 3, 4)] == [0, 1]


def test_other_numbers_of_the_same_rank_need_not_arrive_first():
    def two_halves(tensors):
        tensors[1][:2].copy_(tensors[0][:2])
        tensors[2][2:].copy_(tensors[1][2:])
    assert [t.step for t in record(two_halves, 3, 4)] == [0, 0]


def test_what_is_still_being_read_is_not_overwritten_before():
    def read_then_written(tensors):
        tensors[1].copy_(tensors[0])
        tensors[2].copy_(tensors[0])  # rank 0 sends twice: step 1
        tensors[0].copy_(tensors[3])
    assert [t.step for t in record(read_then_written, 4, 4)] == [0, 1, 1]


def test_a_rank_sends_one_message_at_a_time_and_receives_one():
    def from_two(tensors):
        tensors[0].add_(tensors[1])
        tensors[0].add_(tensors[2])
    assert [t.step for t in record(from_two, 3, 4)] == [0, 1]


def test_the_core_checks_again_after_a_run():
    record(ring_allreduce, 2, 4)
    with pytest.raises(TypeError, match="without numbers"):
        ring_allreduce([torch.empty(4, device="meta")] * 2)


def test_what_leaves_a_node_shares_its_link():
    ledger = Ledger(4, [0, 0, 1, 1])
    ledger.step(*map(torch.tensor, ([0, 1, 2], [2, 3, 3], [10, 20, 7])))
    (step,) = ledger.steps
    assert step == (3, 7, 30, 37)
    assert ledger.sent.tolist() == [10, 20, 7, 0] and ledger.busiest == 20


def test_what_enters_a_node_shares_its_link():
    ledger = Ledger(3, [0, 1, 2])
    ledger.step(*map(torch.tensor, ([1, 2], [0, 0], [5, 6])))
    assert ledger.steps[0].between == 11 and ledger.steps[0].inside is None


def test_on_one_node_all_is_inside():
    ledger = as_ledger(record(allreduce, 3, 10), 3)
    assert [step.between for step in ledger.steps] == [None] * 4
    assert (ledger.transfers, ledger.size, ledger.in_a_row) == (4, 160, 160)


def test_a_node_for_each_rank_is_asked_for():
    with pytest.raises(ValueError, match="node_of has 2 ranks, world_size is 3"):
        Ledger(3, [0, 1])
