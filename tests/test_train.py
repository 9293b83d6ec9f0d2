"""A step is autograd's on the unsplit minibatch, on every replica or on none."""

import inspect
import math
import sys
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
)

train_module = sys.modules["manual_dp.train"]  # not the function of that name


def cpus(world_size):
    return ["cpu"] * world_size


def numbers(device_params):
    """Return copies of all weights of all replicas."""
    return [p.detach().clone() for params in device_params for p in params]


def same_bits(device_params, values):
    return all(map(torch.equal, numbers(device_params), values))


def gradients(device_params):
    return [p.grad for params in device_params for p in params]


# sgd


def test_sgd_by_hand():
    [p] = get_params([torch.tensor([1.0, 2.0])], "cpu")
    home = p.data_ptr()
    p.grad = torch.tensor([4.0, -8.0])  # a sum over 4 examples: mean 1 and -2
    assert sgd([p], lr=0.5, batch_size=4) is None
    assert p.tolist() == [0.5, 3.0]
    assert p.grad.tolist() == [0, 0]
    assert p.is_leaf and p.requires_grad and p.data_ptr() == home


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"lr": math.nan}, ValueError, "lr must be a finite number >= 0, got nan"),
        ({"lr": math.inf}, ValueError, "lr must be a finite number >= 0, got inf"),
        ({"lr": -0.1}, ValueError, r"lr must be a finite number >= 0, got -0\.1"),
        ({"lr": "0.1"}, ValueError, r"lr must be a finite number >= 0, got '0\.1'"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        (
            {"batch_size": math.nan},
            ValueError,
            "batch_size must be at least 1, got nan",
        ),
        ({"params": iter}, TypeError, "params must be a list, got a list_iterator"),
        (
            {"params": lambda params: [*params, torch.ones(2)]},
            ValueError,
            r"params\[1\] has no gradient; call backward first",
        ),
    ],
)
def test_sgd_refuses_and_moves_nothing(change, error, message):
    [p] = get_params([torch.ones(2)], "cpu")
    p.grad = torch.ones(2)
    arguments = {"params": list, "lr": 0.1, "batch_size": 1} | change
    arguments["params"] = arguments["params"]([p])
    with pytest.raises(error, match=message):
        sgd(**arguments)
    assert p.tolist() == p.grad.tolist() == [1, 1]


# train_batch: what it does


@pytest.mark.parametrize("world_size, rows", [(1, 3), (2, 8), (3, 10), (4, 1)])
def test_a_step_is_autograds_on_the_unsplit_minibatch(
    batch, replicas, world_size, rows
):
    X, y = batch(rows)
    [alone] = replicas(1)
    mean = F.cross_entropy(lenet(X, alone), y)
    grads = torch.autograd.grad(mean, alone)
    device_params = replicas(world_size)
    for params in device_params:  # a stale gradient does not count
        params[7].grad = torch.ones(10, dtype=torch.float64)
    step_loss = train_batch(X, y, device_params, cpus(world_size), 0.1)
    assert isinstance(step_loss, float)
    assert step_loss == pytest.approx(mean.item(), abs=1e-12)
    off_by = {  # those that are not where one device's step ends
        f"replica {rank}, parameter {i}": (p - (start - 0.1 * grad)).abs().max().item()
        for rank, params in enumerate(device_params)
        for i, (p, start, grad) in enumerate(zip(params, alone, grads))
    }
    assert {name: off for name, off in off_by.items() if not off < 1e-12} == {}
    check_replicas(device_params)
    assert not any(grad.any() for grad in gradients(device_params))
    assert torch.equal(X, batch(rows)[0]) and torch.equal(y, batch(rows)[1])


@pytest.mark.parametrize(
    "lr, device", [(numpy.float32(1), torch.device("cpu")), (Fraction(1), "cpu")]
)
def test_any_real_number_is_a_learning_rate_and_a_device_has_two_spellings(
    batch, replicas, lr, device
):
    device_params, expected = replicas(2), replicas(2)
    train_batch(*batch(4), device_params, [device] * 2, lr)
    train_batch(*batch(4), expected, cpus(2), 1.0)
    assert same_bits(device_params, numbers(expected))


