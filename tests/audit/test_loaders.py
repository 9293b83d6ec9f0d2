"""What samplers are told and loaders give is heard."""

from contextlib import ExitStack

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.batch import Minibatch
from manual_dp.audit.loaders import Loaders


def heard(*acts):
    """Return `Loaders` that heard what happens in each act, and what it gave."""
    loaders = Loaders()
    with ExitStack() as stack:
        for hook in loaders.hooks():
            stack.enter_context(hook)
        gave = [act() for act in acts]
    return loaders, gave


@pytest.mark.parametrize("epochs, told", [([], False), ([0], True), ([3], True)])
def test_whether_a_sampler_was_told_of_an_epoch_is_known(epochs, told):
    sampler = DistributedSampler(range(8), 2, 0)
    loaders, _ = heard(*(lambda epoch=epoch: sampler.set_epoch(epoch) for epoch in epochs),
                       lambda: list(sampler))
    loaders.see([1])
    assert [one.told for one in loaders.samplers] == [told]


def test_an_epoch_that_was_set_before_anybody_heard_is_known_by_its_number():
    sampler = DistributedSampler(range(8), 2, 0)
    sampler.set_epoch(2)
    loaders, _ = heard(lambda: list(sampler))
    loaders.see([1])
    assert [one.told for one in loaders.samplers] == [True]


def sentences(batch):
    """Return what cannot be stacked: a list of tensors of other lengths."""
    return [torch.ones(1 + n, 2 + n) for n in batch]


@pytest.mark.parametrize("collate, why", [
    (sentences, "what the loader gave has no tensor with a row for each"),
    (torch.tensor, "on the way from the loader to the model they are changed, or no "
                   "longer the rows of one tensor")])
def test_why_rows_are_not_followed_is_said(collate, why):
    loader = DataLoader(range(8), 4, sampler=DistributedSampler(range(8), 2, 0),
                        collate_fn=collate)
    loaders, _ = heard(lambda: next(iter(loader)))
    loaders.see([12345])
    assert loaders.end() == why


@pytest.mark.parametrize("marks", [torch.rand(40), torch.arange(40) % 5])
def test_rows_of_users_and_films_are_followed(marks):
    users, films = torch.arange(40) % 7, torch.arange(40) // 7
    rows = TensorDataset(users, films, marks)
    loader = DataLoader(rows, 10, sampler=DistributedSampler(rows, 2, 0, shuffle=False))
    loaders, [(u, f, _)] = heard(lambda: next(iter(loader)))
    assert u.tolist() == [0, 2, 4, 6, 1, 3, 5, 0, 2, 4]
    assert not loaders.see(Minibatch().seen([f, u]))  # they are no rows of it
    assert loaders.see(Minibatch().seen([u[:9], f[:9]]))
    assert loaders.end() == "the loader gave 10 rows, of which the model saw 9"
    loaders, [(u, f, _)] = heard(lambda: next(iter(loader)))
    assert loaders.see(Minibatch().seen([u, f])) and loaders.end() == ""


def test_sentences_of_many_lengths_in_one_tensor_have_no_whole_numbers():
    loader = DataLoader(range(8), 4, sampler=DistributedSampler(range(8), 2, 0),
                        collate_fn=lambda batch: torch.nested.nested_tensor(
                            sentences(batch)))
    loaders, [batch] = heard(lambda: next(iter(loader)))
    assert batch.is_nested and len(loaders.batches) == 1
    assert loaders.batches[0].columns == loaders.batches[0].seen == []
