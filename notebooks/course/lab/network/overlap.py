"""How much of the all-reduce hides behind backward, and which bucket hides most.

    buckets    cut the gradients into buckets, as DDP does
    finish     when the last bucket is there, from the start of backward
    best       the bucket cap with the earliest finish
    CAPS       the caps that are tried, in bytes

Backward makes gradients from the last layer to the first. Here they come at an even
pace, or layer by layer if the layers are given. A bucket is sent when it is full and
the one before it has arrived, as DDP does with one group. A small bucket is on its way
early and pays alpha often; a large one pays once, and late.
"""

CAPS = [int(mb * 1e6) for mb in (1, 2, 5, 10, 25, 50, 100, 250, 1000)]


def buckets(layers, cap):
    """Return [(part of backward, bytes)]: when each bucket is full, and what it holds.

    layers: (part of backward's time, bytes) for each layer, as backward meets them. A
    layer larger than `cap` is a bucket of its own; nothing is cut.
    """
    full, held, done = [], 0, 0.0
    for part, size in layers:
        if held and held + size > cap:
            full.append((done, held))
            held = 0
        held += size
        done += part
    return full + [(done, held)] * (held > 0)


def even(size, pieces=200):
    """Return layers of equal work and bytes, for a network that is not known better."""
    pieces = max(1, int(min(pieces, size)))
    return [(1 / pieces, size / pieces)] * pieces


def finish(layers, cap, backward, allreduce):
    """Return the seconds from the start of backward until the last bucket is there.

    backward: seconds. allreduce: a function from bytes to seconds. Not before backward
    ends.
    """
    free = 0.0
    for part, size in buckets(layers, cap):
        free = max(free, part * backward) + allreduce(size)
    return max(free, backward)


def best(layers, backward, allreduce, caps=CAPS):
    """Return (seconds, cap) of the cap with the earliest finish, the largest of these.

    Caps beyond what the layers hold are the same as one bucket for all.
    """
    times = [(finish(layers, cap, backward, allreduce), -cap) for cap in caps]
    seconds, cap = min(times)
    return seconds, -cap
