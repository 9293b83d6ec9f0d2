"""A few numbers that stand for many, cheap to send and to compare.

    Sketch      SIZE numbers for each tensor; the sketch of a sum is the sketches' sum
    mixture     the numbers that make one sketch out of others, or None
    bit_hashes  a whole number for each tensor, another one if a bit is another
    row_hashes  a whole number for each row

A sketch is linear: whatever holds between gradients (this one is the mean of those, or
twice that one) holds between their sketches, to the last digits. So one process can
judge the gradients of all ranks without having them.
"""

from functools import lru_cache

import torch

SIZE = 16
FLOOR = 1e-10  # of the whole: what is smaller may be rounding
CHUNK = 2**17  # numbers: what is computed with so many stays in the cache
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ODD, MORE = 0x5851F42D4C957F2D, 0x14057B7EF767814F  # Knuth's MMIX: any large odd ones


class Sketch:
    """Sketch tensors shaped like `tensors`: numbers times +-(0.5 to 1.5), added up."""

    def __init__(self, tensors):
        longest = max((t.numel() * (1 + t.is_complex()) for t in tensors), default=0)
        longest = min(CHUNK, longest)
        fixed = {"generator": torch.Generator().manual_seed(0), "device": "cpu"}
        weights = torch.rand(longest, dtype=torch.float64, **fixed) + 0.5
        weights[torch.rand(longest, **fixed) < 0.5] *= -1
        weights = weights.float().double()  # the same numbers for both kinds
        weights = weights.to(tensors[0].device if tensors else "cpu")
        self.weights = {
            kind: weights.to(kind) for kind in (torch.float32, torch.float64)
        }

    def __call__(self, tensors):
        """Return a (len(tensors), SIZE) float64 tensor on the CPU; None counts as 0."""
        return stacked([None if t is None else self.row(t) for t in tensors])

    @torch.no_grad()
    def row(self, tensor):
        """Return a tensor's SIZE numbers."""
        tensor = _dense(tensor)
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        # float32 stays what it is: ten times as fast, and exact to 1e-7 of the length
        kind = torch.float64
        if tensor.is_floating_point() and tensor.dtype != kind:
            kind = torch.float32
        weights, flat = (
            self.weights[kind].to(tensor.device),
            tensor.reshape(-1).to(kind),
        )
        return sum(_part(part, weights) for part in flat.split(CHUNK)).cpu()


def _part(part, weights):
    """Return SIZE sums of the numbers times their weights."""
    long = len(part) // SIZE
    most = SIZE * long
    blocks = part[:most].view(SIZE, long), weights[:most].view(SIZE, long)
    found = torch.linalg.vecdot(*blocks).double()
    rest = part[most:]
    found[: len(rest)] += rest * weights[most : len(part)]
    return found


def stacked(rows):
    """Return a sketch of these rows; None is a row of 0."""
    zero = torch.zeros(SIZE, dtype=torch.float64, device="cpu")
    return (
        torch.stack([zero if row is None else row for row in rows])
        if rows
        else zero.expand(0, SIZE)
    )


def mixture(made, parts, close=1e-7):
    """Return the numbers c with made = sum(c * part), to rounding in each row; or None.

    made, parts: sketches, (count, SIZE).
    """
    sizes = [float(part.norm()) for part in parts]
    some = [i for i, size in enumerate(sizes) if size > 0]
    if not some or not bool(made.isfinite().all()):
        return None
    columns = torch.stack([parts[i].flatten() / sizes[i] for i in some], 1)
    if not bool(columns.isfinite().all()):
        return None
    found = torch.linalg.lstsq(columns, made.flatten(), driver="gelsd").solution
    numbers = [0.0] * len(parts)
    for i, number in zip(some, found.tolist()):
        numbers[i] = number / sizes[i]
    each = torch.stack([numbers[i] * parts[i] for i in some])
    rest = (made - each.sum(0)).norm(dim=1)
    allowed = close * each.norm(dim=2).sum(0) + FLOOR * made.norm()
    return numbers if bool((rest <= allowed).all()) else None


@torch.no_grad()
def bit_hashes(tensors):
    """Return a list of whole numbers; a GPU waits once for all."""
    found = [_hash(_bits(_dense(t).reshape(-1))) for t in tensors]
    return torch.stack([n.to(found[0].device) for n in found]).tolist() if found else []


@torch.no_grad()
def row_hashes(X):
    """Return a list of whole numbers, one for each row of X, whatever its shape."""
    if not X.numel():
        return [0] * len(X)
    bits = _bits(X.detach().reshape(len(X), -1)).to(torch.int64)
    return (bits * _places(bits.shape[1], bits.device)).sum(1).tolist()


def _dense(tensor):
    tensor = tensor.detach()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _hash(bits):
    """Return a weighted sum, in chunks: the memory that is needed stays small."""
    weights, found = _places(min(len(bits), CHUNK), bits.device), 0
    for part in bits.split(CHUNK):
        found = found * ODD + (part * weights[: len(part)]).sum()
    return torch.as_tensor(found)


def _bits(tensor):
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).flatten(-2)
    return tensor.contiguous().view(BITS[tensor.element_size()])


@lru_cache(maxsize=8)
def _places(count, device):
    return torch.arange(count, device=device) * ODD + MORE  # wraps round, as it may
