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
    loss,
    optimizer,
)

DRAWS = random.Random(0)
PARAMS = draw_layer(DRAWS)
BATCHES = [draw_batch(DRAWS, rows) for rows in (3, 1, 5)]
X, Y = (torch.cat(parts) for parts in zip(*BATCHES))


def test_factors_of_one_over_all_rows_make_the_mean_loss_of_all_rows():
    whole = F.cross_entropy(X @ PARAMS[0].T + PARAMS[1], Y)
    assert loss(PARAMS, BATCHES, [1 / 9] * 3).item() == pytest.approx(whole.item())


def test_without_factors_every_batch_counts_alike():
    means = [loss(PARAMS, [batch]).item() for batch in BATCHES]
    assert loss(PARAMS, BATCHES).item() == pytest.approx(sum(means) / 3)
    with pytest.raises(ValueError, match="zip"):
        loss(PARAMS, BATCHES, [1.0])


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


def test_each_kind_is_what_it_says():
    found = {kind: optimizer(kind, PARAMS, 0.1) for kind in KINDS}
    assert type(found["Adam"]) is torch.optim.Adam
    assert [found[kind].defaults["momentum"] for kind in ("SGD", "SGD with momentum")
            ] == [0, 0.9]


@pytest.mark.parametrize("keep", [True, False])
def test_only_a_graph_that_somebody_keeps_is_held(keep):
    model = nn.Linear(3, 4).double()
    forwards, losses = Forwards(model), []
    with forwards:
        for _ in range(2):
            losses.append(F.cross_entropy(model(X), Y))
            losses = losses if keep else []
    assert (forwards.seen["held"] > 0) == keep
