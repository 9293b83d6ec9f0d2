"""The same rows on all ranks are seen behind what is drawn at random; others are not."""

import contextlib
import random
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    get_worker_info,
    random_split,
)

from manual_dp.audit import reads, watch
from manual_dp.audit.catalogue import finding
from manual_dp.audit.loaders import Loaders
from manual_dp.audit.reads import Order
from manual_dp.audit.records import Dealt, Evidence, Run, Step
from manual_dp.audit.rows import given, orders, workers
from manual_dp.ranks import run_ranks
from tests.support.scripted import report_on

N = 48
DRAWS = torch.Generator().manual_seed(0)
X, Y = torch.rand(N, 5, generator=DRAWS), torch.randint(3, (N,), generator=DRAWS)


class Plain(Dataset):
    """Hold rows and labels."""

    def __init__(self, X=X, y=Y):
        self.X, self.y, self.reads = X, y, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.reads += 1
        return self.X[i], self.y[i]


class Noisy(Plain):
    """Add other noise at each reading."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.randn(5), y


class OtherNoise(Plain):
    """Draw by the generators that are not torch's."""

    def __getitem__(self, i):
        noise = torch.from_numpy(np.random.rand(5)).float()
        return self.X[i] + noise * random.random(), int(self.y[i])


class OwnNoise(Plain):
    """Draw by a generator of its own."""

    def __init__(self, *rows):
        super().__init__(*rows)
        self.draws = torch.Generator().manual_seed(dist.get_rank())

    def __getitem__(self, i):
        return self.X[i] + torch.randn(5, generator=self.draws), self.y[i]


class Views(Plain):
    """Give two views of a row, and no label."""

    def __getitem__(self, i):
        return tuple(self.X[i] + 0.1 * torch.randn(5) for _ in range(2))


class Made(Plain):
    """Draw rows of which only the label belongs to the place."""

    def __getitem__(self, i):
        return torch.rand(5), i % 3


class Once(Noisy):
    """Refuse to read a row twice."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __getitem__(self, i):
        if i in self.seen:
            raise RuntimeError(f"row {i} is read twice")
        self.seen.add(i)
        return super().__getitem__(i)


class Own(Sampler):
    """Deal out the rows by hand; or forget the rank, or take it into the seed."""

    def __init__(self, right=True, seed=3):
        self.first, self.seed = dist.get_rank() if right else 0, seed

    def __len__(self):
        return N // 2

    def __iter__(self):
        draws = torch.Generator().manual_seed(self.seed)
        return iter(torch.randperm(N, generator=draws).tolist()[self.first::2])


class Endless(Own):
    """Go on with the rank's own rows for ever."""

    def __iter__(self):
        while True:
            yield from super().__iter__()


def again():
    return RandomSampler(Noisy(), replacement=True, num_samples=24,
                         generator=torch.Generator().manual_seed(dist.get_rank()))


class Stream(IterableDataset):
    """Give each rank every other row."""

    def __iter__(self):
        for i in range(dist.get_rank(), N, 2):
            yield X[i] + 0.1 * torch.randn(5), Y[i]


class Workers(IterableDataset):
    """Give each worker of each rank rows of its own; or all workers of a rank the same."""

    def __init__(self, right=True):
        self.right = right

    def __iter__(self):
        here, first, each = get_worker_info(), dist.get_rank(), 2
        if self.right:
            first, each = first + 2 * here.id, 2 * here.num_workers
        for i in range(first, N, each):
            yield X[i], Y[i]


def alike():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(5)}


def apart():
    return {"shuffle": True, "generator": torch.Generator().manual_seed(
        dist.get_rank())}


def half(data):
    return data(X[dist.get_rank()::2], Y[dist.get_rank()::2])


def noise(X, y):
    return X + 0.1 * torch.randn_like(X), y


def own_part(X, y):
    return X[dist.get_rank()::2], y[dist.get_rank()::2]


def evaluate():
    for _ in DataLoader(Plain(), 8):
        pass


