"""In an audit all is float64 and nothing is dropped; afterwards all is as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.audit.exact import DRAWS, DROPOUTS, Drawing, exact
from manual_dp.audit.records import Step
from tests.support.broken_training import net

ONES = torch.ones(4, 6, 3, 2, 2, dtype=torch.float64)


@pytest.fixture
def dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def left_out(dtype):
    with exact() as left_out:
        yield left_out


def test_new_tensors_and_modules_are_float64(left_out):
    assert torch.ones(2).dtype == nn.Linear(2, 2).weight.dtype == torch.float64
    assert net().float()[0].weight.dtype == torch.float64


@pytest.mark.parametrize("name", DROPOUTS)
def test_no_function_drops_and_each_is_noted(left_out, name):
    drop = getattr(F, name)
    assert torch.equal(drop(ONES, 0.5, training=True), ONES) and left_out == [0.5]
    drop(ONES, 0.5, training=False)
    drop(ONES, 0.0, training=True)
    assert left_out == [0.5]


def test_every_dropout_of_torchs_is_known():
    public = {name for name in dir(F) if "dropout" in name and not name.startswith("_")}
    assert public == {*DROPOUTS}


def test_no_module_drops_nor_does_attention(left_out):
    assert torch.equal(nn.Dropout(0.9)(ONES), ONES)
    query = torch.rand(2, 5, 4)
    one, other = (F.scaled_dot_product_attention(query, query, query, dropout_p=p)
                  for p in (0.0, 0.9))
    assert torch.equal(one, other)


def test_autocast_is_off(left_out):
    ones = torch.ones(2, 2, dtype=torch.float32)  # what is float64 is never cast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (ones @ ones).dtype == torch.float32


def test_afterwards_all_but_the_default_dtype_is_as_it_was(dtype):
    def patched():
        return (*(getattr(F, name) for name in DROPOUTS), nn.Module.float,
                F.scaled_dot_product_attention, torch.autocast.__init__,
                nn.parallel.DistributedDataParallel.__init__)
    before = patched()
    with exact():
        assert all(map(lambda one, other: one is not other, patched(), before))
    assert patched() == before


# what is drawn

def drawing(act):
    """Return the note of a step in which `act()` is called."""
    note, real = Step(0), torch.manual_seed
    with Drawing(note):
        act()
    assert torch.manual_seed is real
    return note


@pytest.mark.parametrize("act, draws", [
    (lambda: torch.rand(2), True), (lambda: torch.ones(2).normal_(), True),
    (lambda: torch.rand_like(ONES), True), (lambda: torch.randperm(3), True),
    (lambda: random.random(), True), (lambda: np.random.rand(), True),
    (lambda: F.rrelu(ONES, training=True), True),
    (lambda: torch.ones(2).exp(), False), (lambda: random.Random(0).random(), False)])
def test_whoever_draws_is_noted(act, draws):
    assert drawing(act).draws is draws


def test_every_name_that_draws_is_torchs():
    homes = torch, torch.Tensor, F
    assert all(any(hasattr(home, name) for home in homes) for name in DRAWS)


def test_seeds_are_noted_in_their_order():
    def act():
        torch.manual_seed(3)
        torch.manual_seed(torch.tensor(5))
    assert drawing(act).seeded == (3, 5)


def test_float32_that_is_asked_for_becomes_float64(dtype):
    found = []
    drawing(lambda: found.extend([
        ONES.float(), ONES.to(torch.float32), torch.ones(2, dtype=torch.float32),
        torch.as_tensor([1, 2]).to(dtype=torch.float32)]))
    assert {t.dtype for t in found} == {torch.float64}
