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
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight

    def forward(self, X):
        return self.two(torch.tanh(self.one(X)))


class Calls(nn.Module):
    """Return what a function without parameters returns."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, X):
        return self.function(X)


def small(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 2)).double()


def rows(n, width=3):
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, width, dtype=torch.float64, generator=generator)


def grads(module, net, X):
    """Return the gradients in `module` of a loss that weighs every output apart."""
    y_hat = net(X)
    y_hat = y_hat[0] if isinstance(y_hat, tuple) else y_hat
    weights = torch.arange(1.0, y_hat.numel() + 1).to(y_hat)
    module.zero_grad()
    (y_hat.flatten() * weights).sum().backward()
    return [p.grad.clone() for p in module.parameters()]


# replicate


@pytest.mark.parametrize(
    "module, X",
    [
        (Tied().double(), rows(4)),
        (nn.LSTM(3, 4).double(), rows(5)),  # keeps its weights in a list, too
        (nn.Embedding(5, 2), torch.tensor([3, 1, 4])),
    ],
    ids=["tied", "LSTM", "embedding"],
)
def test_replicas_are_equal_copies_and_the_module_is_as_it_was(module, X):
    before = [p.detach().clone() for p in module.parameters()]
    replicas = replicate(module, [CPU] * 3)
    homes = {p.data_ptr() for net in [module, *replicas] for p in net.parameters()}
    assert len(homes) == 4 * len(before)  # tied weights are one: they stay tied
    expected = grads(module, module, X)
    for net in replicas:
        assert type(net) is type(module)
        assert all(map(torch.equal, net.parameters(), before))
        assert not any(p.is_leaf for p in net.parameters())
        assert all(map(torch.equal, grads(module, net, X), expected))
    assert all(map(torch.equal, module.parameters(), before))
    assert all(type(p) is nn.Parameter and p.is_leaf for p in module.parameters())


def test_a_frozen_parameter_stays_frozen():
    module = small(nn.ReLU())
    module[0].weight.requires_grad_(False)
    for net in replicate(module, [CPU] * 2):
        assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]


# parallel_apply


def test_replicas_run_side_by_side():
    barrier = threading.Barrier(3, timeout=30)  # broken unless all three are waiting
    net = DataParallel(Calls(lambda X: (barrier.wait(), X)[1]), [CPU] * 3)
    assert net(torch.arange(3)).tolist() == [0, 1, 2]


def test_threads_take_over_that_gradients_are_off():
    module = small()
    with torch.no_grad():
        outputs = parallel_apply([module, module], [rows(2), rows(3)])
    assert not any(output.requires_grad for output in outputs)


class Odd(Exception):
    """Refuse to be made from one argument, as some exceptions do."""

    def __init__(self, message, number):
        super().__init__(message)
        self.number = number


def test_an_exception_keeps_its_class_and_names_the_replica():
    error = Odd("too long", 7)

    def breaks(X):
        raise error

    with pytest.raises(Odd, match="^replica 1: too long") as caught:
        parallel_apply([nn.Identity(), Calls(breaks)], [rows(1), rows(1)])
    assert caught.value is error


def test_of_several_exceptions_the_first_replicas_is_raised():
    with pytest.raises(RuntimeError, match="replica 1: mat1 and mat2"):
        parallel_apply([small()] * 3, [rows(1), rows(1, 5), rows(1, 6)])


# DataParallel


@pytest.mark.parametrize("world_size, n", [(1, 5), (3, 12), (4, 5)])
def test_the_wrapped_lenet_equals_the_bare_one(world_size, n, batch):
    X, y = batch(n)
    module = LeNet().double()
    net = DataParallel(module, [CPU] * world_size)
    assert [id(p) for p in net.parameters()] == [id(p) for p in module.parameters()]
    wanted = torch.autograd.grad(F.cross_entropy(module(X), y), module.parameters())
    y_hat = net(X)
    torch.testing.assert_close(y_hat, module(X), rtol=0, atol=1e-12)
    F.cross_entropy(y_hat, y).backward()
    for p, grad in zip(module.parameters(), wanted):
        torch.testing.assert_close(p.grad, grad, rtol=0, atol=1e-12)
        assert p.grad.abs().max() > 1e-3


def test_ranks_without_rows_get_no_replica():
    seen = []
    net = DataParallel(Calls(lambda X: (seen.append(len(X)), X)[1]), [CPU] * 4)
    assert torch.equal(net(rows(5)), rows(5)) and sorted(seen) == [1, 2, 2]


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


# errors


@pytest.mark.parametrize(
    "refused, error, message",
    [
        (
            lambda: replicate(nn.Linear(2, 2, device="meta"), [CPU] * 2),
            ValueError,
            r"weight is on meta, devices\[0\] is cpu; move the module there first",
        ),
        (lambda: replicate(small(), []), ValueError, "devices is empty"),
        (lambda: DataParallel(small(), []), ValueError, "devices is empty"),
        (lambda: parallel_apply([], []), ValueError, "got 0 replicas and 0 shards"),
        (
            lambda: parallel_apply([small()] * 2, [rows(1)]),
            ValueError,
            "need a shard for each replica, got 2 replicas and 1 shards",
        ),
        (
            lambda: parallel_apply([small()], [rows(1)] * 2),
            ValueError,
            "got 1 replicas and 2 shards",
        ),
        (
            lambda: gather([rows(1), torch.tensor(1.0)], CPU),
            ValueError,
            "replica 1 returned one number; return a row for each example",
        ),
        (
            lambda: gather([rows(1), (rows(1),)], CPU),
            TypeError,
            "replica 1 returned a tuple, not a tensor",
        ),
    ],
)
def test_what_does_not_fit_is_named(refused, error, message):
    with pytest.raises(error, match=message):
        refused()


def keeping(module):
    module.kept = module.weight * 2
    return module


# weight_norm warns that it is old, lazy layers that they are new
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: keeping(nn.Linear(3, 2)),
            TypeError,
            r"the module \(Linear\) keeps kept",
        ),
        (
            lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2))),
            TypeError,
            r"0 \(Linear\) keeps weight, .* take torch.nn.utils.parametrizations.weight_norm",
        ),
        (
            lambda: nn.LazyBatchNorm1d(affine=False),
            ValueError,
            "running_mean has no shape yet; call the module once before",
        ),
        (
            lambda: nn.Sequential(nn.Embedding(5, 2, sparse=True)),
            ValueError,
            r"0 \(Embedding\) has sparse=True, .* make it with sparse=False",
        ),
        (
            lambda: nn.Sequential(nn.EmbeddingBag(5, 2, sparse=True)),
            ValueError,
            r"0 \(EmbeddingBag\) has sparse=True",
        ),
    ],
)
def test_what_cannot_be_replicated_is_named_with_the_way_out(make, error, message):
    with pytest.raises(error, match=f"^{message}"):
        replicate(make(), [CPU] * 2)


def test_a_tensor_that_was_not_computed_may_be_kept():
    module = nn.Linear(3, 3)
    module.mask = torch.eye(3)
    kept = replicate(module, [CPU] * 2)[1].mask
    assert torch.equal(kept, module.mask) and kept is not module.mask


def test_a_sparse_embedding_without_gradients_is_replicated():
    module, X = nn.Embedding(5, 2, sparse=True), torch.tensor([3, 1, 4])
    with torch.no_grad():
        assert torch.equal(DataParallel(module, [CPU] * 2)(X), module(X))
    module.requires_grad_(False)
    assert torch.equal(DataParallel(module, [CPU] * 2)(X), module(X))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_gpus_the_wrapper_equals_torchs():
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())][:2]
    module = small(nn.ReLU()).to(devices[0])
    X = rows(5).to(devices[0])
    ours = grads(module, DataParallel(module, (devices * 2)[:2]), X)
    theirs = grads(module, nn.DataParallel(module, devices), X)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
