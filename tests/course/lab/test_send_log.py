import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course.lab.send_log import Sent, crossing, sends, totals, transfers
from manual_dp import allreduce


def test_the_sends_of_a_star_say_what_was_added_and_what_copied():
    assert sends(allreduce, [torch.ones(3), torch.ones(3)], "x") == [
        Sent(1, 0, "x, added", 12),
        Sent(0, 1, "x, copied", 12),
    ]


def test_transfers_join_what_both_devices_sent():
    log = [
        Sent(1, 0, "conv", 10),
        Sent(0, 1, "conv", 20),
        Sent(1, 0, "scores", 5),
        Sent(0, 1, "scores, back", 5),
    ]
    assert transfers(log) == [
        ("conv", 30, "both"),
        ("scores", 5, 1),
        ("scores, back", 5, 0),
    ]
    assert transfers([]) == []


# one step of DataParallel


def seen(rows, devices, model=None):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(rows, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    model = model or nn.Linear(3, 2, bias=False).double()
    return crossing(model, ["cpu"] * devices, X, y, F.mse_loss), model, X, y


def test_every_send_of_a_step_is_noted_with_its_bytes_and_the_step_is_right():
    log, model, X, y = seen(7, 3)  # 3, 3 and 1 rows; float64 has 8 bytes
    wanted = []
    for rank, rows in (1, 3), (2, 1):
        wanted += [
            Sent(0, rank, "rows", rows * 3 * 8),
            Sent(0, rank, "weights", 6 * 8),
            Sent(rank, 0, "outputs", rows * 2 * 8),
            Sent(0, rank, "gradients of outputs", rows * 2 * 8),
            Sent(rank, 0, "gradients", 6 * 8),
        ]
    assert sorted(log) == sorted(wanted)
    order = [entry.what for entry in log]
    assert order.index("gradients of outputs") > order.index("outputs")
    assert order[-1] == "gradients"
    grad = model.weight.grad.clone()
    model.zero_grad()
    F.mse_loss(model(X), y).backward()
    assert (grad - model.weight.grad).abs().max() < 1e-12


@pytest.mark.parametrize("rows, devices, ends", [(2, 4, {0, 1}), (5, 1, set())])
def test_a_device_without_rows_gets_nothing_and_on_one_device_nothing_crosses(
    rows, devices, ends
):
    log = seen(rows, devices)[0]
    assert {end for entry in log for end in (entry.source, entry.target)} == ends


def test_buffers_and_what_needs_no_gradient_go_out_and_do_not_come_back():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)).double()
    model[0].bias.requires_grad_(False)
    log = seen(6, 2, model)[0]
    buffers = [entry for entry in log if entry.what == "buffers"]
    assert [(e.source, e.target, e.size) for e in buffers] == [
        (0, 1, 16),
        (0, 1, 16),
        (0, 1, 8),
    ]  # two means, two variances, a counter
    assert [e.size for e in log if e.what == "weights"] == [48, 16]
    assert [e.size for e in log if e.what == "gradients"] == [48]


def test_totals_are_what_goes_out_and_what_comes_in():
    log = [Sent(0, 1, "a", 5), Sent(0, 2, "b", 7), Sent(2, 1, "c", 1)]
    assert totals(log, 3) == ([12, 0, 1], [0, 6, 7])
