"""The book's side: d2l 1.0.3's functions and section 12.5's cells, beside ours."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import manual_dp
from course.lab import book
from manual_dp import evaluate_accuracy, get_params, init_params, lenet, loss


@pytest.fixture(scope="module")
def d2l():
    return book.library()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr, batch_size", [(0.2, 256), (0.05, 13), (1, 1)])
def test_sgd_is_the_books_bit_for_bit(d2l, batch, replicas, dtype, lr, batch_size):
    ours, theirs = replicas(2, dtype)
    X, y = batch(5, dtype=dtype)
    for params, sgd in ((ours, manual_dp.sgd), (theirs, d2l.sgd)):
        for _ in range(2):
            loss(lenet(X, params), y).sum().backward()
            sgd(params, lr, batch_size)
    for p, q in zip(ours, theirs):
        assert torch.equal(p, q) and torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_accuracy_on_all_devices_is_the_books_on_one(d2l, batch, replicas, world_size):
    device_params = replicas(world_size)
    data = [batch(rows, seed=rows) for rows in (9, 30, 1)]
    for X, y in data:  # so that some answers are right
        y[::3] = lenet(X, device_params[0]).argmax(dim=1)[::3]
    theirs = d2l.evaluate_accuracy_gpu(lambda X: lenet(X, device_params[0]), data,
                                       torch.device("cpu"))
    ours = evaluate_accuracy(device_params, data, ["cpu"] * world_size)
    assert ours == theirs >= 14 / 40


def test_the_books_split_batch_needs_gpus(d2l):
    X, y = torch.rand(4, 5), torch.arange(4)
    with pytest.raises(ValueError, match="Expected a non cpu device"):
        d2l.split_batch(X, y, [torch.device("cpu")] * 2)
    assert len(manual_dp.split_batch(X, y, [torch.device("cpu")] * 2)[0]) == 2


def test_the_books_split_batch_asserts_without_a_word(d2l):
    with pytest.raises(AssertionError) as caught:
        d2l.split_batch(torch.rand(4, 5), torch.arange(3), [torch.device("cpu")] * 2)
    assert str(caught.value) == ""


# the book's cells, as printed, with our functions under their names. Where a cell says
# d2l.try_gpu(i) a machine without GPUs gets the CPU.

def test_cell_lenet_and_loss(batch):
    # the book's network, line by line
    def books_lenet(X, params):
        h1_conv = F.conv2d(input=X, weight=params[0], bias=params[1])
        h1_activation = F.relu(h1_conv)
        h1 = F.avg_pool2d(input=h1_activation, kernel_size=(2, 2), stride=(2, 2))
        h2_conv = F.conv2d(input=h1, weight=params[2], bias=params[3])
        h2_activation = F.relu(h2_conv)
        h2 = F.avg_pool2d(input=h2_activation, kernel_size=(2, 2), stride=(2, 2))
        h2 = h2.reshape(h2.shape[0], -1)
        h3_linear = torch.mm(h2, params[4]) + params[5]
        h3 = F.relu(h3_linear)
        y_hat = torch.mm(h3, params[6]) + params[7]
        return y_hat
    X, y = batch(6)
    params = init_params("he", torch.Generator().manual_seed(0), torch.float64)
    y_hat = lenet(X, params)
    torch.testing.assert_close(y_hat, books_lenet(X, params))
    assert torch.equal(loss(y_hat, y), nn.CrossEntropyLoss(reduction="none")(y_hat, y))


def test_cells_train_batch_and_train(d2l, batch):
    lenet, loss = manual_dp.lenet, manual_dp.loss
    allreduce, split_batch = manual_dp.allreduce, manual_dp.split_batch

    def train_batch(X, y, device_params, devices, lr):
        X_shards, y_shards = split_batch(X, y, devices)
        # Loss is calculated separately on each GPU
        ls = [loss(lenet(X_shard, device_W), y_shard).sum()
              for X_shard, y_shard, device_W in zip(
                  X_shards, y_shards, device_params)]
        for l in ls:  # Backpropagation is performed separately on each GPU
            l.backward()
        # Sum all gradients from each GPU and broadcast them to all GPUs
        with torch.no_grad():
            for i in range(len(device_params[0])):
                allreduce([device_params[c][i].grad for c in range(len(devices))])
        # The model parameters are updated separately on each GPU
        for param in device_params:
            d2l.sgd(param, lr, X.shape[0])  # Here, we use a full-size batch

    params = init_params("he", torch.Generator().manual_seed(0), torch.float64)
    devices = [d2l.try_gpu(10 + i) for i in range(3)]
    books, ours = ([get_params(params, d) for d in devices] for _ in range(2))
    for step in range(5):
        X, y = batch(7, seed=step)
        train_batch(X, y, books, devices, 0.05)
        manual_dp.train_batch(X, y, ours, devices, 0.05)
    manual_dp.check_replicas(books)
    for p, q, start in zip(books[0], ours[0], params):
        assert (p - q).abs().max() < 1e-12
        assert (p - start).abs().max() > 1e-4
    # Evaluate the model on GPU 0
    test_iter = [batch(20, seed=9)]
    assert evaluate_accuracy(ours, test_iter, devices) == d2l.evaluate_accuracy_gpu(
        lambda x: lenet(x, books[0]), test_iter, devices[0])
