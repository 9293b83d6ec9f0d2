"""Random numbers: which generators of the process drew, and where?"""

import random
import sys
import zlib

import torch


def generators():
    """Return a number for each generator of this process: another one once it drew."""
    numpy = sys.modules.get("numpy")
    words, *position = [b"", 0]
    if numpy:  # (name, an array of words, the position in it, ...)
        _, words, *position = numpy.random.get_state()
    return {
        "torch": zlib.crc32(torch.get_rng_state().numpy()),
        "random": hash(random.getstate()[1]),  # of None it is each process's own
        "numpy": zlib.crc32(bytes(words) + repr(position).encode()),
    }


class Draws:
    """Tell what was drawn since the last look."""

    def __init__(self):
        self.before = generators()

    def look(self):
        """Return {name: (number before, number now)} of generators that drew.

        One that was seeded in between has another number now than one that was not.
        """
        before, self.before = self.before, generators()
        both = {name: (x, self.before[name]) for name, x in before.items()}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}
