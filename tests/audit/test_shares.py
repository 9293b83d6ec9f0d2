"""A script's ranks share out the parameters among their optimizers, as ZeRO does."""

import pytest
import torch
import torch.distributed as dist

from manual_dp.audit.records import Step
from manual_dp.audit.shares import put_back
from tests.support.broken_training import average, mean_loss, net
from tests.support.scripted import batches, report_on


def sharing(clear="to_none", send=average, after=lambda model, owners: None,
            step=lambda params: None, giver=lambda i, owner: owner):
    """Return a script whose rank r applies the gradients of every other parameter."""
    def script():
        model, rank = net(), dist.get_rank()
        params = list(model.parameters())
        owners = [i % 2 for i in range(len(params))]
        optimizer = torch.optim.Adam(
            [p for p, owner in zip(params, owners) if owner == rank], 0.01)
        yield model, optimizer
        for X, y in batches():
            if clear == "to_none":
                for p in params:
                    p.grad = None
            else:
                for p in params:
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad.zero_()
            mean_loss(model, X, y).backward()
            send(model)
            optimizer.step()
            step(params)
            for i, (p, owner) in enumerate(zip(params, owners)):
                dist.broadcast(p.data, giver(i, owner))
            after(model, owners)
    return script


@pytest.mark.parametrize("clear", ["to_none", "to_zero"])
def test_ranks_that_apply_a_share_for_all_are_right(clear):
    codes, said, _ = report_on(sharing(clear))[0]
    assert codes == [], said
    assert "local SGD" not in said and "cleared" not in said


def summed(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def sent_by_one(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 1 if p.dim() > 1 else 2


@pytest.mark.parametrize("send, code", [
    (summed, "sum"), (sent_by_one, "sum"), (lambda model: None, "not-synchronised")])
def test_what_they_apply_must_be_the_mean(send, code):
    codes, said, _ = report_on(sharing(send=send))[0]
    assert codes[:1] == [code], said


def test_weights_that_others_get_otherwise_are_found():
    def after(model, owners):
        if dist.get_rank():
            next(model.parameters()).data += 1
    codes, said, _ = report_on(sharing(after=after))[0]
    assert codes, said


def test_weights_that_come_from_a_rank_which_has_another_share_are_found():
    codes, said, _ = report_on(sharing(giver=lambda i, owner: i // 2 % 2))[0]
    assert codes == ["weights-changed"], said
    said = " ".join(said.split())
    assert "is what it was before the step: rank 0 alone steps it, and got it back" in said
    assert "local SGD" not in said


@torch.no_grad()
def clamp(params):
    for p in params:
        p.clamp_(-0.1, 0.1)


def test_weights_that_their_rank_changes_before_it_sends_them_are_not_lost():
    codes, said, _ = report_on(sharing(step=clamp))[0]
    assert "weights-changed" not in codes and "local SGD" in said, said


def notes(*stepped, before=(1, 2), after=(1, 5)):
    return [Step(0, stepped=one, before=before and [*before], after=[*after])
            for one in stepped]


@pytest.mark.parametrize("given, parameter", [
    (notes({0: 3}, {1: 5}), "a"), (notes({0: 3}, {1: 5}, after=(3, 2)), "b"),
    (notes({0: 1}, {1: 5}), None), (notes({0: 3}, {0: 3, 1: 5}), None),
    (notes({0: 3}, {1: 5}, before=None), None), (notes({0: 3}, {1: 5}, after=(4, 5)), None)],
    ids=["the first", "the second", "nothing to move", "no shares", "not known", "moved on"])
def test_new_weights_of_one_rank_must_not_be_the_old_ones(given, parameter):
    found = put_back(given, ["a", "b"])
    assert (found and found.parameter) == parameter
