import importlib
import inspect
import math
import re
from fractions import Fraction

import numpy
import pytest
import torch
from torch.nn import functional as F

from manual_dp import (
    allreduce,
    check_replicas,
    evaluate_accuracy,
    get_params,
    init_params,
    lenet,
    loss,
    ring_allreduce,
    sgd,
    train,
    train_batch,
    tree_allreduce,
)

train_module = importlib.import_module("manual_dp.train")

WORLD_SIZES = [1, 2, 3, 4, 7]


def cpus(world_size):
    return ["cpu"] * world_size


def bits(device_params):
    return [[p.detach().clone() for p in params] for params in device_params]


def same_bits(device_params, values):
    return all(torch.equal(p, value) for params, row in zip(device_params, values)
               for p, value in zip(params, row))


def gradients(device_params):
    return [p.grad for params in device_params for p in params]


# sgd

def test_sgd_by_hand():
    [p] = get_params([torch.tensor([1.0, 2.0])], "cpu")
    p.grad = torch.tensor([4.0, -8.0])  # a sum over 4 examples: mean 1 and -2
    sgd([p], lr=0.5, batch_size=4)
    assert p.tolist() == [0.5, 3.0]
    assert p.grad.tolist() == [0, 0]


def test_sgd_writes_in_place_and_outside_the_graph():
    params = get_params([torch.ones(2), torch.ones(3)], "cpu")
    before = [(id(p), p.data_ptr()) for p in params]
    sum(p.sum() for p in params).backward()
    assert sgd(params, 0.1, 1) is None
    assert [(id(p), p.data_ptr()) for p in params] == before
    assert all(p.is_leaf and p.requires_grad for p in params)


def test_a_learning_rate_of_zero_moves_nothing():
    [p] = get_params([torch.rand(3)], "cpu")
    before = p.detach().clone()
    p.sum().backward()
    sgd([p], 0, 1)
    assert torch.equal(p, before)


@pytest.mark.parametrize("lr, batch_size, message", [
    (math.nan, 4, "lr must be a finite number >= 0, got nan"),
    (math.inf, 4, "lr must be a finite number >= 0, got inf"),
    (-0.1, 4, r"lr must be a finite number >= 0, got -0\.1"),
    ("0.1", 4, r"lr must be a finite number >= 0, got '0\.1'"),
    (None, 4, "lr must be a finite number >= 0, got None"),
    (0.1, 0, "batch_size must be at least 1, got 0"),
    (0.1, -4, "batch_size must be at least 1, got -4"),
    (0.1, math.nan, "batch_size must be at least 1, got nan"),
])
def test_sgd_refuses_and_moves_nothing(lr, batch_size, message):
    [p] = get_params([torch.ones(2)], "cpu")
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match=message):
        sgd([p], lr, batch_size)
    assert p.tolist() == p.grad.tolist() == [1, 1]


def test_sgd_names_the_parameter_without_a_gradient_before_it_moves_any():
    params = get_params([torch.ones(2)] * 3, "cpu")
    params[0].grad, params[2].grad = torch.ones(2), torch.ones(2)
    with pytest.raises(ValueError, match=r"params\[1\] has no gradient; call backward"):
        sgd(params, 0.1, 1)
    assert all(p.tolist() == [1, 1] for p in params)


@pytest.mark.parametrize("number", [numpy.float32, numpy.float64, numpy.int64, Fraction])
def test_any_real_number_is_a_learning_rate(batch, replicas, number):
    lr = number(0.5) if number is not numpy.int64 else number(1)
    device_params, expected = replicas(2), replicas(2)
    train_batch(*batch(4), device_params, cpus(2), lr)
    train_batch(*batch(4), expected, cpus(2), float(lr))
    assert same_bits(device_params, bits(expected))


# train_batch: what it does

