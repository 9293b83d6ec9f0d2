"""Which rows does a rank see, and who dealt them out?

Minibatch, hashes       the rows of one step, as numbers
Dealing                 what samplers were told, and which loaders gave the rows
rows_of_step            findings on rows that ranks share, or that no rank sees
rows_of_data, epochs    findings on samplers, and on loaders without one
uneven                  how many rows ranks have, if not the same number
later_on_another_rank   what to look at: rows that come again on another rank
same_stream             what to look at: streams that give all ranks the same rows
"""

import random
import sys
import weakref
from collections import Counter
from contextlib import suppress
from unittest import mock

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.private import leaves, loader_parts, private
from manual_dp.audit.report import finding, plural
from manual_dp.audit.sketch import bit_hashes, row_hashes

READ = 8  # rows of a dataset that are compared over ranks
WHOLE = RandomSampler, SequentialSampler  # these deal out all rows of a dataset
TOLD = ("num_replicas", "shuffle", "drop_last", "seed", "epoch")


class Minibatch:
    """Know the rows of a minibatch by their hashes, to find them again in a forward.

    nest: tensors in lists, tuples and dicts, as a loader gives them. size: how many
    rows there are, 0 if the tensors do not agree. whole: one hash of all of them.
    """

    def __init__(self, nest):
        tensors = [t for t in leaves(nest) if torch.is_tensor(t) and t.dim()]
        self.whole = sum(bit_hashes(tensors))
        tensors = [t for t in tensors if t.numel()]
        sizes = Counter(map(len, tensors)).most_common(1)
        self.places, self.size = {}, 0
        if sizes and 2 * sizes[0][1] >= len(tensors):
            self.size = sizes[0][0]
            alike = [t for t in tensors if len(t) == self.size]
            telling = [t for t in alike if t.is_floating_point() or t[0].numel() > 1]
            for t in telling or alike:
                numbers = row_hashes(t)
                if len(set(numbers)) == self.size:
                    self.places |= zip(numbers, range(self.size))

    def find(self, tensors):
        """Return the places of the rows of the first tensor that is known, or None."""
        for t in tensors:
            rows = row_hashes(t) if t.dim() else [None]
            found = [self.places.get(row) for row in rows]
            if None not in found:
                return found
        return None


def hashes(tensors):
    """Return a hash for each row of the largest of these, None if there is none."""
    tensors = [t for t in tensors if t.dim() > 1 or (t.dim() and t.is_floating_point())]
    return row_hashes(max(tensors, key=torch.Tensor.numel)) if tensors else None


class Dealing:
    """Note what DistributedSamplers were told, and which loaders gave to the model.

    at_work: called with True before a loader begins to work, with False when it ends;
    and with whether it has given no rows yet.
    """

    def __init__(self, at_work):
        self.at_work = at_work
        # each time that a DistributedSampler deals: itself, and what it was told
        self.samplers, self.told = [], []
        self.renewed = set()  # ids of samplers whose set_epoch was called
        # a loader is known by what draws its batches: (that, its data set), by its id
        self.last = None  # the loader that gave rows last
        self.loaders = {}  # those whose rows trained the model
        self.empty = set()  # ids of those that have run out
        self.streams = {}  # by id: hashes of the first rows that a stream gave
        self.begun = weakref.WeakSet()  # iterators of loaders that gave rows
        self.workers = False  # has a loader some?

    def hooks(self):
        """Yield patches of torch's methods, which note what they are called for.

        A sampler is told its epoch, and deals; a loader begins, gives rows, and ends.
        Whatever goes wrong while this is noted does not matter.
        """
        renew, deal = DistributedSampler.set_epoch, DistributedSampler.__iter__
        begin, iterator = DataLoader.__iter__, private("loader")

        def set_epoch(sampler, epoch):
            self.renewed.add(id(sampler))
            return renew(sampler, epoch)

        def iterate(sampler):
            with suppress(Exception):
                self._deal(sampler)
            return deal(sampler)

        yield mock.patch.object(DistributedSampler, "set_epoch", set_epoch)
        yield mock.patch.object(DistributedSampler, "__iter__", iterate)
        yield mock.patch.object(DataLoader, "__iter__", self._around(begin))
        if iterator:
            turn = iterator.__next__

            def next_batch(one):
                with suppress(Exception):
                    self.last = loader_parts(one)
                    self.workers |= getattr(one, "_num_workers", 0) > 0
                try:
                    rows = turn(one)
                    self.begun.add(one)
                    with suppress(Exception):
                        self._note_stream(rows)
                    return rows
                except StopIteration:
                    if self.last is not None:
                        self.empty.add(id(self.last[0]))
                    raise

            yield mock.patch.object(iterator, "__next__", self._around(next_batch))

    def _note_stream(self, nest):
        """Note what a stream gave: unlike other data sets, it cannot be read again."""
        of, data = self.last
        given = self.streams.setdefault(id(of), [])
        if isinstance(data, IterableDataset) and len(given) < READ:
            given.append(hashes([t for t in leaves(nest) if torch.is_tensor(t)]))

    def _around(self, real):
        """Return a method of loaders that says before and after it: one is at work."""

        def call(one):
            first = one not in self.begun
            self.at_work(True, first)
            try:
                return real(one)
            finally:
                self.at_work(False, first)

        return call

    def _deal(self, sampler):
        told = {name: getattr(sampler, name) for name in ("rank", *TOLD)}
        own = type(sampler).set_epoch is not DistributedSampler.set_epoch
        told["set"] = own or bool(sampler.epoch) or id(sampler) in self.renewed
        told |= {"of": id(sampler), "data": id(sampler.dataset), "trained": False}
        self.samplers.append(sampler)
        self.told.append(told)

    def trained(self):
        """Note that what was dealt, and the loader that gave last, train the model."""
        if self.told:
            self.told[-1]["trained"] = True
        if self.last is not None:
            self.loaders[id(self.last[0])] = self.last

    def streamed(self):
        """Return hashes of the rows of each minibatch of streams that train a model."""
        return [rows for of in self.loaders for rows in self.streams.get(of, ())]

    def in_first_epoch(self):
        """Return whether loaders train the model, and none of these has run out."""
        return bool(self.loaders) and not self.loaders.keys() & self.empty

    def read(self):
        """Return [(dealt, rows, hashes of some)] of data sets that were read.

        dealt: "shares" of the rows, or the size of a batch of a loader of all.
        """
        found = [("shares", *_some(one.dataset)) for one in self.samplers[:2]]
        for of, data in self.loaders.values():
            if type(getattr(of, "sampler", of)) in WHOLE:
                found.append((getattr(of, "batch_size", 0), *_some(data)))
        return found


