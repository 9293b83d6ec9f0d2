"""What an all-reduce sends, by a formula, and what that costs: seconds, from links.

    LINKS       what a message costs on PCIe, NVLink, Ethernet, InfiniBand: sources
    two_level   rings inside the nodes, rings between them: Mikami et al. 2018
    counts      what a way sends on any number of ranks, by its closed form
    phases      the same as runs of equal steps, inside a node and between nodes
    of_steps    seconds of steps, each a list of bytes, over one link
    seconds     of phases
    of_way      of an all-reduce by its closed form
    finish      of backward, until the last bucket has arrived
    step        a step of training on so many devices: what computes, what waits

A *node* is a machine with several devices: ranks 0 to g - 1, g to 2g - 1, and so on. A
message of b bytes takes alpha + b / bandwidth seconds (Hockney 1994); a step as long as
its slowest. Messages inside a node have a link each; all that leave a node in a step,
or enter it, share its one link. Adding up takes no time.

N ranks, a tensor of n numbers, M = N / g nodes. "Up" rounds up.

                  steps               numbers in a row
    star          2 (N - 1)           2 (N - 1) n
    ring          2 (N - 1)           2 (N - 1) up(n / N)
    tree          2 up(log2 N)        2 up(log2 N) n
    halving-      2 k for N = 2^k,    2 (up(n / 2) + up(n / 4) + ... + up(n / 2^k)),
      doubling    2 k + 2 beyond      and 2 n more beyond
    two-level     2 (g + M - 2)       2 (g - 1) up(n / g) + 2 (M - 1) up(up(n / g) / M)

Bandwidths are those of one direction, as the standard or the maker states them; no
program reaches all of it, 80 to 90 % is good. Alpha is what NVIDIA's NCCL assumes of
one step of a ring with its Simple protocol (tuning.cc of its source, 2.18 and later).
"""

from collections import namedtuple

import torch

from manual_dp.allreduce import allgather, reduce_scatter, ring_allreduce

Link = namedtuple("Link", "name alpha bandwidth source")
LINKS = {link.name: link for link in [
    Link("pcie4", 5.7e-6, 16 * 16e9 * 128 / 130 / 8,
         "PCI Express 4.0, 16 lanes of 16 GT/s, 128 bits in 130"),
    Link("nvlink4", 3.4e-6, 18 * 25e9,
         "the H100 white paper: 18 links of 25 GB/s each way"),
    Link("eth25", 14e-6, 25e9 / 8, "Ethernet of 25 Gb/s, IEEE 802.3by"),
    Link("eth100", 14e-6, 100e9 / 8, "Ethernet of 100 Gb/s, IEEE 802.3bj"),
    Link("eth400", 14e-6, 400e9 / 8, "Ethernet of 400 Gb/s, IEEE 802.3bs"),
    Link("ib400", 14e-6, 400e9 / 8, "InfiniBand NDR: 4 lanes of 100 Gb/s"),
]}
CAPS = [int(mb * 1e6) for mb in (1, 2, 5, 10, 25, 50, 100, 250, 1000)]  # of buckets
Step = namedtuple("Step", "world_size compute exposed step efficiency cap way")


@torch.no_grad()
def two_level(tensors, per_node):
    """Replace every tensor by the sum over ranks, with `per_node` ranks in a node.

    First each node sums: afterwards its rank number i holds chunk i. Then the ranks
    number i of all nodes sum that chunk in a ring. Last, each node passes its chunks
    round. The nodes have to be full.
    """
    nodes = [range(i, i + per_node) for i in range(0, len(tensors), per_node)]
    chunks = [tensor.view(-1).tensor_split(per_node) for tensor in tensors]
    for node in nodes:
        reduce_scatter([chunks[rank] for rank in node])
    for i in range(per_node):
        ring_allreduce([chunks[node[i]][i] for node in nodes])
    for node in nodes:
        allgather([chunks[rank] for rank in node])