def by_mail(tensors):
    """Sum as a learner might: through a list of numbers."""
    sums = [sum(column) for column in zip(*(t.tolist() for t in tensors))]
    for tensor in tensors:
        tensor.copy_(torch.tensor(sums, dtype=tensor.dtype))


@pytest.mark.parametrize("own", [ring_allreduce, by_mail])
def test_any_allreduce_fits_and_is_given_one_contiguous_tensor_a_rank(
    batch, replicas, own
):
    star, other, given = replicas(3), replicas(3), []

    def watched(tensors):
        given.extend((t.dim(), t.is_contiguous(), t.numel()) for t in tensors)
        own(tensors)

    train_batch(*batch(7), star, cpus(3), 0.1)
    train_batch(*batch(7), other, cpus(3), 0.1, allreduce=watched)
    check_replicas(other)
    assert all((p - q).abs().max() < 1e-12 for p, q in zip(star[0], other[0]))
    assert given == [(1, True, sum(p.numel() for p in star[0]))] * 3


def test_replicas_that_a_wrong_allreduce_parted_step_on_and_are_found(batch, replicas):
    # lessons look at such runs: only check_replicas refuses them
    device_params = replicas(2)
    for _ in range(2):
        train_batch(*batch(4), device_params, cpus(2), 0.1, lambda tensors: None)
    with pytest.raises(
        ValueError, match="0 of rank 1 differs from rank 0's, by up to 0.0"
    ):
        check_replicas(device_params)


# train_batch: all or nothing


