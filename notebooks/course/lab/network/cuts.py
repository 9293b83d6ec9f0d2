"""Lesson 1's three cuts, priced: by data, by layer, inside each layer.

    Layer         one layer: name, operations, weights, outputs
    NETWORKS      LeNet, VGG-16 and a large transformer as lists of layers
    Device        speed, launch, memory, link
    by_data, by_layer, inside_a_layer
                  what a step costs: a `Cost`, or None where it cannot be done
    CUTS          these three by name
    best          the fastest cut that fits into memory
    advise        its name, or that one device is as good

The model, the same for all three: a layer has one operation in forward and two in
backward, of as much arithmetic each. None is shorter than a launch. Nothing overlaps.
A step computes all rows of the minibatch once. A weight takes 16 bytes (itself, its
gradient, and what Adam keeps), a number that is sent or kept takes 4.
"""

from collections import namedtuple

from course.lab.network.price import message, of_way

Layer = namedtuple("Layer", "name flops weights outputs")
Device = namedtuple("Device", "speed launch memory link")
Cost = namedtuple("Cost", "seconds arithmetic launches sends idle memory")

NUMBER, WEIGHT = 4, 16  # bytes of a number; of a weight with all that belongs to it


def _conv(name, size, into, out, kernel, pool=1):
    weights = into * out * kernel**2 + out
    return Layer(name, 2 * size**2 * into * out * kernel**2, weights,
                 out * (size // pool) ** 2)


def _linear(name, into, out):
    return Layer(name, 2 * into * out, into * out + out, out)


def _blocks(count, width, length):
    """Return a transformer's blocks for texts of so many words."""
    flops = 24 * length * width**2 + 4 * length**2 * width
    return [Layer(f"block {i + 1}", flops, 12 * width**2, length * width)
            for i in range(count)]


def _vgg16():
    layers, into = [], 3
    for size, out, count in ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3),
                             (14, 512, 3)):
        for i in range(count):
            layers.append(_conv(f"conv {len(layers) + 1}", size, into, out, 3,
                                2 if i == count - 1 else 1))
            into = out
    return layers + [_linear(f"linear {i + 1}", *sizes) for i, sizes in enumerate(
        ((25_088, 4096), (4096, 4096), (4096, 1000)))]


NETWORKS = {
    "LeNet": [_conv("conv 1", 26, 1, 20, 3, 2), _conv("conv 2", 9, 20, 50, 5, 2),
              _linear("linear 1", 800, 128), _linear("linear 2", 128, 10)],
    "VGG-16": _vgg16(),
    "transformer": _blocks(32, 4096, 2048),  # Narayanan et al. 2021: the operations
}


def by_data(layers, rows, world_size, device):
    """Return the `Cost` of cutting the minibatch: each device has all layers."""
    if rows < world_size:
        return None
    shard = -(-rows // world_size)
    arithmetic, launches = _compute(layers, shard, device)
    weights = _sum(layers, "weights")
    sends = of_way("ring", world_size, weights * NUMBER, device.link)
    memory = weights * WEIGHT + shard * _sum(layers, "outputs") * NUMBER
    return _cost(arithmetic, launches, sends, 0.0, memory)


def by_layer(layers, rows, world_size, device):
    """Return the `Cost` of a pipeline, with four micro-batches a stage if rows allow.

    A stage works on one micro-batch, sends, and takes the next; the slowest stage sets
    the pace. For N stages and m micro-batches that are m + N - 1 turns.
    """
    if len(layers) < world_size:
        return None
    pieces = min(rows, 4 * world_size) if world_size > 1 else 1
    piece = -(-rows // pieces)
    stages = cut(layers, world_size)
    times = [_compute(stage, piece, device) for stage in stages]
    arithmetic, launches = max(times, key=sum)
    sends = max((2 * message(piece * stage[-1].outputs * NUMBER, device.link)
                 for stage in stages[:-1]), default=0.0)
    memory = max(_sum(stage, "weights") * WEIGHT
                 + rows * _sum(stage, "outputs") * NUMBER for stage in stages)
    idle = (world_size - 1) * (arithmetic + launches + sends)
    return _cost(pieces * arithmetic, pieces * launches, pieces * sends, idle, memory)


def inside_a_layer(layers, rows, world_size, device):
    """Return the `Cost` of cutting each layer: all devices have all rows.

    After each layer the outputs are passed round a ring, and on the way back their
    gradients.
    """
    thin = [layer._replace(flops=layer.flops / world_size) for layer in layers]
    arithmetic, launches = _compute(thin, rows, device)
    sends = sum(2 * (world_size - 1) * message(
        rows * layer.outputs * NUMBER / world_size, device.link) for layer in layers)
    memory = (_sum(layers, "weights") * WEIGHT / world_size
              + rows * _sum(layers, "outputs") * NUMBER)
    return _cost(arithmetic, launches, sends, 0.0, memory)


CUTS = {"by data": by_data, "by layer": by_layer, "inside a layer": inside_a_layer}


def best(layers, rows, world_size, device):
    """Return (name, Cost) of the fastest cut that fits into memory, or (None, None)."""
    found = {name: way(layers, rows, world_size, device) for name, way in CUTS.items()}
    fits = [(cost.seconds, name) for name, cost in found.items()
            if cost and cost.memory <= device.memory]
    name = min(fits)[1] if fits else None
    return name, found.get(name)


def advise(layers, rows, world_size, device):
    """Return the name of the best cut, "stay on 1" or "does not fit"."""
    name, cost = best(layers, rows, world_size, device)
    _, alone = best(layers, rows, 1, device)
    if name is None:
        return "does not fit"
    return "stay on 1" if alone and alone.seconds <= cost.seconds else name


def cut(layers, stages):
    """Cut layers into so many stages, so that the one with most operations has least.

    In each stage there is a layer at least.
    """
    ends = [0]
    for layer in layers:
        ends.append(ends[-1] + layer.flops)
    count = len(layers)
    least = [(ends[i], ()) for i in range(count + 1)]  # one stage: the first i layers
    for used in range(1, stages):
        least = [None] * (used + 1) + [
            min((max(least[k][0], ends[i] - ends[k]), (*least[k][1], k))
                for k in range(used, i)) for i in range(used + 1, count + 1)]
    places = [0, *least[count][1], count]
    return [layers[a:b] for a, b in zip(places, places[1:])]


def _compute(layers, rows, device):
    """Return (arithmetic, launches): seconds, and what launches add to them."""
    parts = [layer.flops * rows / device.speed for layer in layers]
    return (3 * sum(parts), 3 * sum(max(0.0, device.launch - part) for part in parts))


def _sum(layers, field):
    return sum(getattr(layer, field) for layer in layers)


def _cost(arithmetic, launches, sends, idle, memory):
    return Cost(arithmetic + launches + sends + idle, arithmetic, launches, sends, idle,
                memory)
