"""Say how long an all-reduce would take, from its messages and a stated model.

    messages    every message of a run, in order, with the memory it read and wrote
    finish      the time at which the last message has arrived

No clock is read. The model has two numbers (Hockney 1994): a message of b bytes takes
alpha + beta * b, alpha seconds for the message and beta seconds for each byte. A rank
sends one message at a time and receives one at a time, both at once if it likes.
Adding takes no time. A message waits until what it reads has been written.
"""

from collections import namedtuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# size in bytes; read: where the bytes were and what they were made of on that rank;
# written: where they went. Both are lists of (first address, last address + 1).
Message = namedtuple("Message", "source target size read written")


def messages(function, tensors):
    """Call `function(tensors)`; return the messages that it needs, a list in order.

    tensors: one for each rank, each in memory of its own. An operation runs where its
    first tensor lives; whatever else it reads from another rank is a message.
    """
    with _Recorder(tensors) as recorder:
        function(tensors)
    return recorder.messages


def finish(messages, alpha, beta):
    """Return when the last message has arrived, if the first one starts at 0.

    With alpha = 1, beta = 0 it is the longest chain of messages; with alpha = 0,
    beta = 1 the bytes that must cross one after another.
    """
    ends = []
    for message in messages:
        waits = [end for end, before in zip(ends, messages)
                 if _must_wait(message, before)]
        ends.append(max(waits, default=0) + alpha + beta * message.size)
    return max(ends, default=0)


def _must_wait(message, before):
    """Return whether the two share a link, or memory that one of them writes."""
    return (message.source == before.source or message.target == before.target
            or _overlap(message.read, before.written)
            or _overlap(message.written, before.read))


def _overlap(spans, others):
    return any(a < d and c < b for a, b in spans for c, d in others)


class _Recorder(TorchDispatchMode):
    def __init__(self, tensors):
        super().__init__()
        self.owner = {_home(tensor): rank for rank, tensor in enumerate(tensors)}
        self.keep = list(tensors)  # a freed home could be given to another rank
        self.made_of = {}  # home: what its numbers were made of, on the same rank
        self.messages = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        read = [t for t in _tensors(args) if _home(t) in self.owner]
        if read:
            here, results = self.owner[_home(read[0])], _tensors(out)
            written = [_span(t) for t in results]
            for t in read[1:]:
                there, size = self.owner[_home(t)], t.numel() * t.element_size()
                if there != here:
                    self.messages.append(
                        Message(there, here, size, self._sources(t), written))
            for t in results:
                self._note(t, here, read)
        return out

    def _note(self, result, here, read):
        self.owner.setdefault(_home(result), here)
        self.keep.append(result)
        for t in read:
            if self.owner[_home(t)] == here and _home(t) != _home(result):
                self.made_of.setdefault(_home(result), []).extend(self._sources(t))

    def _sources(self, tensor):
        return [_span(tensor), *self.made_of.get(_home(tensor), [])]


def _home(tensor):
    return tensor.untyped_storage().data_ptr()


def _span(tensor):
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def _tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
