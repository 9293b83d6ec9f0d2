"""Hear what samplers deal out and loaders give: does the model see all of it?

    Loaders   of a `Watch`; a part of its hooks
    told      what a DistributedSampler was told

torch's DistributedSampler deals all rows out to the ranks; that it was told the right
things is for a rule to ask. Here is asked that nothing is lost on the way from there.
"""

from collections import namedtuple
from unittest import mock

from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _SingleProcessDataLoaderIter,
)
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.batch import Minibatch, by_numbers, places_of, tensors
from manual_dp.audit.reads import order, read, sample
from manual_dp.audit.records import Dealt, Sampler

KEPT = 64  # of those that no model saw, as in an evaluation
READ = 32  # of a watch's first batches, each some milliseconds

# columns: of each tensor, the place of each row by its hash, and of several together
# where these are whole numbers; size: how many rows
# seen: places that a model was given, of each tensor by itself: rows that are equal in
# one of them, with one place there, may be different in another
Given = namedtuple("Given", "columns size dealt seen")


def told(sampler):
    """Return what a DistributedSampler was told, a `Sampler`."""
    return Sampler(id(sampler), len(sampler.dataset), sampler.seed, sampler.epoch,
                   sampler.shuffle, sampler.num_replicas, sampler.rank)


class Loaders:
    """Know what was given since the last step, and what of it a model saw.

    samplers: what each was told, whenever it was iterated. given: each batch, `Dealt`.
    sets: some rows of each dataset that a DistributedSampler deals out. orders: some
    places that each other sampler gives.
    """

    def __init__(self):
        self.samplers, self.batches, self.given = [], [], []
        self.sets, self.sampled = [], set()  # ids of these datasets
        self.orders, self.ordered = [], set()  # ids of these samplers
        self.asked = []  # the places of the rows that a loader reads now
        self.left = READ
        self.renewed = set()  # ids of the samplers that were told an epoch
        self.dealing = {}  # of a sampler: its last iteration, until a model trains

    def hooks(self):
        """Yield the hooks on samplers and loaders."""
        order, give = DistributedSampler.__iter__, _BaseDataLoaderIter.__next__
        renew = DistributedSampler.set_epoch
        yield mock.patch.object(DistributedSampler, "set_epoch", lambda sampler, n: (
            self.renewed.add(id(sampler)) or renew(sampler, n)))
        yield mock.patch.object(DistributedSampler, "__iter__", lambda sampler: (
            self._deal(sampler) or order(sampler)))

        ask = _SingleProcessDataLoaderIter._next_index

        def asked(loader):
            self.asked = ask(loader)
            return self.asked

        def heard(loader):
            self.asked = []
            nest = give(loader)
            self._keep(loader, nest)
            return nest
        yield mock.patch.object(_BaseDataLoaderIter, "__next__", heard)
        yield mock.patch.object(_SingleProcessDataLoaderIter, "_next_index", asked)

    def _deal(self, sampler):
        """Note what a sampler was told; what nobody trains on may have any order."""
        one = told(sampler)._replace(
            told=bool(sampler.epoch) or id(sampler) in self.renewed)
        self.dealing[one.of] = len(self.samplers), one
        self.samplers.append(one._replace(shuffle=False))

    def _keep(self, loader, nest):
        places = self.asked if isinstance(self.asked, list) else []
        try:
            batch = Minibatch(nest, len(places))
        except RuntimeError:  # a sparse tensor has no rows
            batch = Minibatch()
        sampler = loader._index_sampler
        if isinstance(sampler, BatchSampler):
            sampler = sampler.sampler
        dealt = isinstance(sampler, DistributedSampler)
        if dealt and not any(one.of == id(sampler) for one in self.samplers):
            self.samplers.append(told(sampler))  # it was iterated before the watch
        if dealt and sampler.num_replicas > 1 and id(
                loader._dataset) not in self.sampled:
            self.sampled.add(id(loader._dataset))
            self.sets.append(sample(loader._dataset))
        rows, kind = None, loader._dataset_kind
        if not dealt and kind == _DatasetKind.Map and id(sampler) not in self.ordered:
            self.ordered.add(id(sampler))
            self.orders.append(order(sampler, loader._dataset))
        if not dealt and places and self.left:
            rows = read(loader._dataset, places)
            self.left = self.left - 1 if rows else 0  # it may wait long for nothing
        self.given.append(Dealt(
            batch.size, dealt, hash((*zip(*batch.hashes),)) if batch.size else None,
            rows, loader._num_workers if kind == _DatasetKind.Iterable else 0))
        whole = [t for t in tensors(nest) if t.dim() == 1 and len(t) == batch.size > 0]
        columns = batch.places + [*map(places_of, by_numbers(whole))]
        self.batches.append(Given(columns, batch.size, dealt, [set() for _ in columns]))
        del self.batches[:-KEPT]

    def see(self, rows):
        """Be told which rows a model is given, by their hashes; say if a loader's."""
        for place, one in self.dealing.values():
            self.samplers[place] = one
        self.dealing.clear()
        for batch in reversed(self.batches):
            for places, seen in zip(batch.columns, batch.seen):
                if rows and all(row in places for row in rows):
                    seen.update(places[row] for row in rows)
                    return True
        return False

    def end(self):
        """End the step; return why rows may have been lost, "" if none were."""
        given, used = self.batches, [batch for batch in self.batches if any(batch.seen)]
        self.batches = [batch for batch in given if not any(batch.seen)]
        if not given:
            return "no DataLoader of torch's gave them"
        if not used and not any(batch.size for batch in given):
            return "what the loader gave has no tensor with a row for each"
        if not used:
            return ("on the way from the loader to the model they are changed, or no "
                    "longer the rows of one tensor")
        if not all(batch.dealt for batch in used):
            return "no DistributedSampler of torch's dealt them out"
        for batch in used:
            if not any(seen >= {*places.values()}
                       for places, seen in zip(batch.columns, batch.seen)):
                return (f"the loader gave {batch.size} rows, of which the model saw "
                        f"{max(map(len, batch.seen))}")
        return ""