REFUSED = {  # by name: which argument is made into what, and what is said
    "empty batch": (
        {"X": lambda X: X[:0], "y": lambda y: y[:0]},
        ValueError,
        r"X must have at least one row, got shape \(0, 1, 28, 28\)",
    ),
    "fewer labels": ({"y": lambda y: y[:3]}, ValueError, "X has 4 rows but y has 3"),
    "label 10": (
        {"y": lambda y: torch.cat([y[:2], torch.tensor([10]), y[3:]])},
        ValueError,
        r"y\[2\] is 10, not a label from 0 to 9",
    ),
    "images of 27x27": (
        {"X": lambda X: X[..., :27, :27]},
        ValueError,
        r"X must have shape .*, got \(4, 1, 27, 27\)",
    ),
    "NaN": ({"X": lambda X: X * torch.nan}, ValueError, "on rank 0 is not finite"),
    "lr NaN": ({"lr": lambda lr: math.nan}, ValueError, "lr must be .*, got nan"),
    "a device too few": (
        {"devices": lambda devices: devices[1:]},
        ValueError,
        "device_params has 2 replicas but devices has 1",
    ),
    "a device too many": (
        {"devices": lambda devices: cpus(3)},
        ValueError,
        "device_params has 2 replicas but devices has 3",
    ),
    "one replica twice": (
        {"device_params": lambda both: both[:1] * 2},
        ValueError,
        "parameter 0 of rank 1 shares memory with parameter 0 of rank 0",
    ),
    "a parameter too few": (
        {"device_params": lambda both: [p[:7] for p in both]},
        ValueError,
        "lenet needs 8 parameters, got 7",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_names_it_and_leaves_every_bit(batch, replicas, case):
    X, y = batch(4)
    device_params = replicas(2)
    good = {
        "X": X,
        "y": y,
        "device_params": device_params,
        "devices": cpus(2),
        "lr": 0.1,
    }
    train_batch(**good)
    before = numbers(device_params)
    changes, error, message = REFUSED[case]
    wrong = {name: change(good[name]) for name, change in changes.items()}
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


@pytest.mark.parametrize(
    "owner, stage, call, error",
    [
        (train_module, "pack_grads", 2, KeyboardInterrupt),
        (torch.Tensor, "backward", 2, RuntimeError),
        (torch.Tensor, "zero_", 4, KeyboardInterrupt),  # amid rank 0's update
        (train_module, "sgd", 3, RuntimeError),  # all replicas are updated
        (None, "allreduce", 1, RuntimeError),
    ],
)
def test_a_step_happens_on_every_replica_or_on_none(
    monkeypatch, batch, replicas, owner, stage, call, error
):
    X, y = batch(8)
    clean, device_params = replicas(3), replicas(3)
    for trained in (clean, device_params):
        train_batch(X, y, trained, cpus(3), 0.1)
    before = numbers(device_params)
    with monkeypatch.context() as patch, pytest.raises(error):
        if owner is not None:
            patch.setattr(owner, stage, failing_at(call, getattr(owner, stage), error))
        sums = allreduce if owner else failing_at(call, allreduce, error)
        train_batch(X, y, device_params, cpus(3), 0.1, sums)
    assert same_bits(device_params, before)
    assert gradients(device_params) == [None] * 24
    # trying again is as if nothing had happened
    for trained in (clean, device_params):
        train_batch(X, y, trained, cpus(3), 0.1)
    assert same_bits(device_params, numbers(clean))


@pytest.mark.parametrize("rank, bad", [(0, math.inf), (1, -math.inf), (2, math.nan)])
def test_a_gradient_spoiled_in_the_allreduce_is_named(batch, replicas, rank, bad):
    device_params = replicas(3)

    def spoiling(tensors):
        allreduce(tensors)
        tensors[rank][1000] = bad

    with pytest.raises(
        ValueError,
        match=f"the summed gradient on rank {rank} is not "
        "finite .* nothing was updated",
    ):
        train_batch(*batch(4), device_params, cpus(3), 0.1, spoiling)
    assert same_bits(device_params, numbers(replicas(3)))


# evaluate_accuracy


def always(answers):
    """Return a replica for each answer, which gives it to every image."""
    device_params = []
    for answer in answers:
        params = init_params(0, dtype=torch.float64)
        params[7][answer] = 1
        device_params.append(get_params(params, "cpu"))
    return device_params


def test_accuracy_by_hand_leaves_no_trace(batch):
    # sizes 4 and 1: a mean of the minibatches' accuracies would be (1/4 + 1) / 2
    X, _ = batch(5)
    y = torch.tensor([3, 0, 1, 2, 3])
    device_params = always([3] * 3)
    data = [(X[:4], y[:4]), (X[4:], y[4:])]
    assert evaluate_accuracy(device_params, data, cpus(3)) == 2 / 5
    assert same_bits(device_params, numbers(always([3] * 3)))
    assert gradients(device_params) == [None] * 24


def test_every_device_takes_its_share(batch):
    # rank r answers r, and every label says which rank should have seen it
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    assert evaluate_accuracy(always([0, 1, 2]), [(batch(7)[0], y)], cpus(3)) == 1


@pytest.mark.parametrize(
    "replica_count, device_count, labels, error, message",
    [
        (1, 2, None, ValueError, "device_params has 1 replicas but devices has 2"),
        (2, 1, None, ValueError, "device_params has 2 replicas but devices has 1"),
        (0, 0, None, ValueError, "devices is empty: need a device for each rank"),
        (1, 1, None, ValueError, "data holds no examples"),
        (2, 2, torch.zeros(4, 1).long(), ValueError, "one label an example"),
        (2, 2, [1, 2, 3, 4], TypeError, "y must be a tensor, got list"),
    ],
)
def test_refuses_to_count(
    batch, replicas, replica_count, device_count, labels, error, message
):
    data = [] if labels is None else [(batch(4)[0], labels)]
    with pytest.raises(error, match=message):
        evaluate_accuracy(replicas(replica_count), data, cpus(device_count))


# train


def test_devices_are_checked_before_data_is_fetched():
    with pytest.raises(
        ValueError, match="devices is empty: need a device for each rank"
    ):
        train([], 16, 0.1, data="no such data")


@pytest.fixture
def data(batch):
    """Two minibatches to train on, of different sizes, and one to test on."""
    return [batch(7, seed=1), batch(4, seed=2)], [batch(6, seed=3)]


def quiet(data, world_size=2, lr=0.05, **settings):
    return train(
        cpus(world_size),
        7,
        lr,
        data=data,
        dtype=torch.float64,
        verbose=False,
        **settings,
    )


def test_several_devices_learn_what_one_learns(data):
    one, several = (quiet(data, k, num_epochs=3) for k in (1, 4))
    assert sorted(several) == ["loss", "seconds", "test_acc", "world_size"]
    assert several["world_size"] == 4 and len(several["seconds"]) == 3
    assert several["loss"] == pytest.approx(one["loss"], abs=1e-12)
    assert several["loss"][2] < several["loss"][0]
    assert several["test_acc"] == one["test_acc"]


def test_ten_epochs_of_the_digits_from_he_sized_weights_are_the_default():
    parameters = inspect.signature(train).parameters
    assert {
        name: p.default
        for name, p in parameters.items()
        if name in ("num_epochs", "data", "scale", "dtype")
    } == {"num_epochs": 10, "data": "digits", "scale": "he", "dtype": torch.float32}


def test_the_epochs_loss_is_the_mean_over_all_its_examples(data):
    params = init_params("he", torch.Generator().manual_seed(5), torch.float64)
    losses = torch.cat([loss(lenet(X, params), y) for X, y in data[0]])
    for settings, wanted in (
        ({"seed": 5}, losses.mean().item()),
        ({"scale": 0}, math.log(10)),
    ):
        history = quiet(data, lr=0, num_epochs=1, **settings)
        assert history["loss"] == pytest.approx([wanted], abs=1e-12)


def test_the_same_seed_is_the_same_run_and_another_seed_is_not(data):
    first, again, other = (quiet(data, num_epochs=2, seed=seed) for seed in (0, 0, 1))
    assert first["loss"] == again["loss"] != other["loss"]


def test_prints_the_books_closing_line(monkeypatch, capsys, data):
    # two steps of 1.3 seconds an epoch; the evaluation's seconds do not count
    # d2l.ai 12.5.6: test acc: 0.84, 2.6 sec/epoch on [device(type='cuda', index=0)]
    now, accuracies = [0.0], iter([0.25, 0.375, 0.5])

    def taking(seconds, function):
        def slow(*args):
            now[0] += seconds
            return function(*args)

        return slow

    monkeypatch.setattr(train_module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(train_module, "train_batch", taking(1.3, train_batch))
    monkeypatch.setattr(
        train_module, "evaluate_accuracy", taking(100, lambda *_: next(accuracies))
    )
    history = train([torch.device("cpu")] * 2, 7, 0.05, 3, data, dtype=torch.float64)
    assert history["seconds"] == pytest.approx([2.6] * 3)
    assert capsys.readouterr().out == (
        "test acc: 0.50, 2.6 sec/epoch on [device(type='cpu'), device(type='cpu')]\n"
    )


@pytest.mark.parametrize("settings", [{"verbose": False}, {"num_epochs": 0}])
def test_prints_nothing_when_there_is_nothing_to_say(capsys, data, settings):
    train(
        cpus(1),
        7,
        0.05,
        **{"num_epochs": 1, "data": data, "dtype": torch.float64, **settings},
    )
    assert capsys.readouterr() == ("", "")


def test_progress_wraps_the_minibatches_of_each_epoch(data):
    seen = []

    def progress(batches, label):
        seen.append(label)
        for X, y in batches:
            seen.append(len(X))
            yield X, y

    assert quiet(data, num_epochs=2, progress=progress)["loss"] == pytest.approx(
        quiet(data, num_epochs=2)["loss"]
    )
    assert seen == ["2 devices, epoch 1/2", 7, 4, "2 devices, epoch 2/2", 7, 4]


def test_data_may_be_a_name(monkeypatch, data):
    asked = []

    def load_data(*args, **kwargs):
        asked.append((args, kwargs))
        return data

    with pytest.raises(ValueError, match="data must be one of digits, .* got 'mnist'"):
        train(cpus(1), 7, 0.05, data="mnist")
    monkeypatch.setattr(train_module, "load_data", load_data)
    quiet("fashion-mnist", num_epochs=1, seed=3)
    assert asked == [(("fashion-mnist", 7), {"seed": 3, "dtype": torch.float64})]


def rebinding(tensors):
    """Sum as the book's first edition did: into the list, not into the tensors."""
    total = sum(tensor.clone() for tensor in tensors)
    for rank in range(len(tensors)):
        tensors[rank] = total


def test_replicas_that_part_are_refused_after_the_epoch(data):
    with pytest.raises(ValueError, match="parameter 0 of rank 1 differs from rank 0's"):
        quiet(data, num_epochs=3, allreduce=rebinding)
