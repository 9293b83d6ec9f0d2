"""Collectives between processes, by hand, made of messages from one rank to another.

Each rank calls the same function with a tensor of its own; `tensor` has one shape
and dtype on all ranks, is contiguous, on the CPU, and is changed in place.

    broadcast          src's numbers to every rank, down a binomial tree
    ring_allreduce     the sum to every rank: reduce_scatter, then allgather
    reduce_scatter     chunk `rank`'s sum to rank `rank`. Patarasuk & Yuan 2009
    allgather          chunk `rank` from rank `rank` to all
    checked_allreduce  compare what the ranks are about to sum, then sum it

torch's `dist.all_reduce` on gloo does what ring_allreduce does. Neither finds out if
the ranks sum different things: only checked_allreduce asks them.
"""

import torch
import torch.distributed as dist

from manual_dp.checks import check_group, check_own_chunks, check_own_tensor

PIECE = 2**21  # bytes: enough to hide what starting a message costs; it fits a cache
AHEAD = 4  # how many receives are started before their pieces arrive


def broadcast(tensor, src=0):
    """Give every rank the numbers that rank `src` holds.

    In round 1, 2, 3, ... every rank that has the numbers sends them to the rank that is
    1, 2, 4, ... further on.
    Raises ValueError or TypeError if src is no rank or the tensor does not fit.
    """
    check_own_tensor(tensor, src)
    rank, world_size = dist.get_rank(), dist.get_world_size()
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
    check_own_tensor(tensor, adds=True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(world_size)
    # reduce_scatter, then allgather, without stopping in between
    _pass_round(chunks, rank - 1, add=world_size - 1, copy=world_size - 1)


def reduce_scatter(chunks):
    """Leave the finished sum of chunk `rank` in `chunks[rank]`.

    chunks: `world_size` flat tensors. The others hold unfinished sums afterwards.
    """
    check_own_chunks(chunks, adds=True)
    _pass_round(chunks, dist.get_rank() - 1, add=len(chunks) - 1)


def allgather(chunks):
    """Copy `chunks[rank]` of each rank to every other rank, round the ring."""
    check_own_chunks(chunks)
    _pass_round(chunks, dist.get_rank(), copy=len(chunks) - 1)


@torch.no_grad()
def _pass_round(chunks, first, add=0, copy=0):
    """Send chunk `first` to the next rank, and pass on what comes from the one before.

    The first `add` chunks that arrive are added to this rank's own, the next `copy`
    replace this rank's own. Chunks travel in pieces: a rank sends a piece on as soon as
    it has added it, while the chunk's other pieces are still on their way to it.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    pieces = _cut(chunks)
    count = len(pieces[0])
    todo = []  # the pieces of this rank that change, in the order of the arrivals
    for step in range(1, add + copy + 1):
        todo += pieces[(first - step) % world_size]
    # A piece that will be added arrives in a box; the boxes are used again and again.
    # A piece that will be copied arrives at its place.
    boxes = [torch.empty_like(max(todo, key=len)) for _ in todo[:AHEAD]]
    into = [
        boxes[j % AHEAD][: len(piece)] if j < add * count else piece
        for j, piece in enumerate(todo)
    ]
    # Receives first: a send to a rank that does not receive yet takes longer.
    arriving = [dist.irecv(box, left) for box in into[:AHEAD]]
    sends = [dist.isend(piece, right) for piece in pieces[first] if todo]
    for j, piece in enumerate(todo):
        arriving[j].wait()
        if j < add * count:
            piece.add_(into[j])
        if j + AHEAD < len(todo):
            arriving.append(dist.irecv(into[j + AHEAD], left))
        if j + count < len(todo):  # not the last chunk: it has been all the way round
            sends.append(dist.isend(piece, right))
    for work in sends:
        work.wait()


@torch.no_grad()
def checked_allreduce(tensor, tag, op="sum"):
    """Replace the tensor by the sum or mean over ranks, if all ranks ask for the same.

    tag: says which call this is, such as "layer 3, step 17". op: "sum" or "mean".
    First the ranks compare tag, op, shape, dtype, strides and device; only then they
    send numbers. Raises ValueError on every rank, naming two ranks and what differs;
    gloo would sum what does not belong together, without an error. Raises TypeError if
    the tensor does not fit, or for a mean of whole numbers.
    """
    check_group()
    texts = _gather([f"tag {str(tag)!r}", f"op {op!r}", *_form(tensor)])
    for rank, theirs in enumerate(texts):
        for ours, other in zip(texts[0], theirs):
            if ours != other:
                raise ValueError(
                    f"checked_allreduce: rank 0 has {ours}, rank {rank} has {other}"
                )
    # After the exchange: if one rank raised before it, the others would wait for it.
    if op not in ("sum", "mean"):
        raise ValueError(f'op must be "sum" or "mean", got {op!r}')
    check_own_tensor(tensor, adds=True)
    if op == "mean" and not tensor.is_floating_point():
        raise TypeError(
            f"rank {dist.get_rank()} holds {tensor.dtype}, whose mean is no "
            f"{tensor.dtype}; use a float"
        )
    ring_allreduce(tensor)
    if op == "mean":
        tensor /= dist.get_world_size()


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
    """Return every rank's list of lines: first exchange lengths, then letters."""
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
