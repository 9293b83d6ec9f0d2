"""notebooks/programs/who_calls_whom.py: it notes the calls of a wrapper, and draws them."""

import re

import torch
from programs import who_calls_whom  # notebooks/programs
from programs.who_calls_whom import Call
from torch import nn


class Once(nn.Module):
    """Be a wrapper on one rank: its mean is ten times the gradient."""

    def __init__(self, module):
        super().__init__()
        self.module, self.queued, self.armed = module, False, False
        module.weight.register_post_accumulate_grad_hook(self.hook)

    def forward(self, X):
        self.armed = True
        return self.module(X)

    def hook(self, p):
        if self.armed and not self.queued:
            self.queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def finish(self):
        self.queued = self.armed = False
        self.module.weight.grad *= 10


def two_losses(model, X):
    a, b = model(X).sum(), model(X).sum()
    a.backward()
    b.backward()


def test_each_call_is_noted_with_the_gradient_and_whether_it_is_armed_then():
    net = nn.Linear(1, 1, bias=False)
    calls = who_calls_whom.record(Once, two_losses, net, torch.full((1, 1), 2.0))
    assert calls == [
        Call("forward 1", "", "arms itself", "none", 1),
        Call("forward 2", "", "is armed", "none", 1),
        Call("backward 1", "weight is ready", "hook: asks for finish", "2", 1),
        Call("", "all are ready", "finish, disarmed", "20", 0),
        Call("backward 2", "weight is ready", "hook: does nothing", "22", 0),
    ]


def test_a_drawing_says_each_call_once_and_the_gradients_of_all_ranks():
    ranks = [
        [Call("forward 1", "", "arms itself", "none", 1), Call("", "x", "y", g)]
        for g in ("1", "2")
    ]
    text = who_calls_whom.draw("Two ranks", *ranks).text
    said = re.findall("<text[^>]*>([^<]+)<", text)
    assert said[:4] == ["your loop", "autograd", "the wrapper", "gradients"]
    assert [words for words in said[4:] if words.strip()] == [
        *("forward 1", "arms itself", "none, none"),
        *("x", "y", "1, 2"),
    ]


def test_a_plan_has_the_gradients_in_their_order_and_no_numbers():
    text = who_calls_whom.plan(["b is ready", "a is ready"]).text
    assert text.index("b is ready") < text.index("a is ready")
    assert "gradients" not in text
