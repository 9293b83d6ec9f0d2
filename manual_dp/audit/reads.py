"""Read rows of a script's dataset once more: what are they before anything is drawn?

    read     a hash of each row, as it is with fixed seeds, or None
    sample   hashes of some rows of a whole dataset, part by part, or None
    others   at how many places two samples have other rows
    same_rows  whether two samples are of the same rows
    order    some of the places that a sampler gives, an `Order`

A process of its own reads them, as a DataLoader's worker does: the script's dataset,
its generators and its counters stay as they are.
"""

import hashlib
import multiprocessing
import os
import pickle
import random
import sys
import time
from collections import namedtuple
from contextlib import suppress
from itertools import islice

import torch
from torch.utils import _pytree

from manual_dp.audit.batch import changed

# places: of a dataset's so many rows, some; again: is a place given twice?
Order = namedtuple("Order", "rows places again parts")

PATIENCE = 10  # seconds
MOST = 3  # rows
FEW, MANY, TIME = 16, 512, 1  # rows of a whole dataset; seconds
KEPT, SPREAD = 4096, 0x9E3779B1  # places of an order; an odd number that mixes them


def read(dataset, places):
    """Return the places and a hash of three rows; None if they cannot be told apart."""
    places = [*dict.fromkeys(places)]
    some = places[:MOST - 1] + places[MOST - 1:][-1:]
    if len(some) < 2:
        return None
    # of the largest part: labels do not tell rows apart
    hashes = _elsewhere(lambda: [_hashed(max(_row(dataset, place), key=len))
                                 for place in some])
    # rows that are all alike are drawn, not read
    if not hashes or len(set(hashes)) < len(some):
        return None
    return tuple(places), tuple(hashes)


def sample(dataset):
    """Return, for each part of a row, its hashes at some places; None of some parts.

    They are another at each reading, or always the same, or the place: none tells rows.
    """
    size = len(dataset)
    places = random.Random(size).sample(range(size), min(size, MANY))
    told = _elsewhere(lambda: _spread(dataset, places)) if size > 1 else None
    if not told or len({*map(len, sum(told, []))}) > 1:
        return None
    numbers = [_hashed(pickle.dumps(place)) for place in places]
    columns, again = ([[*column] for column in zip(*rows)] for rows in told)
    return [one if one[:len(two)] == two and len(set(one)) > 1 and (
        one != numbers[:len(one)]) else None for one, two in zip(columns, again)]


def others(mine, its):
    """Return of how many places two samples have other rows at how many, and common.

    No places, where some part is the same: what is drawn for a row may be each rank's.
    common: whether a row is in both; None, where no part of it is a row's own.
    """
    both = [(one, other) for one, other in zip(mine, its) if one and other]
    counts = [sum(a != b for a, b in zip(*columns)) for columns in both]
    if not counts or not min(counts):
        return 0, 0, None
    each = [(one, other) for one, other in both if 2 * len({*one}) > len(one)]
    common = any({*one} & {*other} for one, other in each) if each else None
    return min(map(len, both[0])), max(counts), common


def same_rows(mine, its):
    """Return whether two samples are of the same rows, by a part that tells these."""
    return any(one and one == other and 2 * len({*one}) > len(one)
               for one, other in zip(mine or [], its or []))


def order(sampler, dataset):
    """Return the `Order` of a sampler, or of one of batches; None if there is none."""
    size = len(dataset)
    told = _elsewhere(lambda: _kept(sampler, size))
    return told and Order(size, *told, sample(dataset))


def _kept(sampler, size):
    """Return some of a sampler's places, the same ones on all ranks; and again."""
    every = max(1, size // KEPT)
    given = [*islice(sampler, 2 * size + 1)]  # it may have no end
    if given and isinstance(given[0], (list, tuple)):
        given = sum(map(list, given), [])
    places = {*map(int, given)}
    return {one for one in places if (one * SPREAD >> 8) % every == 0}, len(
        places) < len(given)


def _elsewhere(work):
    """Return work(), done by another process; None if it could not."""
    if sys.platform != "linux":
        return None
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(theirs, work), daemon=True)
    try:
        child.start()
    except (AssertionError, OSError):  # a daemon has no children
        return None
    theirs.close()
    found = None
    with suppress(EOFError, OSError):
        found = ours.recv() if ours.poll(PATIENCE) else None
    ours.close()
    child.kill()
    child.join()
    return found


def _tell(connection, work):
    """Send what is found, in the child; if something is raised, nothing."""
    torch.set_num_threads(1)  # OpenMP may hang in a fork
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    for out in (1, 2):
        os.dup2(sys.stdout.fileno(), out)
    connection.send(work())


def _spread(dataset, places):
    """Return hashes of the parts of rows, of as many as there is time for; twice."""
    end, rows = time.monotonic() + TIME, []
    for place in places:
        if len(rows) >= FEW and time.monotonic() > end:
            break
        rows.append([*map(_hashed, _row(dataset, place))])
    return rows, [[*map(_hashed, _row(dataset, place))] for place in places[:FEW]]


def _hashed(part):
    return hashlib.sha256(part).hexdigest()


def _row(dataset, place):
    """Return all parts of a row, pickled."""
    torch.manual_seed(0)
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    # a pickled tensor would be another one each time
    row = changed(dataset[place], lambda t: t.contiguous().reshape(-1).view(
        torch.uint8).numpy().tobytes())
    return [pickle.dumps(part) for part in _pytree.tree_leaves(row)]
