"""`check_ranks` compares what ranks hold, at any time, and changes nothing."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import check_ranks
from manual_dp.ranks import run_ranks

ROWS = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))


def made():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    net(ROWS).sum().backward()
    optimizer.step()
    return net, optimizer


def moved(net, optimizer):
    net[0].bias.data[0] += 1e-6


def broken(net, optimizer):
    net[2].weight.data[0, 0] = float("inf")


CHANGES = [
    (lambda net, optimizer: None, []),
    (moved, ["replicas-differ"]),
    (lambda net, optimizer: net.eval(), ["settings"]),
    (lambda net, optimizer: net[0].bias.requires_grad_(False), ["settings"]),
    (lambda net, optimizer: net[1].running_var.add_(1), ["buffers"]),
    (lambda net, optimizer: optimizer.param_groups[0].update(lr=0.2), ["settings"]),
    (broken, ["not-finite", "replicas-differ"]),
]


def checked():
    """Return what is found in each case, and whether weights stay as they were."""
    found, rank = [], dist.get_rank()
    for change, _ in CHANGES:
        net, optimizer = made()
        if rank:
            change(net, optimizer)
        before = [p.clone() for p in net.parameters()]
        found.append([(f.code, f.rank) for f in check_ranks(net, optimizer=optimizer)])
        assert all(map(torch.equal, before, net.parameters()))
    net, optimizer = made()
    for batch in (ROWS[rank::2], (ROWS, torch.ones(8))):
        found.append([(f.code, f.says) for f in check_ranks([net, net], batch)])
    return found


def test_what_differs_is_named_on_every_rank():
    ranks = run_ranks(checked, 2)
    assert ranks[0] == ranks[1]
    for found, (_, codes) in zip(ranks[0], CHANGES):
        assert [code for code, _ in found] == codes
        assert all(rank == 1 for _, rank in found)
    assert ranks[0][-2:] == [[], [("rows-same", "8 rows are on all ranks")]]


def under_ddp():
    model = DistributedDataParallel(made()[0])
    scripted = torch.jit.script(made()[0])
    return check_ranks(model), check_ranks(scripted), check_ranks([])


def test_a_wrapped_and_a_scripted_model_are_checked():
    assert run_ranks(under_ddp, 3) == [([], [], [])] * 3


def alone():
    if dist.get_rank() == 1:
        return ""
    with pytest.raises(RuntimeError) as error:
        check_ranks(nn.Linear(1, 1), timeout=0.5)
    return str(error.value)


def test_a_rank_that_does_not_come_is_named():
    assert run_ranks(alone, 2)[0] == (
        "check_ranks: rank 1 did not come to call 1 within 0.5 s"
    )


def refused():
    said = []
    net = nn.Linear(1, 1)
    for arguments in ([3], [net, torch.optim.SGD(net.parameters(), 0.1)]):
        with pytest.raises(TypeError) as error:
            check_ranks(*arguments)
        said.append(str(error.value))
    return said


def test_what_is_no_model_and_no_batch_is_refused():
    assert run_ranks(refused, 1)[0] == [
        "model must be a module, got int",
        "batch must be a nest of tensors, got SGD",
    ]
    with pytest.raises(RuntimeError, match="there is no process group"):
        check_ranks(nn.Linear(1, 1))
