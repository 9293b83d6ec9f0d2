"""Optimizers by name, and the truth that steps with them."""

import random

import pytest
import torch

from manual_dp.school.tools.linear import descend, draw_batch, draw_layer
from manual_dp.school.tools.optimizers import KINDS, optimizer


def test_each_kind_is_what_it_says():
    p = torch.ones(1, requires_grad=True)
    found = {kind: optimizer(kind, [p], 0.1) for kind in KINDS}
    assert type(found["Adam"]) is torch.optim.Adam
    assert found["SGD"].defaults["momentum"] == 0
    assert found["SGD with momentum"].defaults["momentum"] == 0.9


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_the_truth_steps_as_a_model_with_that_optimizer(kind):
    draws = random.Random(0)
    params, steps = draw_layer(draws), [[draw_batch(draws, 3)] for _ in range(3)]
    model = torch.nn.Linear(3, 4, dtype=torch.float64)
    model.load_state_dict({name: torch.tensor(p, dtype=torch.float64) for name, p in
                           zip(("weight", "bias"), params)})
    rule = optimizer(kind, model.parameters(), 0.3)
    for ((X, y),), after in zip(steps, descend(params, steps, 0.3, kind)):
        rule.zero_grad()
        torch.nn.functional.cross_entropy(
            model(torch.tensor(X, dtype=torch.float64)), torch.tensor(y)).backward()
        rule.step()
        assert all(torch.allclose(p, q, rtol=0, atol=1e-12)
                   for p, q in zip(model.parameters(), after))
