import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.lab.crossing import record, totals
from manual_dp.lab.wire import Sent


def seen(rows, devices, model=None):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(rows, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    model = model or nn.Linear(3, 2, bias=False).double()
    return record(model, ["cpu"] * devices, X, y, F.mse_loss), model, X, y


def test_every_send_of_a_step_is_noted_with_its_bytes():
    log, *_ = seen(7, 3)  # 3, 3 and 1 rows; float64 has 8 bytes
    first = [Sent(0, 1, "rows", 72), Sent(0, 1, "weights", 48), Sent(1, 0, "outputs", 48),
             Sent(0, 1, "gradients of outputs", 48), Sent(1, 0, "gradients", 48)]
    second = [Sent(0, 2, "rows", 24), Sent(0, 2, "weights", 48), Sent(2, 0, "outputs", 16),
              Sent(0, 2, "gradients of outputs", 16), Sent(2, 0, "gradients", 48)]
    assert sorted(log) == sorted(first + second)


def test_what_goes_back_is_noted_after_what_went_there():
    order = [entry.what for entry in seen(4, 2)[0]]
    assert order.index("gradients of outputs") > order.index("outputs")
    assert order[-1] == "gradients"


def test_a_device_without_rows_gets_nothing():
    log, *_ = seen(2, 4)
    assert {entry.source for entry in log} | {entry.target for entry in log} == {0, 1}


def test_on_one_device_nothing_crosses():
    assert seen(5, 1)[0] == []


def test_buffers_go_out_and_do_not_come_back():
    log = record(nn.Sequential(nn.Linear(3, 2).double(), nn.BatchNorm1d(2).double()),
                 ["cpu"] * 2, torch.rand(6, 3).double(), torch.rand(6, 2).double(),
                 F.mse_loss)
    buffers = [entry for entry in log if entry.what == "buffers"]
    assert [(e.source, e.target, e.size) for e in buffers] == [
        (0, 1, 16), (0, 1, 16), (0, 1, 8)]  # two means, two variances, a counter


def test_what_needs_no_gradient_goes_one_way():
    model = nn.Linear(3, 2).double()
    model.bias.requires_grad_(False)
    log, *_ = seen(4, 2, model)
    assert [e.size for e in log if e.what == "weights"] == [48, 16]
    assert [e.size for e in log if e.what == "gradients"] == [48]


def test_the_step_it_watches_is_right():
    _, model, X, y = seen(7, 3)
    grad = model.weight.grad.clone()
    model.zero_grad()
    F.mse_loss(model(X), y).backward()
    assert (grad - model.weight.grad).abs().max() < 1e-12


def test_totals_are_what_goes_out_and_what_comes_in():
    log = [Sent(0, 1, "a", 5), Sent(0, 2, "b", 7), Sent(2, 0, "c", 1)]
    assert totals(log, 3) == ([12, 0, 1], [1, 5, 7])
