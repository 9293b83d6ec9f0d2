import pytest
from torch import nn

from manual_dp.lab.scaling.few import accuracy


def test_a_layer_that_looks_at_one_row_does_not_care_how_many_a_rank_has():
    assert accuracy(nn.LayerNorm, 8, steps=3) == accuracy(nn.LayerNorm, 2, steps=3)


def test_batch_norm_loses_accuracy_with_two_rows_a_rank():
    assert accuracy(nn.BatchNorm1d, 32) > accuracy(nn.BatchNorm1d, 2) + 0.1


def test_batch_norm_refuses_a_single_row():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        accuracy(nn.BatchNorm1d, 1, steps=1)


@pytest.mark.parametrize("rows", [0, 33])
def test_a_rank_has_one_row_at_least_and_not_more_than_there_are(rows):
    with pytest.raises(ValueError, match=f"rows must be from 1 to batch_size 32, got {rows}"):
        accuracy(nn.BatchNorm1d, rows)
