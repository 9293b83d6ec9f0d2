"""Rows that are missed, repeated or shared are counted; samplers must fit together."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import rules
from manual_dp.audit.records import Evidence, Run, Sampler, Step
from manual_dp.audit.rows import batches, rows, samplers
from tests.support.scripted import report_on


def evidence(*lists, size=6, batch=(7, 7), copies={}):  # noqa: B006 (not changed)
    """Return the evidence of ranks that saw these lists of rows in step 0."""
    return Evidence([Run(["w"], [(2,)], [Step(0, batch=one, size=size, copies=copies,
                                              all_rows=list(mine))])
                     for one, mine in zip(batch, lists)])


@pytest.mark.parametrize("lists, found", [
    ([[[0, 2, 4]], [[1, 3, 5]]], []),
    ([[[0, 1], [2]], [[3], [4, 5]]], []),
    ([[None], [[0]]], []), ([[], []], []),
    ([[[0, 1]], [[0, 1]]], [("rows-same", 2)]),
    ([[[0, 1, 2, 3]], [[3, 4, 5]]], [("rows-overlap", 1)]),
    ([[[0, 1, 2]], [[2, 3, 4]]], [("rows-overlap", 1)]),
    ([[[0, 1, 1]], [[3, 4, 5]]], [("rows-repeated", 1)]),
    ([[[0, 1], [1, 2]], [[3, 4, 5]]], [("rows-repeated", 1)]),
    ([[[0, 1]], [[3, 4]]], [("rows-missed", 2)])])
def test_every_row_is_wanted_once(lists, found):
    assert [(f.code, f.number) for f in rows(evidence(*lists))] == found


def test_rows_that_others_took_the_place_of_are_said_in_one_finding_with_them():
    def says(*lists):
        [one] = rows(evidence(*lists))
        return one.says.partition("; ")[2], one.cause
    for lists, missed in (([[[0, 1]], [[0, 1]]], "4 rows of 6: 2, 3, 4, 5"),
                          ([[[0, 1, 2]], [[2, 3, 4]]], "1 rows of 6: 5"),
                          ([[[0, 1, 1]], [[3, 4, 5]]], "1 rows of 6: 2")):
        words, cause = says(*lists)
        assert words == f"no rank sees {missed}" and "tail" not in cause
    [alone] = rows(evidence([[0, 1]], [[3, 4]]))
    assert alone.says == "no rank sees 2 rows of 6: 2, 5" and "tail" in alone.cause


def test_equal_rows_of_a_minibatch_have_one_place_and_are_no_mistake():
    def codes(*lists):
        return [f.code for f in rows(evidence(*lists, copies={0: 2}))]
    assert codes([[0, 2, 4]], [[0, 3, 5]]) == codes([[0, 0, 4]], [[2, 3, 5]]) == []
    assert codes([[0, 0, 0, 4]], [[2, 3, 5]]) == ["rows-repeated"]
    assert codes([[0, 2, 4]], [[0, 4, 5]]) == ["rows-overlap"]


@pytest.mark.parametrize("t, last, remarks", [
    (0, 5, ["rows on several ranks in step 0: 1; right if some are equal, or drawn with "
            "replacement"]), (1, 5, []), (0, 4, [])])
def test_rows_in_a_script_that_are_on_several_ranks_are_said_once(t, last, remarks):
    notes = [Step(t, all_rows=[rows]) for rows in ([1, 2, 3, 4, last], [5, 6, 7, 8, 9])]
    seen = Evidence([Run(["w"], [(2,)], [note]) for note in notes])
    assert rows(seen) == [] and seen.remarks == remarks


def test_rows_in_a_script_may_be_equal_by_chance():
    notes = [Step(0, all_rows=[rows]) for rows in ([1, 2, 3, 4, 5], [5, 6, 7, 8, 9])]
    assert rows(Evidence([Run(["w"], [(2,)], [note]) for note in notes])) == []
    notes[1].all_rows = [[1, 2, 3, 4, 6]]
    [one] = rows(Evidence([Run(["w"], [(2,)], [note]) for note in notes]))
    assert (one.code, one.number) == ("rows-overlap", 4)
    notes[1].all_rows = [[6, 6, 7]]
    assert rows(Evidence([Run(["w"], [(2,)], [note]) for note in notes])) == []


def test_another_minibatch_is_the_only_finding():
    other = evidence([[0]], [[0]], batch=(1, 2))
    assert rows(other) == [] and [f.code for f in batches(other)] == ["batches-differ"]


def told(rank, **changes):
    return Sampler(**{"of": 1, "rows": 12, "seed": 0, "epoch": 0, "shuffle": True,
                      "world_size": 2, "rank": rank, **changes})


@pytest.mark.parametrize("lists, codes", [
    ([[told(0)], [told(1)]], []),
    ([[told(0)], [told(1, seed=1)]], ["sampler-seed"]),
    ([[told(0, shuffle=False)], [told(1, shuffle=False, seed=1)]], []),
    ([[told(0)], [told(1, epoch=1)]], ["sampler-epoch"]),
    ([[told(0)], [told(1, rows=13)]], ["sampler-settings"]),
    ([[told(0)], [told(0)]], ["sampler-settings"]),
    ([[told(0, world_size=3)], [told(1, world_size=3)]], ["sampler-settings"]),
    ([[told(0)] * 2, [told(1)] * 2], ["sampler-epoch"]),
    ([[told(0), told(0, epoch=1)], [told(1), told(1, epoch=1)]], []),
    ([[told(0), told(0, of=2)], [told(1), told(1, of=2)]], [])])
def test_samplers_share_all_but_the_rank_and_get_a_new_epoch(lists, codes):
    seen = Evidence([Run(["w"], [(2,)], [], samplers=mine) for mine in lists])
    assert [f.code for f in samplers(seen)] == codes


@pytest.mark.parametrize("one, watched, said", [
    (told(0, told=False), True, True), (told(0, told=True), True, False),
    (told(0), True, False), (told(0, told=False), False, False),
    (told(0, told=False, shuffle=False), True, False)])
def test_a_script_that_never_says_set_epoch_hears_that_its_epochs_were_not_seen(
        one, watched, said):
    seen = Evidence([Run(["w"], [(2,)], [], samplers=[one._replace(rank=rank)])
                     for rank in range(2)], watched=watched)
    assert samplers(seen) == [] and len(seen.unchecked) == said
    assert all("set_epoch was not called" in words for words in seen.unchecked)


def test_rows_have_numbers_only_where_the_minibatch_is_known():
    def says(size):
        notes = [Step(size=size, all_rows=[[0, 1]]), Step(size=size, all_rows=[[1, 2, 2]])]
        evidence = Evidence([Run(["w"], [(2,)], [note]) for note in notes])
        return [f.says for f in rules.judge(evidence)[0]]
    assert says(3) == ["rank 1 sees row 2 2 times, and 0 more so",
                       "1 rows of 3 on several ranks: row 1 on ranks 0 and 1"]
    assert says(0) == ["rank 1 sees a row 2 times, and 0 more so",
                       "1 rows on several ranks: one of them on ranks 0 and 1"]


def test_rows_that_a_sampler_dealt_out_are_equal_where_several_ranks_have_them():
    notes = [Step(0, all_rows=[rows]) for rows in ([1, 2, 3, 4, 5], [5, 6, 7, 8, 9])]
    seen = Evidence([Run(["w"], [(2,)], [note]) for note in notes], watched=True)
    assert rows(seen) == [] and seen.remarks == []
    notes[1].lost = "no DistributedSampler of torch's dealt them out"
    assert rows(seen) == [] and len(seen.remarks) == 1


class Taste(nn.Module):
    """Say how well a user likes a film."""

    def __init__(self):
        super().__init__()
        self.users, self.films = nn.Embedding(9, 4), nn.Embedding(9, 4)

    def forward(self, user, film):
        return (self.users(user) * self.films(film)).sum(1)


def of_users(sampler):
    """Return a script whose rows are whole numbers alone."""
    def going():
        draws = torch.Generator().manual_seed(0)
        data = TensorDataset(*torch.randint(9, (2, 64), generator=draws), torch.ones(64))
        model = DistributedDataParallel(Taste())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        yield model, optimizer
        for user, film, y in DataLoader(data, 16, sampler=sampler(data)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(user, film), y).backward()
            optimizer.step()
    return going


@pytest.mark.parametrize("sampler, found", [
    (lambda data: DistributedSampler(data, shuffle=False), []),
    (SequentialSampler, ["rows-same"])])
def test_rows_of_whole_numbers_alone_are_the_same_or_dealt_out(sampler, found):
    codes, said, _ = report_on(of_users(sampler))[0]
    assert codes == found, said
    assert ("the rows that no rank saw" in said) == bool(found), said