def counts(way, world_size, numbers, per_node=None):
    """List (steps, messages in each, numbers in the longest) of each part of a way."""
    n, levels = world_size, world_size.bit_length() - 1
    if way == "star":
        return [(2 * (n - 1), 1, numbers)]
    if way == "ring":
        return [(2 * (n - 1), n, _up(numbers, n))]
    if way == "tree":
        distances = [2**level for level in range((n - 1).bit_length())]
        return [(2, _up(n - distance, 2 * distance), numbers) for distance in distances]
    if way == "halving-doubling":
        return [(2 * (2**levels < n), n - 2**levels, numbers)] + [
            (2, 2**levels, _up(numbers, 2**level)) for level in range(1, levels + 1)]
    nodes, chunk = n // per_node, _up(numbers, per_node)
    return [(2 * (per_node - 1), n, chunk), (2 * (nodes - 1), n, _up(chunk, nodes))]


def phases(way, world_size, numbers, per_node=None):
    """List (steps, bytes inside a node, bytes between) of float32: 0 is no message.

    Inside: the longest message. Between: the most bytes out of a node, or into one.
    Over nodes of `per_node` ranks the way is "ring" or "two-level".
    """
    parts = counts(way, world_size, numbers, per_node)
    if not per_node or per_node >= world_size:
        return [(steps, 4 * size, 0) for steps, _, size in parts]
    if way == "ring":  # in each step one message leaves each node
        return [(steps, 4 * size, 4 * size) for steps, _, size in parts]
    (inner, _, chunk), (outer, _, part) = parts
    return [(inner, 4 * chunk, 0), (outer, 0, 4 * part * per_node)]


def of_steps(steps, link):
    """Return the seconds of `steps`, each a list of the bytes of its messages."""
    return sum(link.alpha + max(step) / link.bandwidth for step in steps)


def message(size, link):
    """Return the seconds of a message of `size` bytes; 0 bytes are no message."""
    return link.alpha + size / link.bandwidth if size else 0.0


def seconds(steps, link, between=None):
    """Return the seconds of (steps, bytes inside a node, bytes between nodes).

    link: of ranks on one node. between: of a node and the others.
    """
    return sum(count * max(message(inside, link), message(out, between or link))
               for count, inside, out in steps)


def of_way(way, world_size, size, link, between=None, per_node=None):
    """Return the seconds of an all-reduce of `size` bytes of float32."""
    numbers = _up(int(size), 4)
    return seconds(phases(way, world_size, numbers, per_node), link, between)


def finish(size, cap, backward, allreduce, pieces=200):
    """Return the seconds from the start of backward until the last bucket has arrived.

    size, cap: bytes of the gradients, and of a bucket at most. Gradients come at an
    even pace, in so many pieces. A bucket is sent when it is full and the one before it
    has arrived, as DDP does. allreduce: a function from bytes to seconds.
    """
    free, held = 0.0, 0
    for i in range(pieces):
        if held and held + size / pieces > cap:
            free, held = max(free, i / pieces * backward) + allreduce(held), 0
        held += size / pieces
    return max(free, backward) + allreduce(held)


def step(compute, size, world_size, link, between=None, per_node=None):
    """Return a `Step` of data parallel training: `size` bytes of gradients.

    compute: seconds of arithmetic of one device, for its rows; a third is forward. What
    is still under way when backward ends is waited for: `exposed`, with the fastest way
    and the best bucket, `cap`. Loading, the update, slower ranks are left out.
    """
    if world_size == 1:
        return Step(1, compute, 0.0, compute, 1.0, None, None)
    backward, over = compute * 2 / 3, per_node and world_size > per_node

    def end(way, cap):
        return finish(size, cap, backward, lambda bucket: of_way(
            way, world_size, bucket, link, between, per_node))
    last, cap, way = min((end(way, cap), -cap, way) for cap in CAPS
                         for way in (("ring", "two-level") if over else ("ring",)))
    took = compute - backward + last
    return Step(world_size, compute, took - compute, took, compute / took, -cap, way)


def _up(numbers, parts):
    return -(-numbers // parts)
