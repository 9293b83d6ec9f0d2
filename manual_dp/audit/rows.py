"""Which rows does a rank see, and who dealt them out?

`shared` and `dealt` are rules, about the rows of a step and about samplers.
"""

import random
import sys
from collections import Counter
from contextlib import suppress
from unittest import mock

import torch
from torch.utils import _pytree
from torch.utils.data import RandomSampler, SequentialSampler, dataloader
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.report import finding, so_many
from manual_dp.audit.sketch import bit_hashes, row_hashes

READ = 8  # rows of a dataset that are compared over ranks
WHOLE = RandomSampler, SequentialSampler  # these deal out all rows of a dataset
TOLD = ("num_replicas", "shuffle", "drop_last", "seed", "epoch")


class Minibatch:
    """Learn the rows of a nest; size: how many, 0 if not clear; whole: their hash."""

    def __init__(self, nest):
        leaves = [
            t for t in _pytree.tree_leaves(nest) if torch.is_tensor(t) and t.dim()
        ]
        self.whole = sum(bit_hashes(leaves))
        leaves = [t for t in leaves if t.numel()]
        sizes = Counter(map(len, leaves)).most_common(1)
        self.places, self.size = {}, 0
        if sizes and 2 * sizes[0][1] >= len(leaves):
            self.size = sizes[0][0]
            alike = [t for t in leaves if len(t) == self.size]
            for t in [
                t for t in alike if t.is_floating_point() or t[0].numel() > 1
            ] or alike:
                numbers = row_hashes(t)
                if len(set(numbers)) == self.size:
                    self.places |= zip(numbers, range(self.size))

    def find(self, tensors):
        """Return the places of the rows of the first tensor that is known, or None."""
        for t in tensors:
            found = (
                [self.places.get(number) for number in row_hashes(t)]
                if t.dim()
                else [None]
            )
            if None not in found:
                return found
        return None


def hashes(tensors):
    """Return a hash for each row of the largest of these, None if there is none."""
    tensors = [t for t in tensors if t.dim() > 1 or t.dim() and t.is_floating_point()]
    return row_hashes(max(tensors, key=torch.Tensor.numel)) if tensors else None


class Dealing:
    """Note what DistributedSamplers were told, and which loaders gave to the model."""

    def __init__(self):
        self.told, self.samplers, self.loaders = [], [], {}
        self.last, self.renewed = None, set()

    def hooks(self):
        """Yield patches; they note, and whatever goes wrong there does not matter."""
        renew, deal = DistributedSampler.set_epoch, DistributedSampler.__iter__
        turn = dataloader._BaseDataLoaderIter.__next__

        def set_epoch(sampler, epoch):
            self.renewed.add(id(sampler))
            return renew(sampler, epoch)

        def iterate(sampler):
            with suppress(Exception):
                self._deal(sampler)
            return deal(sampler)

        def next_batch(iterator):
            with suppress(Exception):
                self.last = iterator._index_sampler, iterator._dataset
            return turn(iterator)

        yield mock.patch.object(DistributedSampler, "set_epoch", set_epoch)
        yield mock.patch.object(DistributedSampler, "__iter__", iterate)
        yield mock.patch.object(dataloader._BaseDataLoaderIter, "__next__", next_batch)

    def _deal(self, sampler):
        told = {name: getattr(sampler, name) for name in ("rank", *TOLD)}
        own = type(sampler).set_epoch is not DistributedSampler.set_epoch
        told["set"] = own or bool(sampler.epoch) or id(sampler) in self.renewed
        told |= {"data": id(sampler.dataset), "trained": False}
        self.samplers.append(sampler)
        self.told.append(told)

    def trained(self):
        """Note that what was dealt, and the loader that gave last, train the model."""
        if self.told:
            self.told[-1]["trained"] = True
        if self.last is not None:
            self.loaders[id(self.last[0])] = self.last

    def read(self):
        """Return [(dealt, rows, hashes of some)]; dealt: "shares" of it, or "all"."""
        found = [("shares", *_some(one.dataset)) for one in self.samplers[:2]]
        return found + [
            ("all", *_some(data))
            for of, data in self.loaders.values()
            if type(getattr(of, "sampler", of)) in WHOLE
        ]


