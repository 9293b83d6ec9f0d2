"""Say how long an all-reduce would take, from its own sends and a stated model.

    rounds    what a run sends, round after round
    seconds   how long these rounds take, by the model

The model has two numbers (Hockney 1994): a message of b bytes takes alpha + beta * b,
alpha seconds for the message and beta seconds for each byte. In a round a rank sends at
most one message and receives at most one, and it sends only what it held before. A
round takes as long as its longest message; adding takes no time. No clock is read.
"""

from manual_dp.lab.sends import record


def rounds(allreduce, world_size):
    """Run `allreduce`; return for each round its longest message, as parts of a tensor.

    world_size: 2 to 8. A ring over 4 ranks gives six times 0.25.
    """
    _, steps = record(allreduce, world_size)
    return [max(len(chunks) for _, _, chunks in step["sends"]) / world_size
            for step in steps]


def seconds(parts, size, alpha, beta):
    """Return how long rounds take for a tensor of `size` bytes.

    parts: from `rounds`. alpha: seconds a message; beta: seconds a byte.
    """
    return len(parts) * alpha + sum(parts) * size * beta