def train(loader, prepare=lambda X, y: (X, y), between=lambda: None, ignore=(),
          follow=True):
    """Take some steps; return codes, what was ignored, and a number for the weights."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(10 + dist.get_rank())
    followed = watch(model, optimizer, ignore=ignore) if follow else None
    for _, batch in zip(range(5), loader):
        between()
        optimizer.zero_grad()
        if isinstance(loader.dataset, Views):
            left, right = model(torch.cat(batch)).chunk(2)
            loss = F.mse_loss(left, right)
        else:
            rows, y = prepare(*batch)
            loss = F.cross_entropy(model(rows), y)
        loss.backward()
        optimizer.step()
    end = model.module.weight.detach().tolist()
    if not follow:
        return end
    followed.finish()
    report = followed.report
    return report and ([f.code for f in report.findings], [
        words for words in report.remarks if "ignored" in words]), end


RIGHT = {
    "own half, shuffled alike": lambda: (DataLoader(half(Noisy), 4, **alike()),),
    "own half, in order": lambda: (DataLoader(half(Noisy), 4),),
    "own subset": lambda: (DataLoader(
        Subset(Noisy(), range(dist.get_rank(), N, 2)), 4, **alike()),),
    "made rows": lambda: (DataLoader(Made(), 4),),
    "part of a batch, then noise": lambda: (DataLoader(Plain(), 8), lambda *batch: (
        noise(*own_part(*batch)))),
    "noise, then part of a batch": lambda: (DataLoader(Noisy(), 8), own_part),
    "own generator": lambda: (DataLoader(half(OwnNoise), 4),),
    "torch's sampler, evaluation": lambda: (
        DataLoader(Noisy(), 4, sampler=DistributedSampler(Noisy())), noise, evaluate),
    "own sampler": lambda: (DataLoader(Noisy(), 4, sampler=Own()),),
    "own sampler, evaluation": lambda: (
        DataLoader(Noisy(), 4, sampler=Own()), noise, evaluate),
    "own sampler of batches": lambda: (DataLoader(
        Noisy(), batch_sampler=BatchSampler(Own(), 4, True)),),
    "one row a step": lambda: (DataLoader(Noisy(), batch_size=None, sampler=Own()),
                               lambda x, y: (x[None], y[None])),
    "a stream": lambda: (DataLoader(Stream(), 4),),
    "a stream of workers": lambda: (DataLoader(Workers(), 2, num_workers=2),),
    "rows to be read once": lambda: (DataLoader(Once(), 4, sampler=Own()),),
    "drawn with replacement": lambda: (DataLoader(Noisy(), 4, sampler=again()),),
    "a sampler without end": lambda: (DataLoader(Noisy(), 4, sampler=Endless()),),
    "own half, shuffled apart": lambda: (DataLoader(half(Noisy), 4, **apart()),),
    "all rows, shuffled apart, of which each has a part": lambda: (
        DataLoader(Plain(), 8, **apart()), own_part)}
SHARED = {
    "shuffled apart": lambda: (DataLoader(Plain(), 4, **apart()),),
    "shuffled apart, noise": lambda: (DataLoader(Noisy(), 4, **apart()),),
    "a sampler seeded by the rank": lambda: (
        DataLoader(Noisy(), 4, sampler=Own(seed=dist.get_rank())),),
    "a sampler of batches seeded by the rank": lambda: (DataLoader(
        Noisy(), batch_sampler=BatchSampler(Own(seed=dist.get_rank()), 4, True)),)}
WRONG = {
    "shuffled alike": lambda: (DataLoader(Noisy(), 4, **alike()),),
    "in order": lambda: (DataLoader(Noisy(), 4),),
    "numpy's noise": lambda: (DataLoader(OtherNoise(), 4),),
    "noise behind the loader": lambda: (DataLoader(Plain(), 4), noise),
    "noise behind a worker": lambda: (DataLoader(Plain(), 4, num_workers=1), noise),
    "views": lambda: (DataLoader(Views(), 4, **alike()),),
    "a sampler that forgets the rank": lambda: (
        DataLoader(Noisy(), 4, sampler=Own(right=False)),),
    "the same subset": lambda: (DataLoader(Subset(Noisy(), range(0, N, 2)), 4),)}


def trained(programs):
    return [(train(*program()), train(*program(), follow=False))
            for program in programs]


@pytest.fixture(scope="module")
def found():
    programs = RIGHT | WRONG | SHARED
    return dict(zip(programs, run_ranks(
        trained, 2, list(programs.values()), timeout=200)[0]))


@pytest.mark.parametrize("name", RIGHT)
def test_rows_of_each_ranks_own_are_no_mistake(found, name):
    (told, _), _ = found[name]
    assert told == ([], [])


@pytest.mark.parametrize("name", WRONG)
def test_the_same_rows_are_found_whatever_was_drawn(found, name):
    (told, _), _ = found[name]
    assert told == (["rows-same"], [])


@pytest.mark.parametrize("name", SHARED)
def test_rows_that_several_ranks_samplers_give_are_found(found, name):
    (told, _), _ = found[name]
    assert told == (["rows-overlap"], [])


def test_workers_that_give_the_same_rows_are_found():
    loader = DataLoader(Workers(right=False), 2, num_workers=2)
    told, _ = run_ranks(train, 2, loader)[0]
    assert told == (["rows-repeated"], [])


def by_turns(*rows, count=2):
    """Return what is found where a rank's loader gave rows of these hashes in turn."""
    runs = [Run(["w"], [(2,)], [], given=[Dealt(2, False, one, None, count)
                                         for one in rows])]
    return [(f.code, f.number, f.rank) for f in workers(Evidence(runs))]


