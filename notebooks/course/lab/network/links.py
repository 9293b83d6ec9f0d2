"""Links between devices: what a message costs on each, and where that is said.

    Link      name, alpha (seconds a message), bandwidth (bytes a second), source
    LINKS     six of them by name
    link      one of them, or "12e9" and "5e-6,12e9": a bandwidth, with an alpha before

Alpha is what NVIDIA's NCCL assumes of one step of a ring with its Simple protocol (file
tuning.cc of its source, 2.18 and later: NVLink 3.4, PCIe 5.7, a network 14
microseconds). Bandwidths are those of one direction, as the standard or the maker
states them. No program reaches all of it: 80 to 90 % is good.
"""

import math
from collections import namedtuple

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
DEFAULT = 5e-6  # seconds a message, where only a bandwidth is given


def link(text):
    """Return the link of that name, or make one of "BANDWIDTH" or "ALPHA,BANDWIDTH"."""
    if text in LINKS:
        return LINKS[text]
    try:
        *alpha, bandwidth = map(float, text.split(","))
        alpha, = alpha or [DEFAULT]
    except ValueError:
        raise ValueError(f"link must be one of {', '.join(LINKS)}, or bytes a second, "
                         f"such as 12e9 or 5e-6,12e9, got {text!r}") from None
    if not (0 <= alpha < math.inf and 0 < bandwidth < math.inf):
        raise ValueError("a link needs alpha >= 0 seconds and a bandwidth > 0 bytes a "
                         f"second, both finite, got {text!r}")
    return Link(text, alpha, bandwidth, "given")
