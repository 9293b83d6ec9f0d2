"""The book's side: d2l 1.0.3's functions beside ours; its step: course/lab/test_d2l_code.py.

Importing d2l takes some seconds; only d2l itself can say what the book's code gives.
"""

import pytest
import torch

import manual_dp
from course.lab import d2l_code
from manual_dp import evaluate_accuracy, lenet, loss


@pytest.fixture(scope="module")
def d2l():
    return d2l_code.import_d2l()


def test_sgd_is_the_books_bit_for_bit(d2l, batch, replicas):
    ours, theirs = replicas(2, torch.float32)
    X, y = batch(5, dtype=torch.float32)
    for params, sgd in ((ours, manual_dp.sgd), (theirs, d2l.sgd)):
        for _ in range(2):
            loss(lenet(X, params), y).sum().backward()
            sgd(params, 0.05, 13)
    for p, q in zip(ours, theirs):
        assert torch.equal(p, q) and torch.equal(p.grad, q.grad)


def test_accuracy_on_all_devices_is_the_books_on_one(d2l, batch, replicas):
    device_params = replicas(4)
    data = [batch(rows, seed=rows) for rows in (9, 30, 1)]
    for X, y in data:  # so that some answers are right
        y[::3] = lenet(X, device_params[0]).argmax(dim=1)[::3]
    theirs = d2l.evaluate_accuracy_gpu(
        lambda X: lenet(X, device_params[0]), data, torch.device("cpu")
    )
    ours = evaluate_accuracy(device_params, data, ["cpu"] * 4)
    assert ours == theirs >= 14 / 40


def test_the_books_split_batch_needs_gpus(d2l):
    X, y = torch.rand(4, 5), torch.arange(4)
    with pytest.raises(ValueError, match="Expected a non cpu device"):
        d2l.split_batch(X, y, [torch.device("cpu")] * 2)