def test_workers_give_by_turns():
    assert by_turns(5, 5, 6) == [("rows-repeated", 2, 0)]
    assert by_turns(4, 5, 5, 5, 6, count=3) == [("rows-repeated", 3, 0)]
    assert by_turns(5, 5, 5) == by_turns(5, 5) == by_turns(5, 6, 5, 6) == []
    assert by_turns(5, 5, 6, count=0) == by_turns(5, 5, 6, count=1) == []
    assert by_turns(5, 5, 6, count=3) == by_turns(None, None, 6) == []


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_nothing_that_is_drawn_changes(found, name):
    (_, watched), alone = found[name]
    assert watched == alone


def ignored():
    return train(DataLoader(Noisy(), 4), ignore=["rows-same"])


def test_it_can_be_ignored():
    (codes, [remark]), _ = run_ranks(ignored, 2)[0]
    assert codes == [] and "the loader gives all ranks the same rows" in remark


# read

def test_three_rows_are_read_by_another_process():
    data, state = Noisy(), torch.get_rng_state()
    places, hashes = reads.read(data, [4, 0, 7, 7, 1])
    assert places == (4, 0, 7, 1) and len(set(hashes)) == 3 and data.reads == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert reads.read(Noisy(), [4, 0, 7, 1]) == (places, hashes)
    assert reads.read(Plain(), [4, 0, 7, 1]) != (places, hashes)


class Slow(Plain):
    """Wait for ever."""

    def __getitem__(self, i):
        time.sleep(60)


class Loud(Plain):
    """Print, and give what cannot be pickled."""

    def __getitem__(self, i):
        print("read")
        return lambda: i


@pytest.mark.parametrize("data, places", [
    (Made(), [0, 1]), (Noisy(), [3]), (Noisy(), [3, 3]), (Noisy(), [0, N]),
    (Slow(), [0, 1]), (Loud(), [0, 1]), (Noisy(X.expand(1, N, 5)[0, :1].expand(
        N, 5)), [0, 1])])
def test_what_cannot_be_read_or_told_apart_is_none(data, places, monkeypatch, capfd):
    monkeypatch.setattr(reads, "PATIENCE", 1)
    begin = time.monotonic()
    assert reads.read(data, places) is None
    assert time.monotonic() < begin + 30
    assert capfd.readouterr() == ("", "")


def test_what_a_worker_reads_is_not_read_again():
    loaders = Loaders()
    with contextlib.ExitStack() as stack:
        for hook in loaders.hooks():
            stack.enter_context(hook)
        for workers in (0, 1):
            next(iter(DataLoader(Noisy(), 2, num_workers=workers)))
        for _ in range(2):
            for _ in DataLoader(Noisy(), 2):
                pass
        next(iter(DataLoader(Noisy(), 2)))
    first, second, *_, last = loaders.given
    assert first.read[0] == (0, 1) and second.read is None
    assert last.read is None and last.rows  # an evaluation of many batches is not read


