import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.school.tools.linear import (
    descend,
    draw_batch,
    draw_layer,
    gradients,
    loss,
)

DRAWS = random.Random(0)
PARAMS = [torch.tensor(p, dtype=torch.float64) for p in draw_layer(DRAWS)]
BATCHES = [draw_batch(DRAWS, rows) for rows in (3, 1, 5)]
X = torch.tensor([x for X, _ in BATCHES for x in X], dtype=torch.float64)
Y = torch.tensor([label for _, y in BATCHES for label in y])


def test_factors_of_one_over_all_rows_make_the_mean_loss_of_all_rows():
    whole = F.cross_entropy(X @ PARAMS[0].T + PARAMS[1], Y)
    assert loss(PARAMS, BATCHES, [1 / 9] * 3).item() == pytest.approx(whole.item())


def test_without_factors_every_batch_counts_alike():
    means = [loss(PARAMS, [batch]).item() for batch in BATCHES]
    assert loss(PARAMS, BATCHES).item() == pytest.approx(sum(means) / 3)


def test_tanh_stands_between_two_layers():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    F.cross_entropy(model(X[:3]), Y[:3]).backward()
    grads = gradients([p.tolist() for p in model.parameters()], BATCHES[:1])
    torch.testing.assert_close(list(grads), [p.grad for p in model.parameters()])


def test_steps_are_those_of_sgd_and_write_into_nothing():
    model, before = nn.Linear(3, 4).double(), [p.clone() for p in PARAMS]
    model.load_state_dict(dict(zip(("weight", "bias"), before)))
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for after, (rows, labels) in zip(descend(PARAMS, [[b] for b in BATCHES], 0.3),
                                     BATCHES, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.tensor(rows, dtype=torch.float64)),
                        torch.tensor(labels)).backward()
        optimizer.step()
        torch.testing.assert_close(after, [p.data for p in model.parameters()])
    torch.testing.assert_close(PARAMS, before, rtol=0, atol=0)


def test_as_many_factors_as_batches_are_wanted():
    with pytest.raises(ValueError, match="zip"):
        loss(PARAMS, BATCHES, [1.0])
