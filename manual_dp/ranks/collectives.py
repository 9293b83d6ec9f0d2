"""Collectives between processes, by hand: nothing but `isend` and `irecv`.

Each rank calls the same function with a tensor of its own; `tensor` has one shape
and dtype on all ranks, is contiguous, on the CPU, and is changed in place.

    broadcast          src's numbers to every rank, down a binomial tree
    ring_allreduce     the sum to every rank: reduce_scatter, then allgather
    reduce_scatter     chunk `rank`'s sum to rank `rank`. Patarasuk & Yuan 2009
    allgather          chunk `rank` from rank `rank` to all
    checked_allreduce  compare what the ranks are about to sum, then sum it

torch's `dist.all_reduce` on gloo does what ring_allreduce does. Neither knows what
the other ranks mean to sum: only the checked one asks.
"""

import torch
import torch.distributed as dist

from manual_dp.checks import check_no_shared_memory

PIECE = 2**21  # bytes: long enough to hide a message's start, short enough for caches
AHEAD = 4  # receives that are waiting for their pieces at any time


def broadcast(tensor, src=0):
    """Give every rank the numbers that rank `src` holds.

    At distance 1, 2, 4, ... every rank that has them sends them that far on.
    Raises ValueError or TypeError if src is no rank or the tensor does not fit.
    """
    rank, world_size = _check(tensor, src)
    place = (rank - src) % world_size  # src stands at place 0
    distance = 1
    while distance < world_size:
        if place < distance and place + distance < world_size:
            dist.send(tensor, (rank + distance) % world_size)
        elif distance <= place < 2 * distance:
            dist.recv(tensor, (rank - distance) % world_size)
        distance *= 2


def ring_allreduce(tensor):
    """Replace the tensor by the sum over ranks, passing chunks round a ring.

    Every rank sends and receives 2 * (N - 1) / N of the tensor's bytes and ends with
    the same bits. Raises ValueError or TypeError if the tensor does not fit.
    """
    rank, world_size = _check(tensor, adds=True)
    chunks = tensor.view(-1).tensor_split(world_size)
    # reduce_scatter, then allgather, without stopping in between
    _pass_round(chunks, rank - 1, add=world_size - 1, copy=world_size - 1)


def reduce_scatter(chunks):
    """Leave the finished sum of chunk `rank` in `chunks[rank]`.

    chunks: `world_size` flat tensors; what the others hold afterwards is unfinished.
    """
    rank, world_size = _check_chunks(chunks, adds=True)
    _pass_round(chunks, rank - 1, add=world_size - 1)


def allgather(chunks):
    """Copy `chunks[rank]` of each rank to every other rank, round the ring."""
    rank, world_size = _check_chunks(chunks)
    _pass_round(chunks, rank, copy=world_size - 1)