@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_step_is_autograds_on_the_unsplit_minibatch(batch, replicas, world_size,
                                                      rows):
    X, y = batch(rows)
    [alone] = replicas(1)
    mean = F.cross_entropy(lenet(X, alone), y)
    grads = torch.autograd.grad(mean, alone)
    device_params = replicas(world_size)
    assert train_batch(X, y, device_params, cpus(world_size), 0.1) == pytest.approx(
        mean.item(), abs=1e-12)
    for params in device_params:
        for p, start, grad in zip(params, alone, grads):
            assert (p - (start - 0.1 * grad)).abs().max() < 1e-12
    check_replicas(device_params)


def test_weights_of_zero_lose_ln_10(batch):
    X, y = batch(5)
    device_params = [get_params(init_params(0), "cpu") for _ in range(3)]
    mean_loss = train_batch(X.float(), y, device_params, cpus(3), 0.1)
    assert isinstance(mean_loss, float)
    assert mean_loss == pytest.approx(math.log(10))


def test_the_mean_of_the_shards_means_is_another_number(batch, replicas):
    # ten rows over four ranks: 3, 3, 3, 1. The last row would weigh three times more.
    X, y = batch(10)
    [alone] = replicas(1)
    losses = loss(lenet(X, alone), y).detach()
    mean_of_means = sum(shard.mean() for shard in losses.split(3)) / 4
    step_loss = train_batch(X, y, replicas(4), cpus(4), 0.1)
    assert step_loss == pytest.approx(losses.mean().item())
    assert step_loss != pytest.approx(mean_of_means.item())


def test_stale_gradients_do_not_count(batch, replicas):
    X, y = batch(4)
    clean, stale = replicas(2), replicas(2)
    for params in stale:
        loss(lenet(X, params), y).sum().backward()
    for device_params in (clean, stale):
        train_batch(X, y, device_params, cpus(2), 0.1)
    assert same_bits(stale, bits(clean))


def test_gradients_are_zero_after_a_step(batch, replicas):
    device_params = replicas(2)
    train_batch(*batch(4), device_params, cpus(2), 0.1)
    assert not any(grad.any() for grad in gradients(device_params))


def test_the_minibatch_is_left_as_it_was(batch, replicas):
    X, y = batch(4)
    train_batch(X, y, replicas(2), cpus(2), 0.1)
    assert torch.equal(X, batch(4)[0]) and torch.equal(y, batch(4)[1])


def test_devices_may_be_torchs_or_names(batch, replicas):
    named, given = replicas(2), replicas(2)
    train_batch(*batch(4), named, ["cpu", "cpu"], 0.1)
    train_batch(*batch(4), given, [torch.device("cpu")] * 2, 0.1)
    assert same_bits(named, bits(given))


# train_batch: any all-reduce

def by_mail(tensors):
    """Sum as a learner might: through a list of numbers."""
    sums = [sum(column) for column in zip(*(t.tolist() for t in tensors))]
    for tensor in tensors:
        tensor.copy_(torch.tensor(sums, dtype=tensor.dtype))


@pytest.mark.parametrize("own", [ring_allreduce, tree_allreduce, by_mail])
def test_any_allreduce_of_the_same_contract_fits(batch, replicas, own):
    star, other = replicas(3), replicas(3)
    train_batch(*batch(7), star, cpus(3), 0.1)
    train_batch(*batch(7), other, cpus(3), 0.1, allreduce=own)
    check_replicas(other)
    for p, q in zip(star[0], other[0]):
        assert (p - q).abs().max() < 1e-12


def test_an_allreduce_is_given_one_contiguous_tensor_a_rank(batch, replicas):
    given = []

    def watched(tensors):
        given.extend((t.dim(), t.is_contiguous(), t.numel()) for t in tensors)
        allreduce(tensors)
    device_params = replicas(3)
    numbers = sum(p.numel() for p in device_params[0])
    train_batch(*batch(4), device_params, cpus(3), 0.1, watched)
    assert given == [(1, True, numbers)] * 3


