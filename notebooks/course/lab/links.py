"""Seconds of a message and of a ring all-reduce, from what a link is made for.

    LINKS      latency and bandwidth of PCIe, NVLink, Ethernet, InfiniBand, and sources
    message    seconds of a message over a link
    ring       seconds of a ring all-reduce over links that are all alike

A message of b bytes takes alpha + b / bandwidth seconds (Hockney 1994). A round takes
as long as its longest message. Adding up takes no time.

Bandwidths are those of one direction, as the standard or the maker states them; no
program reaches all of it, 80 to 90 % is good. Alpha is what NVIDIA's NCCL assumes of
one step of a ring with its Simple protocol (tuning.cc of its source, 2.18 and later).
"""

import math
from collections import namedtuple

# alpha: seconds that a message takes besides its bytes. bandwidth: bytes a second.
Link = namedtuple("Link", "name alpha bandwidth source")
LINKS = {
    link.name: link
    for link in [
        Link(
            "pcie4",
            5.7e-6,
            16 * 16e9 * 128 / 130 / 8,
            "PCI Express 4.0, 16 lanes of 16 GT/s, 128 bits in 130",
        ),
        Link(
            "nvlink4",
            3.4e-6,
            18 * 25e9,
            "the H100 white paper: 18 links of 25 GB/s each way",
        ),
        Link("eth25", 14e-6, 25e9 / 8, "Ethernet of 25 Gb/s, IEEE 802.3by"),
        Link("eth100", 14e-6, 100e9 / 8, "Ethernet of 100 Gb/s, IEEE 802.3bj"),
        Link("eth400", 14e-6, 400e9 / 8, "Ethernet of 400 Gb/s, IEEE 802.3bs"),
        Link("ib400", 14e-6, 400e9 / 8, "InfiniBand NDR: 4 lanes of 100 Gb/s"),
    ]
}


def message(size, link):
    """Return the seconds of a message of `size` bytes; 0 bytes are not sent at all."""
    if not size:
        return 0.0
    return link.alpha + size / link.bandwidth


def ring(world_size, size, link):
    """Return the seconds of a ring all-reduce of `size` bytes of float32.

    It takes 2 (N - 1) rounds, in each of which every rank sends one of N chunks. A
    chunk holds whole numbers, so some are one number longer, and all wait for those.
    """
    numbers = math.ceil(int(size) / 4)
    longest_chunk = 4 * math.ceil(numbers / world_size)
    return 2 * (world_size - 1) * message(longest_chunk, link)