def test_nothing_is_read_any_more_once_that_has_failed(monkeypatch):
    loaders, tried = Loaders(), []
    monkeypatch.setattr("manual_dp.audit.loaders.read", lambda *_: tried.append(0))
    with contextlib.ExitStack() as stack:
        for hook in loaders.hooks():
            stack.enter_context(hook)
        for _ in DataLoader(Noisy(), 16):
            pass
    assert len(loaders.given) == 3 and len(tried) == 1


# the rule

def told(*lists, seen=(3, 3), before=()):
    """Return the codes for what ranks were given, and how many rows they saw."""
    runs = [Run(["w"], [(2,)], [Step(0, all_rows=[rows and [0] * rows])], given=[
        Dealt(*one) for one in mine]) for mine, rows in zip(lists, seen)]
    evidence = Evidence(runs, watched=True)
    evidence.findings += [finding(code, 1, "") for code in before]
    return [(f.code, f.number) for f in given(evidence)]


SAME, READ = (3, False, 7, None), (3, False, None, ((0, 1), ("a", "b")))


@pytest.mark.parametrize("lists, seen, number", [
    (([SAME] * 2, [SAME] * 2), (3, 3), 3),
    (([READ] * 3, [READ] * 3), (6, 7), 6),
    (([SAME, READ], [SAME, READ, READ]), (3, 3), 3),
    (([SAME] * 2, [SAME] * 2), (2, 3), 0),
    (([SAME] * 2, [SAME] * 2), (None, 3), 0),
    (([SAME], [SAME]), (3, 3), 0),
    (([SAME] * 2, [SAME, (3, False, 8, None)]), (3, 3), 0),
    (([SAME] * 2, [SAME, (3, True, 7, None)]), (3, 3), 0),
    (([(3, False, None, None)] * 2,) * 2, (3, 3), 0),
    (([], []), (3, 3), 0)])
def test_all_that_loaders_gave_must_be_the_same(lists, seen, number):
    assert told(*lists, seen=seen) == [("rows-same", number)] * bool(number)


def some_places(*lists, again=False, parts=(("a", "b"),), seen=3):
    """Return the numbers of the findings on samplers that gave these places."""
    runs = [Run(["w"], [(2,)], [Step(0, all_rows=[[0] * seen])],
                given=[Dealt(3, False, None, None)] * 2,
                orders=[Order(100, {*places}, again, parts)]) for places in lists]
    return [(f.code, f.number) for f in orders(Evidence(runs, watched=True))]


def test_places_that_several_ranks_have_are_counted():
    assert some_places(range(60), range(40, 100)) == [("rows-overlap", 0.2)]
    assert some_places(range(51), range(50, 100)) == []  # one pads the epoch
    assert some_places(range(60), range(40, 100), again=True) == []
    assert some_places(range(60), range(40, 100), parts=(None,)) == []
    assert some_places(range(60), range(40, 100), seen=2) == []


def test_of_a_long_order_all_ranks_keep_the_same_places(monkeypatch):
    monkeypatch.setattr(reads, "KEPT", 10)
    some, _ = reads._kept(range(100), 100)
    assert 3 < len(some) < 25
    assert reads._kept([*range(50)] * 2, 100) == ({one for one in some if one < 50}, True)
    assert reads._kept([[1, 2], [3]], 3) == ({1, 2, 3}, False)


def test_what_is_known_of_rows_is_not_said_again():
    lists = [SAME] * 2, [SAME] * 2
    assert told(*lists, before=["rows-overlap"]) == []
    assert told(*lists, before=["gradient"]) == [("rows-same", 3)]


# datasets of which a DistributedSampler deals out places

class Seeded(Plain):
    """Add noise that belongs to the rank and the place."""

    def __getitem__(self, i):
        draws = torch.Generator().manual_seed(1000 * dist.get_rank() + i)
        return self.X[i] + 0.1 * torch.randn(5, generator=draws), self.y[i]


class Named(Plain):
    """Give the file, which each rank has in a folder of its own, and the place."""

    def __getitem__(self, i):
        return self.X[i], self.y[i], i, f"rank-{dist.get_rank()}/{i}"


class Alone(Plain):
    """Give rows without labels."""

    def __getitem__(self, i):
        return self.X[i]