def test_replicas_that_a_wrong_allreduce_parted_step_on_and_are_found(batch, replicas):
    # lessons 00 and 05 look at such runs: only check_replicas refuses them
    device_params = replicas(2)
    for _ in range(2):
        train_batch(*batch(4), device_params, cpus(2), 0.1, lambda tensors: None)
    with pytest.raises(ValueError, match="0 of rank 1 differs from rank 0's, by up to 0.0"):
        check_replicas(device_params)


# train_batch: all or nothing

def broken_arguments(X, y, device_params):
    """Return, by name: the arguments that are wrong, the error, its message."""
    first, second = device_params
    W1, b1 = second[:2]

    def labels(value):
        return {"y": torch.cat([y[:2], torch.tensor([value]), y[3:]])}

    def replicas(*params):
        return {"device_params": list(params)}
    return {
        "empty batch": ({"X": X[:0], "y": y[:0]}, ValueError,
                        r"X must have at least one row, got shape \(0, 1, 28, 28\)"),
        "more images than labels": ({"y": y[:3]}, ValueError,
                                    "X has 4 rows but y has 3"),
        "more labels than images": ({"X": X[:3]}, ValueError,
                                    "X has 3 rows but y has 4"),
        "label 10": (labels(10), ValueError,
                     r"y\[2\] is 10, not a label from 0 to 9"),
        "label -1": (labels(-1), ValueError, r"y\[2\] is -1, not a label from 0 to 9"),
        "label -100, which torch ignores": (labels(-100), ValueError,
                                            r"y\[2\] is -100, not a label"),
        "float labels": ({"y": y.float()}, TypeError,
                         "y must be int64 labels, got torch.float32"),
        "int32 labels": ({"y": y.int()}, TypeError,
                         "y must be int64 labels, got torch.int32"),
        "2-D labels": ({"y": y[:, None]}, ValueError,
                       r"y must have one label an example, got shape \(4, 1\)"),
        "list of labels": ({"y": y.tolist()}, TypeError,
                           "y must be a tensor, got list"),
        "list of images": ({"X": X.tolist()}, TypeError,
                           "X must be a tensor, got list"),
        "uint8 images": ({"X": X.byte()}, TypeError,
                         "X is torch.uint8, the parameters are torch.float64"),
        "float32 images": ({"X": X.float()}, TypeError,
                           "X is torch.float32, the parameters are torch.float64"),
        "images of 27x27": ({"X": X[..., :27, :27]}, ValueError,
                            r"X must have shape .*, got \(4, 1, 27, 27\)"),
        "images of 20x20": ({"X": X[..., :20, :20]}, ValueError,
                            r"X must have shape .*, got \(4, 1, 20, 20\)"),
        "NaN in an image": ({"X": X * torch.nan}, ValueError,
                            "the summed gradient on rank 0 is not finite"),
        "infinity in an image": ({"X": X / 0}, ValueError,
                                 "the summed gradient on rank 0 is not finite"),
        "overflow": ({"X": X * 1e308}, ValueError,
                     "the summed gradient on rank 0 is not finite"),
        "lr NaN": ({"lr": math.nan}, ValueError, "lr must be a finite .* got nan"),
        "lr below zero": ({"lr": -0.1}, ValueError, r"lr must be .* got -0\.1"),
        "a replica too many": ({"devices": cpus(1)}, ValueError,
                               "device_params has 2 replicas but devices has 1"),
        "a device too many": ({"devices": cpus(3)}, ValueError,
                              "device_params has 2 replicas but devices has 3"),
        "no devices": ({"device_params": [], "devices": []}, ValueError,
                       "devices is empty: need a device for each rank"),
        "the same replica twice": (
            replicas(first, first), ValueError, "parameter 0 of rank 1 shares memory "
            "with parameter 0 of rank 0; make replicas with get_params"),
        "another shape": (
            replicas(first, [W1, torch.zeros(21, requires_grad=True), *second[2:]]),
            ValueError, r"parameter 1 of rank 1 is .*\(21,\), rank 0's is .*\(20,\)"),
        "another dtype": (
            replicas(first, [W1, b1.detach().float().requires_grad_(), *second[2:]]),
            ValueError, "parameter 1 of rank 1 is torch.float32"),
        "a parameter too few": (replicas(first, second[:7]), ValueError,
                                "rank 1 has 7 parameters, rank 0 has 8"),
        "seven parameters on all": (replicas(first[:7], second[:7]), ValueError,
                                    "lenet needs 8 parameters, got 7"),
        "no leaf": (replicas(first, [W1 * 1, *second[1:]]), ValueError,
                    "parameter 0 of rank 1 is not a leaf that wants a gradient"),
        "bare parameters": (replicas(*[init_params(0, dtype=X.dtype)] * 2), ValueError,
                            "parameter 0 of rank 0 is not a leaf"),
    }


