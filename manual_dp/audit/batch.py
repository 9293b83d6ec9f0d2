"""What goes into a step: any nest of tensors, taken apart row by row.

    tensors     the tensors in a nest of tuples, lists, dicts and dataclasses
    changed     the nest with each tensor changed
    arguments   what `step` is called with
    Minibatch   the whole minibatch of a step: which of its rows are these?
"""

import inspect
from collections import Counter
from dataclasses import fields, is_dataclass, replace

import torch
from torch.utils import _pytree

from manual_dp.audit.fingerprint import row_hashes


def changed(nest, change):
    """Return the nest with each of its tensors replaced by change(tensor)."""
    if is_dataclass(nest) and not isinstance(nest, type):
        return replace(nest, **{f.name: changed(getattr(nest, f.name), change)
                                for f in fields(nest) if f.init})
    def change_one(one):
        if is_dataclass(one) and not isinstance(one, type):
            return changed(one, change)
        return change(one) if torch.is_tensor(one) else one
    return _pytree.tree_map(change_one, nest)


def tensors(nest):
    """Return the tensors in the nest, a list."""
    found = []
    changed(nest, lambda tensor: found.append(tensor) or tensor)
    return found


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


class Minibatch:
    """Know the rows of a nest of tensors; of None, no rows."""

    def __init__(self, nest=None):
        self.nest = nest
        several = [t for t in tensors(nest) if t.dim() and t.numel()]
        sizes = Counter(map(len, several)).most_common(1)
        self.size = sizes[0][0] if sizes else 0
        # labels say little about a row: what has most numbers is asked first
        self.leaves = sorted((t for t in several if len(t) == self.size),
                             key=lambda t: -t.numel())
        if any(t.is_floating_point() or t[0].numel() > 1 for t in self.leaves):
            self.leaves = [t for t in self.leaves
                           if t.is_floating_point() or t[0].numel() > 1]
        self.hashes = [row_hashes(t) for t in self.leaves]
        # equal rows have one place, the first one's
        self.places = [{h: len(hashes) - 1 - i for i, h in enumerate(hashes[::-1])}
                       for hashes in self.hashes]
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
