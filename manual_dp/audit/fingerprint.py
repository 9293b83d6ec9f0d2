"""Fingerprints: a few numbers that stand for many, cheap to send and to compare.

    Sketch      a row of SIZE numbers for each tensor; sums of tensors are sums of rows
    bit_hash    one whole number, another one if a bit of the tensor is another
    bit_hashes  such a number for each tensor of a list
    row_hashes  such a number for each row
    here        a tensor's part on this rank
    holds       whether a tensor has anything but zeros there
    whole       all of a tensor that ranks share out

A sketch is linear: whatever holds between gradients (this one is the mean of those, or
twice that one) holds between their sketches, to the last digits. So one process can
judge the gradients of all ranks without having them.
"""

from functools import lru_cache

import torch
from torch.nn import functional as F

SIZE = 16
CHUNK = 2 ** 17  # numbers: what is computed with so many stays in the cache
COLUMNS = 1021  # a prime: no layer is as wide
WIDE = 64 * COLUMNS  # so many are added up at memory's speed
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ODD, MORE = 0x5851F42D4C957F2D, 0x14057B7EF767814F  # Knuth's MMIX: any large odd ones


def here(tensor):
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def holds(tensor):
    """Return whether there is anything but zero in the tensor, as far as it is here."""
    tensor = here(tensor)
    return bool(tensor._nnz() if tensor.is_sparse else tensor.any())


def whole(tensor):
    """Return a tensor, put together from all ranks if they share it out."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Sketch:
    """Sketch lists of tensors that are shaped like `tensors`, on their device."""

    def __init__(self, tensors):
        self.count = len(tensors)
        longest = max((t.numel() * (1 + t.is_complex()) for t in tensors), default=0)
        longest = min(CHUNK, longest)
        fixed = {"generator": torch.Generator().manual_seed(0), "device": "cpu"}
        weights = torch.rand(longest, dtype=torch.float64, **fixed) + 0.5
        weights[torch.rand(longest, **fixed) < 0.5] *= -1
        self.weights = weights.to(tensors[0].device if tensors else "cpu")

    def __call__(self, tensors):
        """Return a (len(tensors), SIZE) float64 tensor on the CPU; None counts as 0."""
        tensors = list(tensors)
        return self.rows({i: self.row(t) for i, t in enumerate(tensors)
                          if t is not None}, len(tensors))

    def rows(self, rows, count=None):
        """Return rows, {place: row}, as a sketch of so many tensors."""
        made = torch.zeros(self.count if count is None else count, SIZE,
                           dtype=torch.float64, device="cpu")
        for i, row in rows.items():
            made[i] = row
        return made

    @torch.no_grad()
    def row(self, tensor):
        """Return a tensor's SIZE numbers."""
        tensor = tensor.detach()
        tensor = here(tensor)
        tensor = tensor.to_dense() if tensor.is_sparse else tensor
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        flat = tensor.reshape(-1)
        weights = self.weights.to(tensor.device)
        return sum(self._part(part, weights) for part in flat.split(CHUNK)).cpu()

    def _part(self, part, weights):
        part = part.double() * weights[:len(part)]
        if len(part) % SIZE:
            part = F.pad(part, (0, -len(part) % SIZE))
        return part.view(SIZE, len(part) // SIZE).sum(1)


def bit_hash(tensor):
    """Return a whole number for the tensor's bits, a 0-dim int64 tensor there.

    Numbers are added up in COLUMNS columns, and these weighted: one pass, no copy.
    """
    tensor = here(tensor)
    bits = _bits(tensor.detach().reshape(-1))
    if len(bits) % 2 == 0 and bits.element_size() == 4:
        # half as many sums; a view that starts at an odd place cannot be seen so
        bits = (bits.clone() if bits.storage_offset() % 2 else bits).view(torch.int64)
    for width in (WIDE, COLUMNS):  # the one is a multiple of the other
        if len(bits) > width:
            whole = len(bits) - len(bits) % width
            rest = bits[whole:]
            bits = bits[:whole].view(-1, width).sum(0, dtype=torch.int64)
            bits[:len(rest)] += rest
    return (bits * _places(COLUMNS, bits.device)[:len(bits)]).sum()


def bit_hashes(tensors):
    """Return a list of whole numbers, None for None; a GPU waits once for all."""
    found = [None if t is None else bit_hash(t) for t in tensors]
    there = [number for number in found if number is not None]
    there = [number.to(there[0].device) for number in there]
    numbers = iter(torch.stack(there).tolist() if there else [])
    return [None if number is None else next(numbers) for number in found]


@torch.no_grad()
def row_hashes(X):
    """Return a list of whole numbers, one for each row of X, whatever its shape."""
    if not X.numel():
        return [0] * len(X)
    bits = _bits(X.detach().reshape(len(X), -1)).to(torch.int64)
    return (bits * _places(bits.shape[1], bits.device)).sum(1).tolist()


def _bits(tensor):
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).flatten(-2)
    return tensor.contiguous().view(BITS[tensor.element_size()])


@lru_cache(maxsize=8)
def _places(count, device):
    return torch.arange(count, device=device) * ODD + MORE  # wraps round, as it may
