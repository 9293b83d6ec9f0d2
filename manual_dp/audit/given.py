"""A rank's batch: its rows, as numbers that tell them apart.

    rows_of      the `Rows` of a dict, a dataclass, a tuple, a tensor
    same_labels  ask that a row of X has one y on all ranks
"""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import torch

from manual_dp.audit.catalogue import finding
from manual_dp.audit.fingerprint import row_hashes
from manual_dp.audit.plain import comparable

# known: what a row is known by: X, or X and all that stands beside it if this is wide
# labels: is there but one number beside a row of X? None if X is no wider
Rows = namedtuple("Rows", "known X y labels")


def rows_of(batch):
    """Return the `Rows` of all its tensors that begin with as many, None without."""
    tensors = [t for t in _tensors(batch) if t.dim() and comparable(t) is not None]
    tensors = [t for t in tensors if len(t) == len(tensors[0])]
    if not tensors:
        return None
    wide = [t.numel() // max(len(t), 1) for t in tensors]
    hashes = [row_hashes(t) for t in tensors]
    X = hashes.pop(wide.index(max(wide)))  # the widest; what stands beside it is y
    # without a wide one it is not known which is X
    labels = sum(wide) - max(wide) == len(hashes) if max(wide) > 1 else None
    y = list(zip(*hashes)) or [()] * len(X)
    return Rows(X if labels else [hash((x, *more)) for x, more in zip(X, y)], X, y,
                labels)


def _tensors(batch):
    """Yield the tensors in a dict, a dataclass, a tuple, a list."""
    if is_dataclass(batch):
        batch = [getattr(batch, one.name) for one in fields(batch)]
    if torch.is_tensor(batch):
        yield batch
    elif isinstance(batch, (tuple, list, Mapping)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def same_labels(lists):
    """Ask that a row of X that several ranks have, has the same y on them."""
    homes, wrong = {}, []
    if None in lists:
        return []
    same = all(set(mine.X) == set(lists[0].X) and len(set(mine.X)) == len(mine.X)
               and mine.labels is not None for mine in lists)
    for rank, mine in enumerate(lists):
        for x, y in zip(mine.X, mine.y):
            other, right = homes.setdefault(x, (rank, y))
            if other != rank and y != right and (same or mine.labels):
                wrong.append((rank, other))
    return [finding("labels", len(wrong), f"{len(wrong)} rows of X have another y on "
                    f"rank {rank} than on rank {other}", rank)
            for rank, other in wrong[:1]]
