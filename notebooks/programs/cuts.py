"""The three cuts of split_the_work, priced: by data, by layer, inside each layer.

    NETWORKS                              LeNet, VGG-16, a large transformer: `Layer`s
    by_data, by_layer, inside_a_layer     what a step costs: a `Cost`, or None
    CUTS                                  these three by name

The model, the same for all three: a layer has one operation in forward and two in
backward, of as much arithmetic each. None is shorter than a launch. Nothing overlaps.
A step computes all rows of the minibatch once. A weight takes 16 bytes (itself, its
gradient, and what Adam keeps), a number that is sent or kept takes 4.
"""

from collections import namedtuple

from course.lab.links import message, ring

Layer = namedtuple("Layer", "flops weights outputs")
Device = namedtuple("Device", "speed launch memory link")
Cost = namedtuple("Cost", "seconds arithmetic launches sends idle memory")
NUMBER, WEIGHT = (
    4,
    16,
)  # bytes of a number; of a weight with all that belongs to it


def _layer(size, into, out, kernel=1, pool=1):
    """Return a convolution of size x size places; a linear layer is one of 1 x 1."""
    return Layer(
        2 * size**2 * into * out * kernel**2,
        into * out * kernel**2 + out,
        out * (size // pool) ** 2,
    )


NETWORKS = {
    "LeNet": [
        _layer(*row)
        for row in (
            (26, 1, 20, 3, 2),
            (9, 20, 50, 5, 2),
            (1, 800, 128),
            (1, 128, 10),
        )
    ],
    "VGG-16": [
        _layer(*row)
        for row in (
            (224, 3, 64, 3),
            (224, 64, 64, 3, 2),
            (112, 64, 128, 3),
            (112, 128, 128, 3, 2),
            (56, 128, 256, 3),
            (56, 256, 256, 3),
            (56, 256, 256, 3, 2),
            (28, 256, 512, 3),
            (28, 512, 512, 3),
            (28, 512, 512, 3, 2),
            (14, 512, 512, 3),
            (14, 512, 512, 3),
            (14, 512, 512, 3, 2),
            (1, 25_088, 4096),
            (1, 4096, 4096),
            (1, 4096, 1000),
        )
    ],
    # 32 blocks for texts of 2,048 words: Narayanan et al. 2021
    "transformer": [
        Layer(
            24 * 2048 * 4096**2 + 4 * 2048**2 * 4096,
            12 * 4096**2,
            2048 * 4096,
        )
    ]
    * 32,
}


def by_data(layers, rows, world_size, device):
    """Return the `Cost` of cutting the minibatch: each device has all layers."""
    shard = -(-rows // world_size)
    sends = ring(world_size, _sum(layers, "weights") * NUMBER, device.link)
    return _cost(
        *_compute(layers, shard, device), sends, 0.0, _memory(layers, shard)
    )


def by_layer(layers, rows, world_size, device):
    """Return the `Cost` of a pipeline, with four micro-batches a stage if rows allow.

    A stage works on one micro-batch, sends, and takes the next; the slowest stage sets
    the pace. For N stages and m micro-batches that are m + N - 1 turns.
    """
    if len(layers) < world_size:
        return None
    pieces = min(rows, 4 * world_size) if world_size > 1 else 1
    piece, stages = -(-rows // pieces), cut(layers, world_size)
    arithmetic, launches = max(
        (_compute(stage, piece, device) for stage in stages), key=sum
    )
    sends = max(
        (
            2 * message(piece * stage[-1].outputs * NUMBER, device.link)
            for stage in stages[:-1]
        ),
        default=0.0,
    )
    idle = (world_size - 1) * (arithmetic + launches + sends)
    return _cost(
        pieces * arithmetic,
        pieces * launches,
        pieces * sends,
        idle,
        max(_memory(stage, rows) for stage in stages),
    )


def inside_a_layer(layers, rows, world_size, device):
    """Return the `Cost` of cutting each layer: all devices have all rows.

    After each layer the outputs go round a ring, on the way back their gradients.
    """
    thin = [
        layer._replace(flops=layer.flops / world_size) for layer in layers
    ]
    sends = sum(
        2
        * (world_size - 1)
        * message(rows * layer.outputs * NUMBER / world_size, device.link)
        for layer in layers
    )
    return _cost(
        *_compute(thin, rows, device),
        sends,
        0.0,
        _memory(layers, rows, world_size),
    )


CUTS = {
    "by data": by_data,
    "by layer": by_layer,
    "inside a layer": inside_a_layer,
}


def cut(layers, stages):
    """Cut layers into stages, so that the one with most operations has least."""
    count, ends = (
        len(layers),
        [_sum(layers[:i], "flops") for i in range(len(layers) + 1)],
    )
    least = [(end, ()) for end in ends]  # one stage: the first i layers
    for used in range(1, stages):
        least = [None] * (used + 1) + [
            min(
                (max(least[k][0], ends[i] - ends[k]), (*least[k][1], k))
                for k in range(used, i)
            )
            for i in range(used + 1, count + 1)
        ]
    places = [0, *least[count][1], count]
    return [layers[a:b] for a, b in zip(places, places[1:])]


def _compute(layers, rows, device):
    """Return (arithmetic, launches): seconds, and what launches add to them."""
    parts = [layer.flops * rows / device.speed for layer in layers]
    return 3 * sum(parts), 3 * sum(
        max(0.0, device.launch - part) for part in parts
    )


def _memory(layers, rows, part=1):
    return (
        _sum(layers, "weights") * WEIGHT / part
        + rows * _sum(layers, "outputs") * NUMBER
    )


def _sum(layers, field):
    return sum(getattr(layer, field) for layer in layers)


def _cost(*parts):
    return Cost(sum(parts[:4]), *parts)
