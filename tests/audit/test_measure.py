"""A rank measures what it does; what no audit can follow is refused."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import audit
from manual_dp.audit.measure import gather, measure, parts
from manual_dp.ranks import run_ranks
from tests.support.broken_training import case, ddp, mean_loss, net, ordinary, rows, sgd


@pytest.mark.parametrize("changes, error, words", [
    ({"make_model": lambda: 3}, TypeError, "make_model must return a module"),
    ({"make_model": lambda: (3, net())[:1]}, TypeError, "must return a module"),
    ({"make_batch": lambda t: None}, TypeError, r"make_batch\(0\) returned None")])
def test_what_cannot_be_followed_is_refused(changes, error, words):
    with pytest.raises(error, match=words):
        audit(**{**case(ddp, ordinary), **changes})


def test_models_are_told_from_averages_and_optimizers_from_the_rest():
    model, critic, average = net(), net(), net()
    (_, first), (_, second) = sgd(model), sgd(critic)
    schedule = torch.optim.lr_scheduler.ConstantLR(first)
    models, optimizers, others = parts([average, first, critic, second, schedule, model])
    # the first is the model, whoever holds its parameters
    assert models == [average, critic, model]
    assert optimizers == [first, second] and others == [schedule]
    assert parts([model, first, average])[0] == [model]


def test_every_rank_gets_every_ranks_value():
    assert run_ranks(lambda: gather(dist.get_rank()), 3) == [[0, 1, 2]] * 3


class Tied(nn.Module):
    """Have a parameter, and a buffer on its memory."""

    def __init__(self, shared):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5))
        self.register_buffer("empty", torch.ones(0))
        self.register_buffer("none", torch.ones(0))
        self.register_buffer("other", self.weight.data if shared else torch.ones(2))
        self.register_buffer("again", self.other)

    def forward(self, X):
        return X @ self.weight.T


def test_a_run_holds_what_one_rank_saw(tmp_path):
    def rank(shared):
        def make_model():
            return sgd(Tied(shared).requires_grad_(True))

        def step(model, optimizer, X, y):
            mean_loss(model, X, y).backward()
            optimizer.step()
            model.weight.data[0, 0] += 1
        return measure(make_model, rows(4), step, nn.functional.cross_entropy, len, 2,
                       f"{tmp_path}/diaries")
    [run] = run_ranks(rank, 1, False)
    assert (run.names, run.shapes, run.trainable) == (["weight"], [(3, 5)], 15)
    assert run.shared is None and run.drifts == []
    assert [note.t for note in run.steps] == [0, 1]
    first = run.steps[0]
    assert first.rows == [[0, 1, 2, 3]] and first.weight == 4
    assert torch.allclose(first.own / 4, first.used) and first.moved
    assert first.stepped[0] != first.after[0] and first.setup.names == ["weight"]
    [run] = run_ranks(rank, 1, True)
    assert run.shared == ("weight", "other")


def test_ddp_finds_float64_in_a_model_that_was_made_in_float32():
    def make_model():
        return sgd(DistributedDataParallel(net().float()))
    assert audit(**case(make_model, ordinary), steps=1).findings == []


def test_the_audit_sends_fewer_than_five_times_the_rows_through_the_model(tmp_path):
    class Counting(torch.nn.Linear):
        def forward(self, X):
            with open(tmp_path / "rows", "a") as file:
                file.write(f"{len(X)}\n")
            return super().forward(X)

    def make_model():
        return sgd(DistributedDataParallel(Counting(5, 3)))
    assert audit(make_model, rows(12), ordinary, steps=3).findings == []
    passed = sum(map(int, (tmp_path / "rows").read_text().split()))
    # 3 steps, and again for the gradients of the first; and so at world size 1
    assert passed == 12 * (3 + 1 + 3 + 1)