def _some(dataset):
    """Return how many rows there are, and hashes of some, drawn alike on all ranks."""
    count, numpy = len(dataset), sys.modules.get("numpy")
    states = random.getstate(), numpy and numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        numpy and numpy.random.seed(0)
        try:
            leaves = [
                _pytree.tree_leaves(dataset[i * count // READ]) for i in range(READ)
            ]
        finally:
            random.setstate(states[0])
            numpy and numpy.random.set_state(states[1])
    return count, [
        [bit_hashes([x])[0] if torch.is_tensor(x) else repr(x) for x in row]
        for row in leaves
    ]


def shared(step):
    """Yield the finding about rows that ranks share, or that no rank sees."""
    lists, size = [step.rows(us) for us in step.updates], step.first[0].batch[0]
    if len({u.batch for u in step.first}) > 1:
        yield finding("sampler-differs", "make_batch gives ranks other rows")
        return
    if step.world_size == 1 or None in lists or not any(lists):
        return
    seen = [Counter(rows) for rows in lists]
    homes = Counter(row for mine in seen for row in mine)
    twice = [row for row, times in homes.items() if times > 1]
    missed = size - len(homes) if size else 0
    none = f"; no rank sees {missed} of {size}" if missed else ""
    came = [u.came for u in step.first]
    if len(seen[0]) == 1 < seen[0].total():  # all rows are alike: they tell nothing
        return
    if twice and all(mine == seen[0] for mine in seen):
        apart = all(c is not None for c in came) and step.far(came)
        if not (size and apart):  # else parts of these rows, as of a sequence
            yield finding(
                "rows-same",
                f"all ranks see the same {so_many(len(seen[0]), 'row')}{none}",
            )
    elif twice and not size and not step.runs[0].samplers:  # else they fill up
        step.unchecked.append(
            "the rows: some of a step are on several ranks: right if "
            "they are alike, or drawn with replacement"
        )
    elif twice and size:
        yield finding(
            "rows-overlap", f"{so_many(len(twice), 'row')} on several ranks" + none
        )
    elif missed:
        yield finding("rows-overlap", f"no rank sees {missed} of {size} rows")


def dealt(runs, watched):
    """Return the findings about samplers, and loaders without one, in a list."""
    return [*_told(runs), *(_epochs(runs) if watched else ()), *_read(runs)]


def _told(runs):
    for told in zip(*(run.samplers for run in runs)):
        ranks, count = [one["rank"] for one in told], told[0]["num_replicas"]
        if ranks != [*range(len(runs))] or count != len(runs):
            yield finding(
                "sampler-differs",
                f"the samplers were told that they are "
                f"ranks {ranks} of {count}, not 0 to {len(runs) - 1}",
            )
        for name in TOLD:
            values = [one[name] for one in told]
            order = name in ("seed", "epoch")
            if len(set(values)) > 1 and (told[0]["shuffle"] or not order):
                yield finding(
                    "sampler-epoch" if name == "epoch" else "sampler-differs",
                    f"the sampler's {name} is {values} on ranks 0, 1, ...",
                )


def _epochs(runs):
    if not all(
        one["set"] for one in runs[0].samplers if one["shuffle"] and one["trained"]
    ):
        yield finding(
            "sampler-epoch",
            "set_epoch was not called before the first epoch"
            ": without it each epoch has the same order",
        )


def _read(runs):
    for told in zip(*(run.reads for run in runs)):
        dealt, count, rows = told[0]
        differs = next((rank for rank, one in enumerate(told) if one != told[0]), None)
        if dealt == "all" and differs is None and len(runs) > 1:
            yield finding(
                "no-sampler",
                f"each rank's loader goes through all {count} "
                "rows of the dataset: no DistributedSampler deals them out",
            )
        elif dealt == "shares" and differs is not None:
            place = (
                count
                // READ
                * next(
                    (i for i, row in enumerate(rows) if told[differs][2][i] != row), 0
                )
            )
            yield finding(
                "sampler-differs",
                f"row {place} of the dataset on rank "
                f"{differs} is not rank 0's (or its label is not), and the "
                "sampler deals out places",
                differs,
            )
