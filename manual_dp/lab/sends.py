"""Record an all-reduce: who sends which chunk to whom, and what everybody holds then.

    record    run a function on real tensors, and return its steps

A send is seen where the function itself reads another rank's memory, by the rule of
`cost`. Sends go into one step as long as no rank sends twice in it, receives twice, or
passes on what it has only just received: so much can happen at the same time.
"""

import torch

from manual_dp.lab.cost import Meter, home


def record(allreduce, world_size):
    """Call `allreduce(tensors)`; return (start, steps): what was held, what was sent.

    start[rank][chunk] and every step's "held" alike count, for each rank, how often its
    numbers are in there: [1, 0, 1] is the sum of rank 0's and rank 2's. "sends" is a
    list of (rank, peer, chunks); "kind" is "add" or "copy", what was done with the
    first of them. Each tensor has `world_size` chunks of `world_size` numbers.
    """
    if not 2 <= world_size <= 8:
        raise ValueError(f"world_size must be 2 to 8, got {world_size}")
    tensors = [torch.eye(world_size, dtype=torch.float64)[rank].repeat(world_size)
               for rank in range(world_size)]
    start = _held(tensors)
    with _Recorder(tensors) as recorder:
        allreduce(list(tensors))
    recorder.close()
    return start, recorder.steps


class _Recorder(Meter):
    def __init__(self, tensors):
        super().__init__(tensors)
        self.tensors, self.steps = tensors, []
        self.ranks = {home(tensor) for tensor in tensors}

    def send(self, rank, peer, tensor, into, name):
        super().send(rank, peer, tensor, into, name)
        place = next((t for t in (into, tensor) if home(t) in self.ranks), tensor)
        size, first = len(self.tensors), place.storage_offset()
        last = first + place.numel() - 1
        chunks = [i for i in range(first // size, last // size + 1) if i < size]
        if not self.steps or self._must_wait(rank, peer, chunks):
            self.close()
            self.steps.append({"kind": "copy" if "copy" in name else "add",
                               "sends": []})
        self.steps[-1]["sends"].append((rank, peer, chunks))

    def close(self):
        """Note at the end of a step what everybody holds."""
        if self.steps:
            self.steps[-1]["held"] = _held(self.tensors)

    def _must_wait(self, rank, peer, chunks):
        return any(sender == rank or receiver == peer
                   or receiver == rank and set(chunks) & set(got)
                   for sender, receiver, got in self.steps[-1]["sends"])


def _held(tensors):
    return [tensor.view(len(tensors), -1).tolist() for tensor in tensors]