def _some(dataset):
    """Return how many rows there are, and hashes of some, drawn alike on all ranks."""
    count, numpy = len(dataset), sys.modules.get("numpy")
    states = random.getstate(), numpy and numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        if numpy:
            numpy.random.seed(0)
        try:
            rows = [leaves(dataset[i * count // READ]) for i in range(READ)]
        finally:
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])
    return count, [[_hash(x) for x in row] for row in rows]


def _hash(x):
    return bit_hashes([x])[0] if torch.is_tensor(x) else repr(x)


def rows_of_step(step):
    """Yield the finding about rows that ranks share, or that no rank sees."""
    lists, size = [step.rows(us) for us in step.updates], step.first[0].batch[0]
    if len({u.batch for u in step.first}) > 1:
        yield finding("sampler-differs", "make_batch gives ranks other rows")
        return
    if step.world_size == 1:
        return
    came = [u.came for u in step.first]
    if None in lists or not any(lists):  # the gradients may tell what the rows would
        heard = step.watched and all(c is not None and float(c.norm()) for c in came)
        if heard and not step.far(came):
            step.look_at.append(
                "all ranks bring the same gradient before any sum: do they see the "
                "same rows?"
            )
        return
    seen = [Counter(rows) for rows in lists]
    homes = Counter(row for mine in seen for row in mine)
    twice = [row for row, times in homes.items() if times > 1]
    missed = size - len(homes) if size else 0
    none = f"; no rank sees {missed} of {size}" if missed else ""
    if len(seen[0]) == 1 < seen[0].total():  # all rows are alike: they tell nothing
        return
    if twice and all(mine == seen[0] for mine in seen):
        apart = all(c is not None for c in came) and step.far(came)
        says = f"all ranks see the same {plural(len(seen[0]), 'row')}{none}"
        if not apart or (any(u.rng is not None for u in step.first) and not size):
            yield finding("rows-same", says)
        elif not size:  # in `audit_step` one device tells whether that is right
            step.look_at.append(
                f"{says}, and get other gradients: right if each takes a part of them, "
                "as of a sequence or a graph"
            )
    elif twice and not size and not _explained(step.runs):
        step.look_at.append(
            "the rows: some of a step are on several ranks: right if "
            "they are alike, or drawn with replacement"
        )
    elif twice and size:
        yield finding(
            "rows-overlap", f"{plural(len(twice), 'row')} on several ranks" + none
        )
    elif missed:
        yield finding("rows-overlap", f"no rank sees {missed} of {size} rows")


def _explained(runs):
    """Return whether rows may well be on several ranks.

    Samplers fill up with some; and that a loader deals out all is told by itself.
    """
    return runs[0].samplers or any(dealt != "shares" for dealt, *_ in runs[0].reads)


def later_on_another_rank(runs):
    """Say that a rank's rows come on another one, in what may be an epoch; or ""."""
    seen = [
        Counter(row for u in run.updates for rows in u.rows for row in rows or ())
        for run in runs
    ]
    homes = Counter(row for mine in seen for row in mine)
    twice = sum(times > 1 for times in homes.values())
    none_again = all(max(mine.values(), default=0) == 1 for mine in seen)
    if not twice or _explained(runs) or not none_again:
        return ""
    return (
        f"ranks' parts of the data seem to overlap: {plural(twice, 'row')} of these "
        "steps came to several ranks, and none twice to one (lesson 26, own-split)"
    )


def same_stream(runs):
    """Say that a stream gave all ranks rows that models got changed; or ""."""
    given = [*zip(*(run.streamed for run in runs))]
    taken = [len(rows) for u in runs[0].updates[:1] for rows in u.rows if rows]
    if not given or any(rows != of_all[0] for of_all in given for rows in of_all):
        return ""
    if None in given[0] or not taken or taken[0] < len(given[0][0]):
        return ""  # no rows are known, or a rank takes a part of what its loader gives
    return (
        "a stream gives all ranks the same rows, and models got others: wrong if the "
        "difference is noise, for each rank then trains on all rows (lesson 26, "
        "stream-whole)"
    )


def rows_of_data(runs, look_at):
    """Return the findings about samplers, and loaders without one, in a list."""
    return [*_told(runs), *_read(runs, look_at)]


def uneven(runs):
    """Return how many rows each rank's first forward had, "" if alike or not known."""
    rows = [[rows for u in run.updates[:1] for rows in u.rows[:1]] for run in runs]
    sizes = [len(mine[0] or ()) for mine in rows if mine]
    if len(sizes) < len(runs) or 0 in sizes or len(set(sizes)) == 1:
        return ""
    return ", ".join(map(str, sizes))


def _told(runs):
    for told in zip(*(run.samplers for run in runs)):
        ranks, count = [one["rank"] for one in told], told[0]["num_replicas"]
        if ranks != [*range(len(runs))] or count != len(runs):
            says = f"the samplers were told that they are ranks {ranks} of {count}"
            yield finding("sampler-differs", f"{says}, not 0 to {len(runs) - 1}")
        for name in TOLD:
            values = [one[name] for one in told]
            order = name in ("seed", "epoch")
            if len(set(values)) > 1 and (told[0]["shuffle"] or not order):
                code = "sampler-epoch" if name == "epoch" else "sampler-differs"
                says = f"the sampler's {name} is {values} on ranks 0, 1, ..."
                yield finding(code, says)


def epochs(runs, look_at):
    """Return the finding that two epochs have one order; say if it cannot be known."""
    mine = [one for one in runs[0].samplers if one["shuffle"] and one["trained"]]
    if len({(one["of"], one["epoch"]) for one in mine}) < len(mine):
        says = "a second epoch has the order of the first: no set_epoch between them"
        return [finding("sampler-epoch", says)]
    if not all(one["set"] for one in mine):
        look_at.append(
            "set_epoch was not called before the first epoch: right if there is only "
            "one, else each has the same order (lesson 26, same-order)"
        )
    return []


def _same_rows(runs):
    """Return whether the ranks were seen to take the same rows, all of them."""
    lists = [[rows for u in run.updates for rows in u.rows] for run in runs]
    return None not in lists[0] and any(lists[0]) and all(x == lists[0] for x in lists)


def _read(runs, look_at):
    taken = [len(rows) for u in runs[0].updates[:1] for rows in u.rows if rows]
    for told in zip(*(run.reads for run in runs)):
        dealt, count, rows = told[0]
        differs = next((rank for rank, one in enumerate(told) if one != told[0]), None)
        if dealt == "shares" and differs is not None:
            others = told[differs][2]
            first = next((i for i, row in enumerate(rows) if others[i] != row), 0)
            yield finding(
                "sampler-differs",
                f"row {first * count // READ} of the dataset on rank {differs} is not "
                "rank 0's (or its label is not), and the sampler deals out indices",
                differs,
            )
        elif dealt != "shares" and differs is None and len(runs) > 1:
            says = f"each rank's loader holds all {count} rows of the dataset"
            if taken and sum(taken) < dealt:
                continue  # a rank takes a part of what its loader gives
            if _same_rows(runs):
                says += ", and gave all ranks the same: no DistributedSampler"
                yield finding("no-sampler", says)
            else:
                look_at.append(
                    f"{says}: no DistributedSampler deals them out, so an epoch has "
                    f"each row {len(runs)} times; right only if each rank takes a part "
                    "of an epoch (lesson 26, same-rows)"
                )
