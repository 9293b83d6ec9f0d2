"""Rows are known again by their bits; samplers and loaders tell who dealt them out."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, dataloader

from manual_dp.audit.notes import Run, Update
from manual_dp.audit.rows import (
    Dealing,
    Minibatch,
    _some,
    epochs,
    hashes,
    rows_of_data,
    rows_of_step,
    uneven,
)

G = torch.Generator().manual_seed(0)
X, Y = torch.rand(6, 5, generator=G), torch.arange(6) % 3


def test_rows_are_known_again_by_their_places():
    batch = Minibatch({"x": X, "y": Y, "scale": torch.ones(())})
    assert batch.size == 6
    assert batch.find([X[[4, 0]]]) == [4, 0]
    assert batch.find([torch.rand(2, 5, generator=G), X[1:3]]) == [1, 2]
    assert batch.find([torch.rand(2, 5, generator=G)]) is None
    assert batch.find([]) is None


def test_the_hash_of_a_minibatch_is_another_one_if_a_row_is():
    assert Minibatch((X, Y)).whole == Minibatch((X.clone(), Y)).whole
    assert Minibatch((X, Y)).whole != Minibatch((X, Y.flip(0))).whole


def test_equal_rows_and_odd_nests_are_of_unknown_places():
    assert Minibatch(torch.zeros(3, 2)).places == {}
    assert Minibatch([torch.ones(1), torch.ones(2), torch.ones(3)]).size == 0


def test_a_forwards_largest_input_tells_its_rows():
    assert hashes([Y, X]) == hashes([X]) and len(hashes([X])) == 6
    assert hashes([Y]) is None


# rows over ranks


def of(*ranks, size=6, came=(), samplers=(), reads=()):
    """Return what `shared` says of ranks that saw these rows of 6, or is not checked."""
    us = [Update(rows=[list(rows)], batch=(size, 1)) for rows in ranks]
    for u, piece in zip(us, came):
        u.pieces = [piece]
    step = SimpleNamespace(
        updates=[[u] for u in us],
        first=us,
        world_size=len(ranks),
        look_at=[],
        runs=[SimpleNamespace(samplers=samplers, reads=reads)],
        rows=lambda some: None if None in some[0].rows else some[0].rows[0],
        far=lambda sketches: float((sketches[0] - sketches[1]).norm()),
    )
    return [(f.code, f.says) for f in rows_of_step(step)] + step.look_at


@pytest.mark.parametrize(
    "ranks, code, words",
    [
        ([(0, 1, 2), (3, 4, 5)], None, ""),
        ([(0, 2, 4), (1, 3, 5)], None, ""),
        ([(0, 1, 2), (0, 1, 2)], "rows-same", "the same 3 rows; no rank sees 3 of 6"),
        ([(0, 1, 2), (2, 3, 4)], "rows-overlap", "several ranks; no rank sees 1 of 6"),
        ([(0, 1), (2, 3)], "rows-overlap", "no rank sees 2 of 6 rows"),
        ([(0, 1, 2, 3, 4, 5)], None, ""),
    ],
)
def test_ranks_share_out_the_rows(ranks, code, words):
    found = of(*ranks)
    assert [one for one, _ in found] == ([code] if code else [])
    assert not code or words in found[0][1]


def test_ranks_that_take_parts_of_the_same_rows_are_left_alone():
    a, b = torch.ones(2, 16), torch.zeros(2, 16)
    assert of((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5), came=[a, b]) == []
    assert of((0, 1), (0, 1), came=[a, a])[0][0] == "rows-same"


def test_rows_of_several_ranks_are_not_checked_in_a_script_unless_they_fill_up():
    [why] = of((0, 1, 2), (2, 3, 4), size=0)
    assert why.startswith("the rows: some of a step are on several ranks")
    assert of((0, 1, 2), (2, 3, 4), size=0, samplers=[{}]) == []
    assert of((0, 1, 2), (2, 3, 4), size=0, reads=[(4, 6, [])]) == []  # told apart
    assert of((0, 1, 2), (3, 4, 5), size=0) == []


def test_ranks_that_are_given_other_minibatches_are_told():
    us = [Update(batch=(6, rank)) for rank in range(2)]
    step = SimpleNamespace(updates=[[u] for u in us], first=us, rows=lambda us: None)
    assert [f.code for f in rows_of_step(step)] == ["sampler-differs"]


# samplers and loaders


def run(
    rank=0,
    world_size=2,
    epochs=(0,),
    data=(X, Y),
    sampled=True,
    renew=True,
    shuffle=True,
    taken=2,
    **options,
):
    """Return the Run of a rank that trained for some epochs, `taken` rows a step."""
    dealing, data = Dealing(lambda *begins: None), TensorDataset(*data)
    sampler = DistributedSampler(
        data,
        **{"num_replicas": world_size, "rank": rank, "shuffle": shuffle, **options},
    )
    loader = DataLoader(
        data, 2, **({"sampler": sampler} if sampled else {"shuffle": shuffle})
    )
    with ExitStack() as stack:
        for patch in dealing.hooks():
            stack.enter_context(patch)
        for epoch in epochs:
            if renew:
                sampler.set_epoch(epoch)
            for _ in loader:
                dealing.trained()
    steps = [Update(rows=[[*range(taken)]])]
    return Run([], [], steps, dealing.told, reads=dealing.read())


@pytest.mark.parametrize(
    "how, code, words",
    [
        ([{}, {}], None, ""),
        ([{"epochs": (0, 1)}] * 2, None, ""),
        ([{"shuffle": False, "renew": False}] * 2, None, ""),
        ([{}, {"seed": 1}], "sampler-differs", "seed is [0, 1]"),
        ([{}, {"epochs": (1,)}], "sampler-epoch", "epoch is [0, 1]"),
        ([{}, {"rank": 0}], "sampler-differs", "ranks [0, 0] of 2"),
        ([{"world_size": 3}] * 2, "sampler-differs", "of 3, not 0 to 1"),
        ([{"renew": False}] * 2, None, ""),
        ([{"renew": False, "epochs": (0, 0)}] * 2, "sampler-epoch", "a second epoch"),
        ([{"sampled": False}] * 2, "no-sampler", "all 6 rows"),
        ([{"sampled": False, "shuffle": False}] * 2, "no-sampler", "all 6 rows"),
        ([{"sampled": False, "taken": 1}] * 2, None, ""),  # half of each batch
        ([{"sampled": False}, {"sampled": False, "data": (X + 1, Y)}], None, ""),
        ([{}, {"data": (X.flip(0), Y)}], "sampler-differs", "is not rank 0's"),
        ([{}, {"data": (X, (Y + 1) % 3)}], "sampler-differs", "label"),
    ],
)
def test_one_order_is_cut_into_shares(how, code, words):
    runs = [run(**{"rank": rank, **one}) for rank, one in enumerate(how)]
    found = [*rows_of_data(runs, []), *epochs(runs, [])]
    assert [f.code for f in found][:1] == ([code] if code else [])
    assert not code or words in found[0].says


def test_the_row_that_differs_is_the_one_that_was_read():
    reads = [[("shares", 20, [["a"]] * 7 + [[last]])] for last in "ab"]
    runs = [Run([], [], [], [], reads=mine) for mine in reads]
    [found] = rows_of_data(runs, [])
    assert found.says.startswith("row 17 of the dataset on rank 1")  # 7 * 20 // 8


def test_a_loader_of_all_rows_that_gave_ranks_others_is_only_looked_at():
    runs, look_at = [run(rank, sampled=False) for rank in range(2)], []
    runs[1].updates[0].rows = [[2, 3]]
    assert rows_of_data(runs, look_at) == []
    assert "all 6 rows" in look_at[0] and "an epoch has each row 2 times" in look_at[0]


@pytest.mark.parametrize(
    "rows, said", [(([1, 2], [3]), "2, 1"), (([1], [2]), ""), (([1], None), "")]
)
def test_ranks_with_more_rows_than_others_are_told(rows, said):
    runs = [Run([], [], [Update(rows=[mine])], []) for mine in rows]
    assert uneven(runs) == said


def test_reading_rows_draws_nothing():
    before = torch.get_rng_state()
    assert len(_some(TensorDataset(X, Y))[1]) == 8
    assert torch.equal(before, torch.get_rng_state())


def test_a_loader_that_validates_does_not_count():
    dealing, data = Dealing(lambda *begins: None), TensorDataset(X, Y)
    sampler = DistributedSampler(data, 2, 0)
    with ExitStack() as stack:
        for patch in dealing.hooks():
            stack.enter_context(patch)
        training = iter(DataLoader(data, 1, sampler=sampler))
        for _ in range(2):
            next(training)
            dealing.trained()
            next(iter(DataLoader(data, 1)))
    assert len(dealing.loaders) == 1


def test_hooks_are_taken_away_again():
    before = DistributedSampler.__iter__, dataloader._BaseDataLoaderIter.__next__
    run()
    assert before == (
        DistributedSampler.__iter__,
        dataloader._BaseDataLoaderIter.__next__,
    )


def test_a_loader_that_trains_and_has_not_run_out_is_in_its_first_epoch():
    dealing = Dealing(lambda *begins: None)
    with ExitStack() as stack:
        for patch in dealing.hooks():
            stack.enter_context(patch)
        other, turn = DataLoader(X, 3), iter(DataLoader(X, 3))
        next(turn)
        assert not dealing.in_first_epoch()  # it has not trained anything
        dealing.trained()
        assert dealing.in_first_epoch()
        assert len(list(other)) == 2 and dealing.in_first_epoch()
        assert len(list(turn)) == 1 and not dealing.in_first_epoch()


@pytest.mark.parametrize("workers", [0, 1])
def test_that_a_loader_has_workers_is_noted(workers):
    dealing = Dealing(lambda *begins: None)
    with ExitStack() as stack:
        for patch in dealing.hooks():
            stack.enter_context(patch)
        list(DataLoader(X, 3, num_workers=workers))
    assert dealing.workers == bool(workers)
