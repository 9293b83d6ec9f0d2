"""Right scripts whose tensors are sparse, nested or torch.func's: watched, not broken."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from manual_dp.audit import watch
from manual_dp.ranks import run_ranks


class Rows(Dataset):
    """Hold 24 rows of 5 numbers, in 3 classes."""

    def __init__(self):
        self.X = torch.rand(24, 5, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], i % 3


class Own(IterableDataset):
    """Give each rank every other row of these."""

    def __iter__(self):
        rows = Rows()
        yield from (rows[i] for i in range(dist.get_rank(), 24, 2))


class Sparse(nn.Linear):
    """Take sparse rows."""

    def forward(self, X):
        return torch.sparse.mm(X, self.weight.T) + self.bias


def loader(change=lambda X: X):
    def collate(rows):
        return change(torch.stack([x for x, _ in rows])), torch.tensor(
            [y for _, y in rows])
    return DataLoader(Rows(), 4, collate_fn=collate,
                      sampler=DistributedSampler(Rows(), shuffle=False))


def watched(loss, batches, net=nn.Linear, wrap=DistributedDataParallel):
    """Train, by `loss(model, X, y)` or by a function that sets gradients; report."""
    torch.manual_seed(0)
    net = net(5, 3)
    model = wrap(net) if wrap else net
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    followed = watch(model, optimizer)
    for X, y in batches:
        optimizer.zero_grad()
        if (value := loss(model, X, y)) is not None:
            value.backward()
        optimizer.step()
    followed.finish()
    return followed.report and (
        [f.code for f in followed.report.findings],
        [words.partition(":")[0] for words in followed.report.unchecked])


def plain(model, X, y):
    return F.cross_entropy(model(X), y)


def dense(model, X, y):
    return plain(model, X.to_dense(), y)


def unbound(model, X, y):
    return plain(model, torch.stack([row.mean(0) for row in X.unbind()]), y)


def unpacked(model, X, y):
    return plain(model, nn.utils.rnn.pad_packed_sequence(X)[0].mean(0), y)


def edge(model, X, y):
    loss = plain(model, X, y)
    torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss),
                            torch.ones(()))


def batched(model, X, y):
    rows = F.cross_entropy(model(X), y, reduction="none")
    double = 2 * rows
    torch.autograd.grad(double, rows, torch.eye(4), is_grads_batched=True,
                        retain_graph=True)
    return rows.mean()


def scripted(model, X, y):
    return torch.jit.script(nn.CrossEntropyLoss())(model(X), y)


def of_each_row(net, X, y):
    def loss(params, x, label):
        return F.cross_entropy(functional_call(net, params, (x[None],)), label[None])
    own = {name: p.detach() for name, p in net.named_parameters()}
    for name, each in vmap(grad(loss), (None, 0, 0))(own, X, y).items():
        net.get_parameter(name).grad = each.mean(0)
        dist.all_reduce(net.get_parameter(name).grad)
        net.get_parameter(name).grad /= dist.get_world_size()


def sparse(X):
    return X.to_sparse()


def nested(X):
    return torch.nested.nested_tensor([x.expand(1 + i % 2, 5) for i, x in enumerate(X)])


def packed(X):
    return pack_sequence([x.expand(2, 5) for x in X])


def reports():
    return [watched(plain, loader()),
            watched(plain, DataLoader(Own(), 4)),
            watched(dense, loader(sparse)),
            watched(dense, loader(lambda X: X.to_sparse_csr())),
            watched(plain, loader(sparse), Sparse),
            watched(unbound, loader(nested)),
            watched(unpacked, loader(packed)),
            watched(edge, loader()),
            watched(batched, loader()),
            watched(scripted, loader()),
            watched(of_each_row, loader(), wrap=None)]


ROWS, LOSS = "the rows that no rank saw", "whether the loss is divided rightly"


@pytest.mark.filterwarnings("ignore")
def test_no_right_script_is_broken_or_accused():
    plainly, own, *changed, unknown, batches, in_script, by_row = run_ranks(
        reports, 2, timeout=120)[0]
    assert plainly == batches == ([], [])
    assert own == ([], [ROWS])
    assert changed == [([], [ROWS])] * 5
    assert unknown == in_script == ([], [LOSS])
    assert by_row == ([], [ROWS, "whether gradients are averaged"])