def shuffled(data):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(dist.get_rank()))
    return data(X[order], Y[order])


def own_rows():
    draws = torch.Generator().manual_seed(dist.get_rank())
    return Plain(torch.rand(N, 5, generator=draws), torch.randint(3, (N,), generator=draws))


def part(seed):
    draws = torch.Generator().manual_seed(seed)
    return random_split(Plain(), [40, 8], generator=draws)[0]


ONE_SET = {
    "rows": Plain, "noise": Noisy, "own generator": OwnNoise, "made rows": Made,
    "noise of a rank": Seeded, "own folder": Named, "no labels": Alone, "views": Views,
    "read once": Once, "one split": lambda: part(0),
    "one row": lambda: Subset(Plain(), [3] * 8)}
SETS = {
    "shuffled": lambda: shuffled(Plain), "shuffled, and noise": lambda: shuffled(Noisy),
    "shuffled, own folder": lambda: shuffled(Named),
    "shuffled, no labels": lambda: shuffled(Alone),
    "own split": lambda: part(dist.get_rank()), "own rows": own_rows}


def samples(made):
    return [reads.sample(make()) for make in made]


@pytest.fixture(scope="module")
def sampled():
    made = ONE_SET | SETS
    return dict(zip(made, zip(*run_ranks(samples, 2, list(made.values())))))


@pytest.mark.parametrize("name", ONE_SET)
def test_one_dataset_is_known_as_one(sampled, name):
    mine, its = sampled[name]
    assert (mine is None) == (name == "read once") == (its is None)
    assert not mine or reads.others(mine, its) == (0, 0, None)


@pytest.mark.parametrize("name", SETS)
def test_places_that_mean_other_rows_are_counted(sampled, name):
    asked, count, common = reads.others(*sampled[name])
    assert 30 < count <= asked <= N and common is (name != "own rows")


def test_parts_that_tell_nothing_are_left_out(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    parts = [sum(part is not None for part in reads.sample(data)) for data in (
        Plain(), OwnNoise(), Made(), [*enumerate(X.tolist())], [(1, 2)] * 9)]
    assert parts == [2, 1, 1, 5, 0] and reads.sample([X[0]]) is None
    assert reads.sample([(1, 2), (3,)]) is None is reads.sample([])
    for one, other, found in (("abc", "bac", (3, 2, True)), ("ab", "cd", (2, 2, False)),
                              ("aaab", "baaa", (4, 2, None)), ("ab", "ccc", (2, 2, False))):
        assert reads.others([[*one], None], [[*other], None]) == found
    assert reads.others([["a"], ["b"]], [["a"], ["c"]]) == (0, 0, None) == reads.others(
        [], [])


def test_slow_rows_are_few(monkeypatch):
    class Slower(Plain):
        def __getitem__(self, i):
            time.sleep(0.02)
            return super().__getitem__(i)
    assert {*map(len, reads.sample(Plain()))} == {N}
    monkeypatch.setattr(reads, "TIME", 0.1)
    assert {*map(len, reads.sample(Slower()))} == {16}


def with_sampler(make, options):
    data = make()
    sampler = DistributedSampler(data, **options)
    return train(DataLoader(data, 4, sampler=sampler, num_workers=options == {}))


@pytest.mark.parametrize("make, options, codes", [
    (lambda: part(dist.get_rank()), {}, ["dataset-differs"]),
    (lambda: shuffled(Noisy), {"shuffle": False}, ["dataset-differs"]),
    (lambda: part(1), {}, []), (Seeded, {}, []),
    # of a rank's own, all is dealt out to it
    (lambda: half(Plain), {"num_replicas": 1, "rank": 0}, ["sampler-settings"])])
def test_ranks_that_deal_out_other_datasets_are_named(make, options, codes):
    [(found, _), _], _ = run_ranks(with_sampler, 2, make, options)
    assert found == codes


def rows_of_each_rank():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = own_rows()
    yield model, optimizer
    for X, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()


def test_rows_that_each_rank_draws_are_not_checked():
    """The data of a tutorial are random numbers that each rank draws for itself."""
    codes, said, _ = report_on(rows_of_each_rank)[0]
    assert codes == [] and "of 48 places in the dataset 48 have another" in " ".join(
        said.split())
