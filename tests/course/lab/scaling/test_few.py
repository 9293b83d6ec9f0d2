import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course.lab.scaling.few import accuracy, network
from manual_dp.data import load_data
from manual_dp.ranks import run_ranks


def test_a_layer_that_looks_at_one_row_does_not_care_how_many_a_rank_has():
    assert accuracy(nn.LayerNorm, 8, steps=3) == accuracy(nn.LayerNorm, 2, steps=3)


def test_batch_norm_loses_accuracy_with_two_rows_a_rank():
    assert accuracy(nn.BatchNorm1d, 32) > accuracy(nn.BatchNorm1d, 2) + 0.1


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_accuracy_is_that_of_rank_0_under_torchs_ddp(world_size):
    train, test = load_data("digits", dtype=torch.float64)

    def trained():
        torch.manual_seed(3)
        model = DistributedDataParallel(network(nn.BatchNorm1d))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(10):
            optimizer.zero_grad()
            mine = torch.randint(len(train.X), (32,)).chunk(world_size)[dist.get_rank()]
            F.cross_entropy(model(train.X[mine]), train.y[mine]).backward()
            optimizer.step()
        right = model.module.eval()(test.X).argmax(1) == test.y
        return right.double().mean().item()
    assert run_ranks(trained, world_size)[0] == accuracy(
        nn.BatchNorm1d, 32 // world_size, seed=3, steps=10)


def test_batch_norm_refuses_a_single_row():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        accuracy(nn.BatchNorm1d, 1, steps=1)


@pytest.mark.parametrize("rows", [0, 33])
def test_a_rank_has_one_row_at_least_and_not_more_than_there_are(rows):
    with pytest.raises(ValueError, match=f"rows must be from 1 to batch_size 32, got {rows}"):
        accuracy(nn.BatchNorm1d, rows)
