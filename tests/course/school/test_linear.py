"""The linear model that exercises train: its loss, its gradients, its steps."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course.school.linear import (
    KINDS,
    Forwards,
    descend,
    draw_batch,
    draw_layer,
    gradients,
    optimizer,
)

DRAWS = random.Random(0)
PARAMS = draw_layer(DRAWS)
BATCHES = [draw_batch(DRAWS, rows) for rows in (3, 1, 5)]
X, Y = (torch.cat(parts) for parts in zip(*BATCHES))


def test_tanh_stands_between_two_layers():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    F.cross_entropy(model(X[:3]), Y[:3]).backward()
    grads = gradients([p.tolist() for p in model.parameters()], BATCHES[:1])
    torch.testing.assert_close(list(grads), [p.grad for p in model.parameters()])


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_steps_are_those_of_a_model_with_that_optimizer_and_write_into_nothing(kind):
    model, before = nn.Linear(3, 4).double(), [p.clone() for p in PARAMS]
    model.load_state_dict(dict(zip(("weight", "bias"), before)))
    rule = optimizer(kind, model.parameters(), 0.3)
    steps = descend(PARAMS, [[batch] for batch in BATCHES], 0.3, kind)
    for after, (rows, labels) in zip(steps, BATCHES, strict=True):
        rule.zero_grad()
        F.cross_entropy(model(rows), labels).backward()
        rule.step()
        torch.testing.assert_close(after, [p.data for p in model.parameters()])
    torch.testing.assert_close(PARAMS, before, rtol=0, atol=0)


@pytest.mark.parametrize("keep", [True, False])
def test_only_a_graph_that_somebody_keeps_is_held(keep):
    model = nn.Linear(3, 4).double()
    forwards, losses = Forwards(model), []
    with forwards:
        for _ in range(2):
            losses.append(F.cross_entropy(model(X), Y))
            losses = losses if keep else []
    assert (forwards.seen["held"] > 0) == keep
