"""All-reduce over a list of tensors, one per rank, inside one process.

Every function takes `tensors`, a list of `world_size` tensors of one shape and
dtype; `tensors[rank]` lives on that rank's device. Each works in place and
returns None, as `torch.distributed.all_reduce` does.

    allreduce         star: rank 0 adds, then sends the sum back. d2l.ai 12.5.4
    ring_allreduce    ring: reduce_scatter, then allgather. Patarasuk & Yuan 2009
    tree_allreduce    tree: pairs, then pairs of pairs, and back. Binomial tree
    halving_doubling  pairs exchange halves, then halves of halves, and back. Thakur,
                      Rabenseifner & Gropp 2005
    WAYS              all of these by name; tests, pictures and lessons try each

For a tensor of B bytes on N ranks:

                      bytes out of the busiest rank       steps, one after another
    allreduce         (N - 1) * B                         2 * (N - 1)
    ring_allreduce    2 * (N - 1) / N * B, never 2 * B    2 * (N - 1)
    tree_allreduce    ceil(log2(N)) * B                   2 * ceil(log2(N))
    halving_doubling  2 * (N - 1) / N * B, N = 2^k        2 * log2(N), N = 2^k
                      below 3 * B for any other N         2 * floor(log2(N)) + 2
"""

import torch

from manual_dp.checks import check_chunks, check_tensors


@torch.no_grad()
def allreduce(tensors):
    """Replace every tensor by the sum over ranks, through rank 0.

    tensors: list of `world_size` tensors, one shape, one dtype, any layout.
    Raises ValueError if the list is empty, if shapes differ, or if two ranks share
    memory; TypeError, with the rank, for another dtype or for what cannot be summed.
    """
    check_tensors(tensors)
    root = tensors[0]
    for tensor in tensors[1:]:
        root.add_(tensor.to(root.device))
    for tensor in tensors[1:]:
        tensor.copy_(root)


@torch.no_grad()
def ring_allreduce(tensors):
    """Replace every tensor by the sum over ranks, passing chunks round a ring.

    tensors: list of `world_size` contiguous tensors, one shape, one dtype.
    Raises as `allreduce` does, and ValueError if a tensor is not contiguous.

    Every rank ends with the same bits, since each chunk is summed once and then
    copied. The order of the additions is not `allreduce`'s, so the last bits of
    a float may not be either.
    """
    check_tensors(tensors, contiguous=True)
    # view, not reshape: reshape may copy, and the sum would go into the copy
    chunks = [tensor.view(-1).tensor_split(len(tensors)) for tensor in tensors]
    reduce_scatter(chunks)
    allgather(chunks)


@torch.no_grad()
def tree_allreduce(tensors):
    """Replace every tensor by the sum over ranks, up a binary tree and down again.

    tensors, errors: as `allreduce`. At distance 1, 2, 4, ... every second rank that
    still takes part gives its sum to the rank before it and waits. In the end rank 0
    has the sum over all, and it goes back the same way.
    """
    check_tensors(tensors)
    world_size = len(tensors)
    # 1, 2, 4, ... below world_size
    distances = [2**level for level in range((world_size - 1).bit_length())]
    for distance in distances:
        for rank in range(0, world_size - distance, 2 * distance):
            tensors[rank].add_(tensors[rank + distance].to(tensors[rank].device))
    for distance in reversed(distances):
        for rank in range(0, world_size - distance, 2 * distance):
            tensors[rank + distance].copy_(tensors[rank])


@torch.no_grad()
def halving_doubling(tensors):
    """Replace every tensor by the sum over ranks, by exchanging halves.

    tensors, errors: as `ring_allreduce`. Of N ranks, a power of two exchange halves.
    Each of the others gives its tensor to a neighbour first, and gets the sum back.
    """
    check_tensors(tensors, contiguous=True)
    flat = [tensor.view(-1) for tensor in tensors]
    # Of 7 ranks 4 exchange halves. The other 3 are guests: ranks 1, 3, 5, whose
    # tensors ranks 0, 2, 4, their hosts, add to their own.
    beyond = len(flat) - 2 ** (len(flat).bit_length() - 1)
    hosts, guests = flat[: 2 * beyond : 2], flat[1 : 2 * beyond : 2]
    for host, guest in zip(hosts, guests):
        host.add_(guest.to(host.device))
    exchange_halves(hosts + flat[2 * beyond :])
    for host, guest in zip(hosts, guests):
        guest.copy_(host)


@torch.no_grad()
def exchange_halves(parts):
    """Replace flat tensors, of 1, 2, 4, 8, ... ranks, by their sum.

    Of each pair, one rank sums the lower half and the other the upper half. All ranks
    with a lower half then do the same among themselves, and so do those with an upper
    half. Afterwards the two ranks of a pair copy from each other the half they lack.
    """
    if len(parts) == 1:
        return
    halves = [part.tensor_split(2) for part in parts]
    lower, upper = halves[::2], halves[1::2]  # ranks 0, 2, 4, ... and 1, 3, 5, ...
    for ours, theirs in zip(lower, upper):
        ours[0].add_(theirs[0].to(ours[0].device))
        theirs[1].add_(ours[1].to(theirs[1].device))
    exchange_halves([ours[0] for ours in lower])
    exchange_halves([theirs[1] for theirs in upper])
    for ours, theirs in zip(lower, upper):
        theirs[0].copy_(ours[0])
        ours[1].copy_(theirs[1])


@torch.no_grad()
def reduce_scatter(chunks):
    """Leave the finished sum of chunk `rank` in `chunks[rank][rank]`.

    chunks: `world_size` ranks of `world_size` chunks each, changed in place; chunk i
    has one shape on all ranks. All other places hold unfinished sums afterwards.
    Takes `world_size - 1` steps. In a step every rank sends one chunk to the
    next rank, which adds it to its own copy. No rank sends the chunk it is
    receiving, so looping over the ranks equals sending all at once.
    """
    check_chunks(chunks)
    world_size = len(chunks)
    for step in range(world_size - 1):
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - 1 - step) % world_size  # the chunk that came last, if one did
            chunks[peer][i].add_(chunks[rank][i].to(chunks[peer][i].device))


@torch.no_grad()
def allgather(chunks):
    """Copy `chunks[rank][rank]` to every other rank, round the ring.

    chunks: as `reduce_scatter` leaves them, changed in place.
    Takes `world_size - 1` steps.
    """
    check_chunks(chunks)
    world_size = len(chunks)
    for step in range(world_size - 1):
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - step) % world_size  # at first its own, then what came last
            chunks[peer][i].copy_(chunks[rank][i])


WAYS = {
    "star": allreduce,
    "ring": ring_allreduce,
    "tree": tree_allreduce,
    "halving-doubling": halving_doubling,
}
