import pytest
import torch

from course.lab.network.ledger import Ledger, as_ledger
from course.lab.sends import sized
from manual_dp import allreduce


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
    ledger = as_ledger(sized(allreduce, 3, 10), 3)
    assert [step.between for step in ledger.steps] == [None] * 4
    assert (ledger.transfers, ledger.size, ledger.in_a_row) == (4, 160, 160)


def test_a_node_for_each_rank_is_asked_for():
    with pytest.raises(ValueError, match="node_of has 2 ranks, world_size is 3"):
        Ledger(3, [0, 1])
