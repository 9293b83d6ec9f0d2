"""What goes into a step: any nest of tensors, taken apart row by row.

    tensors     the tensors in a nest of tuples, lists, dicts and dataclasses
    changed     the nest with each tensor changed
    arguments   what `step` is called with
    rows_of     the `Rows` of a rank's own batch: numbers that tell them apart
    places_of   where rows are, by their hashes
    by_numbers  rows that are known by whole numbers alone
    Minibatch   the whole minibatch of a step: which of its rows are these?
"""

import inspect
from collections import Counter, namedtuple
from collections.abc import Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass, replace

import torch
from torch.utils import _pytree

from manual_dp.audit.fingerprint import row_hashes
from manual_dp.audit.plain import comparable

# known: what a row is known by: X, or X and all that stands beside it if this is wide
# labels: is there but one number beside a row of X? None if X is no wider
# real: is it no whole number?
Rows = namedtuple("Rows", "known X y labels real", defaults=(False,))

TOLD = 8  # rows of whole numbers that are different


def changed(nest, change):
    """Return the nest with each of its tensors replaced by change(tensor)."""
    def change_one(one):
        if torch.is_tensor(one):
            return change(one)
        if _is_record(one):
            return replace(one, **{f.name: changed(getattr(one, f.name), change)
                                   for f in fields(one) if f.init})
        if isinstance(one, MutableMapping):  # as a UserDict: dicts are taken apart
            one = copy(one)
            one.update({key: changed(value, change) for key, value in one.items()})
        return one
    return _pytree.tree_map(change_one, nest)


def tensors(nest):
    """Return the tensors in the nest, a list."""
    found = []
    for one in _pytree.tree_leaves(nest):
        if torch.is_tensor(one):
            found.append(one)
        elif _is_record(one):
            found += tensors([getattr(one, f.name) for f in fields(one)])
        elif isinstance(one, Mapping):
            found += tensors(list(one.values()))
    return found


def _is_record(one):
    return is_dataclass(one) and not isinstance(one, type)


def doubles(nest):
    """Return the nest with floats in float64."""
    return changed(nest, lambda t: t.double() if t.is_floating_point() else t)


def arguments(step, made, batch):
    """Return what `step` is called with: a tuple or list as several, if it fits."""
    if batch is None:
        return made
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        try:
            inspect.signature(step).bind(*made, *batch)
        except (TypeError, ValueError):
            try:
                inspect.signature(step).bind(*made, batch)
            except (TypeError, ValueError):
                return [*made, *batch]
            return [*made, batch]
        return [*made, *batch]
    return [*made, batch]


