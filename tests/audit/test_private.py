"""Without a private name of torch, the audit goes on and says what it cannot see."""

import pytest
import torch
from torch import nn

from manual_dp.audit import private
from manual_dp.audit.stands import last_call


@pytest.mark.parametrize("key", private.NAMES)
def test_torch_has_each_name_and_its_absence_is_said(key, monkeypatch):
    assert private.private(key) is not None
    _, name, words = private.NAMES[key]
    monkeypatch.setitem(private.NAMES, key, (object(), name, words))
    assert private.private(key) is None and private.missing() == [words]


def test_the_newest_hook_hears_what_came_before_all_others():
    weight, heard = torch.ones(2, requires_grad=True), []
    weight.register_hook(lambda grad: 2 * grad)
    weight.register_hook(lambda grad: heard.append(grad.tolist()))
    private.hear_first(weight)
    weight.sum().backward()
    assert heard == [[1, 1]] and weight.grad.tolist() == [2, 2]


def test_what_uses_them_works_without(monkeypatch):
    for key, (_, name, words) in private.NAMES.items():
        monkeypatch.setitem(private.NAMES, key, (object(), name, words))
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda grad: None)
    private.hear_first(weight)
    assert private.backward_number() == 0
    assert private.last_collective() is None
    assert private.loader_parts(object()) == (None, None)
    with pytest.raises(RuntimeError, match="does not hand out the process group's"):
        private.group_store()
    assert last_call() == "what it called last is not known"
    assert not private.has_parts([nn.BatchNorm1d(3)], "batch norm")
