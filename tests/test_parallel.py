"""DataParallel by hand equals the bare module, keeps torch's rules, and names replicas."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.models.lenet import LeNet
from manual_dp.parallel import DataParallel, gather, parallel_apply, replicate

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Use one matrix twice, under two names."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.two = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.two.weight = self.one.weight

    def forward(self, X):
        return self.two(torch.tanh(self.one(X)))


def small(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 2)).double()


def rows(n, width=3):
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, width, dtype=torch.float64, generator=generator)


def grads(module, net, X):
    """Return the gradients in `module` of a loss that weighs every output apart."""
    y_hat = net(X)
    weights = torch.arange(1.0, y_hat.numel() + 1, dtype=torch.float64)
    module.zero_grad()
    (y_hat.flatten() * weights).sum().backward()
    return [p.grad.clone() for p in module.parameters()]


# replicate

def test_gradients_of_all_replicas_add_up_in_the_module():
    module = nn.Linear(2, 1, bias=False)
    nn.init.ones_(module.weight)
    first, second = replicate(module, [CPU] * 2)
    (first(torch.tensor([1.0, 10.0])) + second(torch.tensor([2.0, 20.0]))).backward()
    assert module.weight.grad.tolist() == [[3, 30]]


def test_replicas_are_equal_copies_and_the_module_is_as_it_was():
    module = small(nn.ReLU())
    before = [p.clone() for p in module.parameters()]
    replicas = replicate(module, [CPU] * 3)
    homes = {p.data_ptr() for net in [module, *replicas] for p in net.parameters()}
    assert len(homes) == 4 * 4
    for net in [module, *replicas]:
        assert all(map(torch.equal, net.parameters(), before))
    for net in replicas:
        assert type(net) is nn.Sequential
        assert not any(p.is_leaf for p in net.parameters())
    assert all(type(p) is nn.Parameter and p.is_leaf for p in module.parameters())


def test_tied_weights_stay_tied_and_get_both_gradients():
    module, X = Tied(), rows(4)
    [replica] = replicate(module, [CPU])
    assert replica.one.weight is replica.two.weight
    expected = grads(module, module, X)
    assert all(map(torch.equal, grads(module, replica, X), expected))


def test_a_frozen_parameter_stays_frozen():
    module = small(nn.ReLU())
    module[0].weight.requires_grad_(False)
    for net in replicate(module, [CPU] * 2):
        assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]


def test_replicas_of_modules_that_hold_lists_of_weights(batch):
    X, _ = batch(2)
    module = LeNet().double()
    assert torch.equal(replicate(module, [CPU] * 2)[1](X), module(X))
    lstm = nn.LSTM(3, 4, batch_first=True).double()  # keeps its weights in a list, too
    replica = replicate(lstm, [CPU] * 2)[1]
    replica(rows(5).view(1, 5, 3))[0].sum().backward()
    assert all(p.grad is not None for p in lstm.parameters())


def test_only_replica_0_has_the_buffers_of_the_module():
    module = small(nn.BatchNorm1d(4))
    mean = module[1].running_mean
    replicas = replicate(module, [CPU] * 2)
    assert replicas[0][1].running_mean is mean
    assert replicas[1][1].running_mean is not mean
    replicas[1](rows(5))
    assert mean.tolist() == [0] * 4
    replicas[0](rows(5))
    assert mean.abs().min() > 0 and module[1].num_batches_tracked == 1


def test_a_module_that_is_elsewhere_is_refused():
    module = nn.Linear(2, 2, device="meta")
    with pytest.raises(ValueError, match=r"weight is on meta, devices\[0\] is cpu"):
        replicate(module, [CPU] * 2)
    with pytest.raises(ValueError, match="devices is empty"):
        replicate(module, [])


# parallel_apply

def test_replicas_run_side_by_side():
    barrier = threading.Barrier(3, timeout=60)  # broken unless all three are waiting

    class Meets(nn.Module):
        def forward(self, X):
            barrier.wait()
            return X
    shards = [torch.full((2,), float(rank)) for rank in range(3)]
    outputs = parallel_apply([Meets() for _ in shards], shards)
    assert [output.tolist() for output in outputs] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("wanted", [True, False])
def test_threads_take_over_whether_gradients_are_on(wanted):
    module = small()
    with torch.set_grad_enabled(wanted):
        outputs = parallel_apply([module, module], [rows(2), rows(3)])
    assert [output.requires_grad for output in outputs] == [wanted] * 2


class Odd(Exception):
    """Refuse to be made from one argument, as some exceptions do."""

    def __init__(self, message, number):
        super().__init__(message)
        self.number = number


@pytest.mark.parametrize("error", [ValueError("too long"), Odd("too long", 7),
                                   RuntimeError("too long")])
def test_an_exception_keeps_its_class_and_names_the_replica(error):
    class Breaks(nn.Module):
        def forward(self, X):
            raise error
    with pytest.raises(type(error), match="^replica 1: too long") as caught:
        parallel_apply([nn.Identity(), Breaks()], [rows(1), rows(1)])
    assert caught.value is error


def test_of_several_exceptions_the_first_replicas_is_raised():
    with pytest.raises(RuntimeError, match="replica 1: mat1 and mat2"):
        parallel_apply([small()] * 3, [rows(1), rows(1, 5), rows(1, 6)])


@pytest.mark.parametrize("replicas, shards", [(0, 0), (2, 1), (1, 2)])
def test_every_replica_needs_a_shard(replicas, shards):
    with pytest.raises(ValueError, match=f"got {replicas} replicas and {shards} sh"):
        parallel_apply([small()] * replicas, [rows(1)] * shards)


# gather

def test_rows_are_gathered_in_rank_order_and_gradients_cut_back():
    outputs = [torch.tensor([[1.0], [2]], requires_grad=True),
               torch.tensor([[3.0]], requires_grad=True)]
    y_hat = gather(outputs, CPU)
    assert y_hat.tolist() == [[1], [2], [3]]
    (y_hat * torch.tensor([[5.0], [6], [7]])).sum().backward()
    assert [output.grad.tolist() for output in outputs] == [[[5], [6]], [[7]]]


@pytest.mark.parametrize("output, error, message", [
    (torch.tensor(1.0), ValueError, "replica 1 returned one number"),
    ((rows(1),), TypeError, "replica 1 returned a tuple, not a tensor")])
def test_what_has_no_rows_is_refused(output, error, message):
    with pytest.raises(error, match=message):
        gather([rows(1), output], CPU)


# DataParallel

@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [1, 5, 12])
def test_the_wrapped_lenet_equals_the_bare_one(world_size, n, batch):
    X, y = batch(n)
    module = LeNet().double()
    net = DataParallel(module, [CPU] * world_size)
    wanted = torch.autograd.grad(F.cross_entropy(module(X), y), module.parameters())
    y_hat = net(X)
    torch.testing.assert_close(y_hat, module(X), rtol=0, atol=1e-12)
    F.cross_entropy(y_hat, y).backward()
    for p, grad in zip(module.parameters(), wanted):
        torch.testing.assert_close(p.grad, grad, rtol=0, atol=1e-12)
        assert p.grad.abs().max() > 1e-3


def test_the_wrapper_trains_the_module_and_has_its_parameters():
    module = small(nn.ReLU())
    net = DataParallel(module, [CPU] * 2)
    assert [id(p) for p in net.parameters()] == [id(p) for p in module.parameters()]
    expected = [p - 0.1 * g for p, g in zip(module.parameters(),
                                            grads(module, module, rows(5)))]
    grads(module, net, rows(5))
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    for p, wanted in zip(module.parameters(), expected):
        torch.testing.assert_close(p, wanted, rtol=0, atol=1e-12)


def test_ranks_without_rows_get_no_replica():
    seen = []

    class Watched(nn.Module):
        def forward(self, X):
            seen.append(len(X))
            return X
    net = DataParallel(Watched(), [CPU] * 4)
    assert torch.equal(net(rows(5)), rows(5)) and sorted(seen) == [1, 2, 2]
    seen.clear()
    net(rows(1))
    assert seen == [1]


def test_a_running_mean_has_seen_the_first_shard_only():
    module = nn.BatchNorm1d(3, momentum=1.0).double()  # 1.0: the last mean, no other
    X = rows(5)
    DataParallel(module, [CPU] * 2)(X)
    torch.testing.assert_close(module.running_mean, X[:3].mean(dim=0))
    assert module.num_batches_tracked == 1


def test_the_wrapper_follows_eval_and_no_grad():
    module = small(nn.Dropout(0.5))
    net = DataParallel(module, [CPU] * 2).eval()
    with torch.no_grad():
        assert not net(rows(4)).requires_grad
        torch.testing.assert_close(net(rows(4)), module(rows(4)))


def test_no_devices_are_refused():
    with pytest.raises(ValueError, match="devices is empty"):
        DataParallel(small(), [])


def test_on_a_cpu_torchs_own_wrapper_is_a_pass_through():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    seen = []
    module = small()
    module.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    nn.DataParallel(module)(rows(6))
    assert seen == [6]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_gpus_the_wrapper_equals_torchs():
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())][:2]
    module = small(nn.ReLU()).to(devices[0])
    X = rows(5).to(devices[0])
    ours = grads(module, DataParallel(module, (devices * 2)[:2]), X)
    theirs = grads(module, nn.DataParallel(module, devices), X)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