CASES = list(broken_arguments(torch.zeros(4, 1, 28, 28), torch.zeros(4).long(),
                              [[torch.zeros(1)] * 8] * 2))


@pytest.mark.parametrize("case", CASES)
def test_refuses_names_it_and_leaves_every_bit(batch, replicas, case):
    X, y = batch(4)
    device_params = replicas(2)
    good = {"X": X, "y": y, "device_params": device_params, "devices": cpus(2),
            "lr": 0.1}
    train_batch(**good)
    before = bits(device_params)
    wrong, error, message = broken_arguments(X, y, device_params)[case]
    with pytest.raises(error, match=message):
        train_batch(**good | wrong)
    assert same_bits(device_params, before)
    assert not any(g is not None and g.any() for g in gradients(device_params))
    train_batch(**good)


def test_labels_are_read_before_anything_goes_to_a_device(monkeypatch, batch, replicas):
    X, y = batch(4)
    monkeypatch.setattr(train_module, "split_batch", lambda *_: pytest.fail("too late"))
    with pytest.raises(ValueError, match=r"y\[0\] is 99"):
        train_batch(X, y + 99 - y[0], replicas(2), cpus(2), 0.1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_torchs_own_error_comes_through(batch, replicas, mode):
    device_params = replicas(2)
    before = bits(device_params)
    with mode(), pytest.raises(RuntimeError, match="does not require grad"):
        train_batch(*batch(4), device_params, cpus(2), 0.1)
    assert same_bits(device_params, before)
    train_batch(*batch(4), device_params, cpus(2), 0.1)


def failing_at(call, function, error):
    """Return a `function` that raises on one of its calls, when its work is done."""
    calls = []

    def failing(*args, **kwargs):
        calls.append(1)
        result = function(*args, **kwargs)
        if len(calls) == call:
            raise error
        return result
    return failing


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("stage, call", [
    ("pack_grads", 2),
    ("lenet", 1),
    ("lenet", 2),
    ("loss", 2),
    ("allreduce", 1),
    ("_check_finite", 1),
    ("sgd", 1),  # between the updates of rank 0 and rank 1
    ("sgd", 2),
    ("sgd", 3),
])
def test_a_step_happens_on_every_replica_or_on_none(monkeypatch, batch, replicas, stage,
                                                    call, error):
    X, y = batch(8)
    clean, device_params = replicas(3), replicas(3)
    for trained in (clean, device_params):
        train_batch(X, y, trained, cpus(3), 0.1)
    before = bits(device_params)
    with monkeypatch.context() as patch, pytest.raises(error):
        function = failing_at(call, getattr(train_module, stage), error)
        patch.setattr(train_module, stage, function)
        train_batch(X, y, device_params, cpus(3), 0.1,
                    function if stage == "allreduce" else allreduce)
    assert same_bits(device_params, before)
    assert gradients(device_params) == [None] * 24
    # trying again is as if nothing had happened
    for trained in (clean, device_params):
        train_batch(X, y, trained, cpus(3), 0.1)
    assert same_bits(device_params, bits(clean))


def test_an_error_inside_sgd_puts_half_a_step_back(batch, replicas, monkeypatch):
    device_params = replicas(2)
    before = bits(device_params)

    def half_of_sgd(params, lr, batch_size):
        with torch.no_grad():
            for p in params[:4]:
                p -= lr * p.grad / batch_size
        raise KeyboardInterrupt
    monkeypatch.setattr(train_module, "sgd", half_of_sgd)
    with pytest.raises(KeyboardInterrupt):
        train_batch(*batch(4), device_params, cpus(2), 0.1)
    assert same_bits(device_params, before)


def test_an_error_in_backward_changes_nothing(batch, replicas):
    device_params = replicas(2)
    before = bits(device_params)

    def boom(grad):
        raise ArithmeticError("boom")
    hook = device_params[1][0].register_hook(boom)
    with pytest.raises(ArithmeticError, match="boom"):
        train_batch(*batch(4), device_params, cpus(2), 0.1)
    hook.remove()
    assert same_bits(device_params, before)
    assert gradients(device_params) == [None] * 16
    clean = replicas(2)
    for trained in (clean, device_params):
        train_batch(*batch(4), trained, cpus(2), 0.1)
    assert same_bits(device_params, bits(clean))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_gradient_spoiled_in_the_allreduce_is_named(batch, replicas, rank, bad):
    device_params = replicas(3)
    before = bits(device_params)

    def spoiling(tensors):
        allreduce(tensors)
        tensors[rank][1000] = bad
    with pytest.raises(ValueError, match=f"the summed gradient on rank {rank} is not "
                                         "finite .* nothing was updated"):
        train_batch(*batch(4), device_params, cpus(3), 0.1, spoiling)
    assert same_bits(device_params, before)


# evaluate_accuracy

def always(label, world_size):
    """Return replicas that give every image the same label."""
    params = init_params(0, dtype=torch.float64)
    params[7][label] = 1
    return [get_params(params, "cpu") for _ in range(world_size)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_accuracy_by_hand(batch, world_size):
    # sizes 4 and 1: a mean of the minibatches' accuracies would be (1/4 + 1) / 2
    X, _ = batch(5)
    y = torch.tensor([3, 0, 1, 2, 3])
    data = [(X[:4], y[:4]), (X[4:], y[4:])]
    assert evaluate_accuracy(always(3, world_size), data, cpus(world_size)) == 2 / 5


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_devices_together_count_what_one_counts(batch, replicas, world_size):
    [alone] = replicas(1)
    data = []
    for rows in (9, 5, 2, 1):
        X, _ = batch(rows, seed=rows)
        y = lenet(X, alone).argmax(dim=1)
        y[::2] = (y[::2] + 1) % 10  # every other one is wrong: 4, 2, 1, 0 are right
        data.append((X, y))
    accuracy = evaluate_accuracy(replicas(world_size), data, cpus(world_size))
    assert accuracy == 7 / 17


def test_every_device_takes_its_share(batch):
    # rank r answers r, and every label says which rank should have seen it
    X, _ = batch(7)
    device_params = [always(rank, 1)[0] for rank in range(3)]
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    assert evaluate_accuracy(device_params, [(X, y)], cpus(3)) == 1


def test_evaluation_leaves_no_trace(batch, replicas):
    device_params = replicas(2)
    before = bits(device_params)
    evaluate_accuracy(device_params, [batch(4)], cpus(2))
    assert same_bits(device_params, before)
    assert gradients(device_params) == [None] * 16


@pytest.mark.parametrize("replica_count, device_count, message", [
    (1, 2, "device_params has 1 replicas but devices has 2"),
    (2, 1, "device_params has 2 replicas but devices has 1"),
    (0, 0, "devices is empty: need a device for each rank"),
])
def test_accuracy_needs_a_device_for_each_replica(batch, replicas, replica_count,
                                                  device_count, message):
    with pytest.raises(ValueError, match=message):
        evaluate_accuracy(replicas(replica_count), [batch(4)], cpus(device_count))


def test_accuracy_of_no_examples_is_an_error(replicas):
    with pytest.raises(ValueError, match="data holds no examples"):
        evaluate_accuracy(replicas(1), [], cpus(1))


def test_labels_of_another_shape_are_not_broadcast(batch, replicas):
    X, y = batch(4)
    with pytest.raises(ValueError, match="one label an example"):
        evaluate_accuracy(replicas(2), [(X, y[:, None])], cpus(2))


# train

@pytest.fixture
def data(batch):
    """Two minibatches to train on, of different sizes, and one to test on."""
    return [batch(7, seed=1), batch(4, seed=2)], [batch(6, seed=3)]


def quiet(data, world_size=2, **settings):
    return train(cpus(world_size), 7, 0.05, data=data, dtype=torch.float64,
                 verbose=False, **settings)


def test_history_has_a_value_for_every_epoch(data):
    history = quiet(data, num_epochs=3)
    assert sorted(history) == ["loss", "seconds", "test_acc", "world_size"]
    assert history["world_size"] == 2
    assert all(len(history[key]) == 3 for key in ("loss", "seconds", "test_acc"))
    assert history["loss"][2] < history["loss"][0]
    assert all(acc * 6 == round(acc * 6) for acc in history["test_acc"])


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_several_devices_learn_what_one_learns(data, world_size):
    one, several = (quiet(data, k, num_epochs=3) for k in (1, world_size))
    assert several["loss"] == pytest.approx(one["loss"], abs=1e-12)
    assert several["test_acc"] == one["test_acc"]


def test_ten_epochs_of_the_digits_from_he_sized_weights_are_the_default():
    parameters = inspect.signature(train).parameters
    assert {name: p.default for name, p in parameters.items()
            if name in ("num_epochs", "data", "scale", "dtype")} == {
        "num_epochs": 10, "data": "digits", "scale": "he", "dtype": torch.float32}


def test_the_epochs_loss_is_the_mean_over_all_its_examples(data):
    params = init_params("he", torch.Generator().manual_seed(5), torch.float64)
    losses = torch.cat([loss(lenet(X, params), y) for X, y in data[0]])
    history = train(cpus(2), 7, 0, 1, data, seed=5, dtype=torch.float64, verbose=False)
    assert history["loss"] == pytest.approx([losses.mean().item()], abs=1e-12)


def test_the_same_seed_is_the_same_run_and_another_seed_is_not(data):
    first, again, other = (quiet(data, num_epochs=2, seed=seed) for seed in (0, 0, 1))
    assert first["loss"] == again["loss"] != other["loss"]


def test_scale_is_that_of_the_initial_weights(data):
    history = train(cpus(2), 7, 0, 1, data, scale=0, dtype=torch.float64, verbose=False)
    assert history["loss"] == pytest.approx([math.log(10)])


class Clock:
    """Stand still, but for `step` seconds at every training step."""

    def __init__(self, monkeypatch, step):
        self.now = 0.0
        monkeypatch.setattr(train_module.time, "perf_counter", lambda: self.now)
        for name, seconds in (("train_batch", step), ("evaluate_accuracy", 100.0)):
            monkeypatch.setattr(train_module, name, self.taking(
                seconds, getattr(train_module, name)))

    def taking(self, seconds, function):
        def slow(*args):
            self.now += seconds
            return function(*args)
        return slow


def test_prints_the_books_closing_line(monkeypatch, capsys, data):
    # two steps of 1.3 seconds an epoch; the evaluation's seconds do not count
    Clock(monkeypatch, step=1.3)
    history = train([torch.device("cpu")] * 2, 7, 0.05, 3, data, dtype=torch.float64)
    assert history["seconds"] == pytest.approx([2.6] * 3)
    assert capsys.readouterr().out == (
        f"test acc: {history['test_acc'][-1]:.2f}, 2.6 sec/epoch on "
        "[device(type='cpu'), device(type='cpu')]\n")


def test_the_closing_line_reads_as_in_the_book(capsys, data):
    train([torch.device("cpu")], 7, 0.05, 1, data, dtype=torch.float64)
    # d2l.ai 12.5.6: test acc: 0.84, 2.6 sec/epoch on [device(type='cuda', index=0)]
    assert re.fullmatch(r"test acc: [01]\.\d\d, \d+\.\d sec/epoch on "
                        r"\[device\(type='cpu'\)\]\n", capsys.readouterr().out)


@pytest.mark.parametrize("settings", [{"verbose": False}, {"num_epochs": 0}])
def test_prints_nothing_when_there_is_nothing_to_say(capsys, data, settings):
    train(cpus(1), 7, 0.05, **{"num_epochs": 1, "data": data, "dtype": torch.float64,
                               **settings})
    assert capsys.readouterr() == ("", "")


def test_progress_wraps_the_minibatches_of_each_epoch(data):
    seen = []

    def progress(batches, label):
        seen.append(label)
        for X, y in batches:
            seen.append(len(X))
            yield X, y
    assert quiet(data, num_epochs=2, progress=progress)["loss"] == pytest.approx(
        quiet(data, num_epochs=2)["loss"])
    assert seen == ["2 devices, epoch 1/2", 7, 4, "2 devices, epoch 2/2", 7, 4]


def test_data_may_be_a_name(monkeypatch, data):
    asked = []

    def load_data(*args, **kwargs):
        asked.append((args, kwargs))
        return data
    monkeypatch.setattr(train_module, "load_data", load_data)
    quiet("fashion-mnist", num_epochs=1, seed=3)
    assert asked == [(("fashion-mnist", 7), {"seed": 3, "dtype": torch.float64})]


def test_a_wrong_name_of_data_is_an_error():
    with pytest.raises(ValueError, match="data must be one of digits, .* got 'mnist'"):
        train(cpus(1), 7, 0.05, data="mnist")


def test_a_learners_allreduce_may_be_dropped_in(data):
    star, own = (quiet(data, 3, num_epochs=2, allreduce=function)
                 for function in (allreduce, by_mail))
    assert own["loss"] == pytest.approx(star["loss"], abs=1e-12)


def rebinding(tensors):
    """Sum as the book's first edition did: into the list, not into the tensors."""
    total = sum(tensor.clone() for tensor in tensors)
    for rank in range(len(tensors)):
        tensors[rank] = total


def only_first(tensors):
    for tensor in tensors[1:]:
        tensors[0].add_(tensor)


@pytest.mark.parametrize("wrong", [rebinding, only_first, lambda tensors: None])
def test_replicas_that_part_are_refused_after_the_epoch(data, wrong):
    with pytest.raises(ValueError, match="parameter 0 of rank 1 differs from rank 0's"):
        quiet(data, num_epochs=3, allreduce=wrong)


def test_a_step_on_what_can_be_walked_once_is_refused_and_not_left_out():
    net = torch.nn.Linear(1, 1)
    net(torch.ones(1, 1)).sum().backward()
    before = net.weight.item()
    with pytest.raises(TypeError, match="params must be a list, got a generator"):
        sgd(net.parameters(), lr=0.1, batch_size=1)
    assert (net.weight.item(), net.weight.grad.item()) == (before, 1)
    sgd(list(net.parameters()), lr=0.1, batch_size=1)
    assert net.weight.item() != before


def test_labels_in_a_list_are_refused():
    params, devices = init_params(), [torch.device("cpu")]
    with pytest.raises(TypeError, match="y must be a tensor, got list"):
        evaluate_accuracy([params], [(torch.rand(1, 1, 28, 28), [1])], devices)