@torch.no_grad()
def _pass_round(chunks, first, add=0, copy=0):
    """Send chunk `first` to the right, and then on what comes from the left.

    The first `add` chunks that come are added to this rank's own, the next `copy`
    replace them. Chunks travel in pieces: a piece goes on as soon as it is added,
    while the ones behind it are still on their way.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    pieces = _cut(chunks)
    count = len(pieces[0])
    todo = [
        piece
        for step in range(1, add + copy + 1)
        for piece in pieces[(first - step) % world_size]
    ]
    boxes = [torch.empty_like(max(todo, key=len)) for _ in todo[:AHEAD]]
    into = [
        boxes[j % AHEAD][: len(piece)] if j < add * count else piece
        for j, piece in enumerate(todo)
    ]
    # Receives first: a send that finds nobody waiting costs an extra round trip.
    arriving = [dist.irecv(box, left) for box in into[:AHEAD]]
    sends = [dist.isend(piece, right) for piece in pieces[first] if todo]
    for j, piece in enumerate(todo):
        arriving[j].wait()
        if j < add * count:
            piece.add_(into[j])
        if j + AHEAD < len(todo):
            arriving.append(dist.irecv(into[j + AHEAD], left))
        if j + count < len(todo):
            sends.append(dist.isend(piece, right))
    for work in sends:
        work.wait()


@torch.no_grad()
def checked_allreduce(tensor, tag, op="sum"):
    """Replace the tensor by the sum or mean over ranks, if all ranks mean the same.

    tag: says which call this is, such as "layer 3, step 17". op: "sum" or "mean".
    Before a number moves, tag, op, shape, dtype, strides and device are compared.
    Raises ValueError on every rank, naming two ranks and what differs, where gloo
    would sum things that do not belong together and say nothing; TypeError if the
    tensor does not fit, or a mean of whole numbers is asked for.
    """
    _check_group()
    texts = _gather([f"tag {str(tag)!r}", f"op {op!r}", *_form(tensor)])
    for rank, theirs in enumerate(texts):
        for ours, other in zip(texts[0], theirs):
            if ours != other:
                raise ValueError(
                    f"checked_allreduce: rank 0 has {ours}, rank {rank} has {other}"
                )
    # Not before: a rank that is refused alone would leave the others waiting.
    if op not in ("sum", "mean"):
        raise ValueError(f'op must be "sum" or "mean", got {op!r}')
    rank, world_size = _check(tensor, adds=True)
    if op == "mean" and not tensor.is_floating_point():
        raise TypeError(
            f"rank {rank} holds {tensor.dtype}, whose mean is no "
            f"{tensor.dtype}; use a float"
        )
    ring_allreduce(tensor)
    if op == "mean":
        tensor /= world_size


def _form(tensor):
    if not isinstance(tensor, torch.Tensor):
        return [f"a {type(tensor).__name__}"]
    strided = tensor.layout == torch.strided
    return [
        f"shape {tuple(tensor.shape)}",
        f"dtype {tensor.dtype}",
        f"strides {tensor.stride()}" if strided else f"layout {tensor.layout}",
        f"device {tensor.device.type}",
    ]


def _gather(lines):
    """Return every rank's list of lines."""
    letters = torch.tensor([ord(letter) for letter in "\n".join(lines)])
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    lengths[dist.get_rank()] = len(letters)
    allgather(list(lengths.split(1)))
    rows = torch.zeros(len(lengths), lengths.max(), dtype=torch.int64)
    rows[dist.get_rank(), : len(letters)] = letters
    allgather(list(rows))
    return [
        "".join(map(chr, row[:length])).split("\n")
        for row, length in zip(rows.tolist(), lengths.tolist())
    ]


def _cut(chunks):
    """Cut all chunks into the same number of pieces."""
    longest = max(len(chunk) for chunk in chunks) * chunks[0].element_size()
    return [chunk.tensor_split(max(1, -(-longest // PIECE))) for chunk in chunks]


def _check_group():
    if not dist.is_initialized():
        raise RuntimeError("no process group: call this in a rank, with run_ranks")
    return dist.get_rank(), dist.get_world_size()


def _check(tensor, src=0, adds=False):
    rank, world_size = _check_group()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"rank {rank} holds a {type(tensor).__name__}, not a tensor")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(
            f"rank {rank} holds a tensor on {tensor.device}, "
            f"{tensor.layout}; need an ordinary one on the CPU"
        )
    if adds and not (tensor.is_floating_point() or tensor.dtype == torch.int64):
        raise TypeError(
            f"rank {rank} holds {tensor.dtype}; only floats and int64 are "
            "added (shorter integers overflow)"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"rank {rank}'s tensor is not contiguous, its strides are {tensor.stride()}"
        )
    if tensor.is_neg() or tensor.is_conj():
        # its memory holds other numbers, and memory is what is sent
        raise ValueError(
            f"rank {rank}'s tensor is a view that changes signs when it "
            "is read; send tensor.resolve_neg().resolve_conj()"
        )
    if src not in range(world_size):
        raise ValueError(f"src must be a rank from 0 to {world_size - 1}, got {src!r}")
    return rank, world_size


def _check_chunks(chunks, adds=False):
    rank, world_size = _check_group()
    if len(chunks) != world_size:
        raise ValueError(
            f"rank {rank} holds {len(chunks)} chunks; {world_size} ranks need as many"
        )
    for chunk in chunks:
        _check(chunk, adds=adds)
        if chunk.dim() != 1 or chunk.dtype != chunks[0].dtype:
            raise ValueError(
                f"rank {rank} holds a chunk of {chunk.dtype}, "
                f"{tuple(chunk.shape)}; need flat ones of one dtype"
            )
    check_no_shared_memory(chunks, "chunks")
    return rank, world_size