def rows_of(batch):
    """Return the `Rows` of all its tensors that begin with as many, None without."""
    several = [t for t in tensors(batch) if t.dim() and comparable(t) is not None]
    several = [t for t in several if len(t) == len(several[0])]
    if not several:
        return None
    wide = [t.numel() // max(len(t), 1) for t in several]
    hashes, place = [row_hashes(t) for t in several], wide.index(max(wide))
    real = all(t.is_floating_point() for t in several[:place] + several[place + 1:])
    X = hashes.pop(place)  # the widest; what stands beside it is y
    # without a wide one it is not known which is X
    labels = sum(wide) - max(wide) == len(hashes) if max(wide) > 1 else None
    y = list(zip(*hashes)) or [()] * len(X)
    return Rows(X if labels else [hash((x, *more)) for x, more in zip(X, y)], X, y,
                labels, real)


def places_of(hashes):
    """Return the place of each row by its hash; equal rows have the first one's."""
    return {h: len(hashes) - 1 - i for i, h in enumerate(hashes[::-1])}


def by_numbers(tensors):
    """Return hashes of rows that are of whole numbers, as of a user and a film.

    Of the first two tensors with one for each row, of the first three, and so on.
    """
    whole = [t for t in tensors if t.dim() == 1 and t.numel()
             and not t.is_floating_point()]
    hashes = [row_hashes(t) for t in whole if len(t) == len(whole[0])]
    return [[*map(hash, zip(*hashes[:count]))] for count in range(2, len(hashes) + 1)]


class Minibatch:
    """Know the rows of a nest of tensors; of None, no rows.

    size: how many there should be, if that is known.
    """

    def __init__(self, nest=None, size=0):
        self.nest = nest
        several = [t for t in tensors(nest) if t.dim() and t.numel()]
        sizes = Counter(map(len, several)).most_common(1)
        # of sequences of many lengths none is a minibatch by itself
        self.size = sizes[0][0] if sizes and 2 * sizes[0][1] >= len(several) else 0
        if several and size not in (0, self.size):
            if samples := _stacked(nest, size):
                self.size, several = size, samples
            elif len(max(several, key=torch.Tensor.numel)) == size:
                self.size = size
        # labels say little about a row: what has most numbers is asked first
        self.leaves = sorted((t for t in several if len(t) == self.size),
                             key=lambda t: -t.numel())
        if any(t.is_floating_point() or t[0].numel() > 1 for t in self.leaves):
            self.leaves = [t for t in self.leaves
                           if t.is_floating_point() or t[0].numel() > 1]
        self.hashes = [row_hashes(t) for t in self.leaves]
        self.places = [*map(places_of, self.hashes)]
        whole = Counter(zip(*self.hashes))
        self.copies = {i: whole[h] for i, h in enumerate(zip(*self.hashes))
                       if whole[h] > 1}
        for t, hashes, places in zip(self.leaves, self.hashes, self.places):
            if t.is_floating_point():  # as the step may have rounded it
                for h, rounded in zip(hashes, row_hashes(t.float().to(t.dtype))):
                    places.setdefault(rounded, places[h])

    def __bool__(self):
        return bool(self.size)

    def sum(self):
        """Return a number that stands for all rows, whatever their order."""
        return sum(map(sum, self.hashes))

    def seen(self, inputs):
        """Return `rows`; hashes of rows, if there is no minibatch that is known."""
        try:
            if self:
                return self.rows(inputs)
            several = [t for t in inputs
                       if t.dim() > 1 or t.dim() and t.is_floating_point()]
            if several:
                return row_hashes(max(several, key=torch.Tensor.numel))
            rows = next(reversed(by_numbers(inputs)), ())
            # fewer may be the same by chance
            return rows if len({*rows}) >= max(TOLD, len(rows) / 2) else None
        except RuntimeError:  # inside torch.func
            return None

    def rows(self, inputs):
        """Return the places of the rows that these tensors hold, None if unknown."""
        for tensor in inputs:
            for leaf, places in zip(self.leaves, self.places):
                if (found := _view(tensor, leaf)) is not None:
                    return found
                if tensor.dim() and tensor[:1].shape[1:].numel() == leaf[0].numel():
                    found = [places.get(h) for h in row_hashes(tensor)]
                    if None not in found:
                        return found
        return None

    def of(self, rows):
        """Return the rows' targets: y of a pair (X, y), else all that they have."""
        nest = self.nest
        if isinstance(nest, (tuple, list)) and len(nest) == 2:
            nest = nest[1]
        return changed(
            nest, lambda t: t[rows] if t.dim() and len(t) == self.size else t)


def _stacked(nest, size):
    """Return what lists of so many tensors, of one shape each, have as rows."""
    def together(one):
        return isinstance(one, (list, tuple)) and len(one) == size and all(
            torch.is_tensor(t) and t.shape == one[0].shape for t in one)
    return [torch.stack([*one]) for one in _pytree.tree_leaves(nest, is_leaf=together)
            if together(one) and one[0].numel()]


def _view(tensor, leaf):
    """Return which rows of `leaf` the tensor is a view of, None if of none."""
    same = tensor.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()
    if (not same or not tensor.dim() or tensor.dim() != leaf.dim() or not tensor.numel()
            or tensor.dtype != leaf.dtype or not leaf.stride(0)):
        return None
    first = tensor.storage_offset() - leaf.storage_offset()
    if tensor.stride(0) % leaf.stride(0) or first < 0:
        return None
    return [(first + i * tensor.stride(0)) // leaf.stride(0)
            for i in range(len(tensor))]
