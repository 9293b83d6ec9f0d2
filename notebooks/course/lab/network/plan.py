"""Predict a step on more devices, before paying for them.

    Job       what is trained: weights, operations, rows
    Machine   what it is trained on: devices, links, nodes
    row       step time, efficiency, memory and cost on so many devices
    rows      the same for several numbers of devices
    table     rows as lines of text

The model: forward takes a third of the arithmetic and backward two thirds, at the speed
that the device reaches. Gradients are ready at an even pace during backward. Each
bucket's all-reduce begins when the bucket is full and the one before it has arrived.
What is still under way when backward ends is waited for. Loading, the update, and the
wait for slower ranks are left out, so a prediction is about the best to hope for.
"""

from collections import namedtuple

from course.lab.network import overlap
from course.lab.network.price import cheapest

Job = namedtuple("Job", "params flops rows batch_size itemsize states",
                 defaults=(32, None, 4, 1))
Machine = namedtuple("Machine", "speed link between per_node price ways",
                     defaults=(None, None, 1.0, ("ring",)))
NODELESS = ("ring", "tree", "star", "halving-doubling")  # ways over links of one kind
Row = namedtuple("Row", "world_size rows compute exposed step efficiency memory cost "
                        "cap way")


def rows(job, machine, world_sizes):
    """Return a `Row` for each number of devices."""
    return [row(job, machine, world_size) for world_size in world_sizes]


def row(job, machine, world_size):
    """Return the `Row` of so many devices.

    rows: of the largest shard. compute: seconds of arithmetic. exposed: seconds of the
    all-reduce that backward does not hide. efficiency: the speed-up over one device
    with the same rows in all, divided by the number of devices. memory: bytes of a
    rank's weights, gradients, optimizer and buckets, without activations. cost: of a
    million rows. cap: the best bucket, in bytes; None on one device.
    """
    _check(job, machine, world_size)
    total = job.batch_size or job.rows * world_size
    most = -(-total // world_size)
    compute = 3 * job.flops * most / machine.speed
    size = job.params * job.itemsize
    step, cap, way = compute, None, None
    if world_size > 1:
        backward = compute * 2 / 3
        layers = overlap.even(size)
        seconds, cap, way = min(
            (*overlap.best(layers, backward, _allreduce(machine, world_size, way)), way)
            for way in _ways(machine, world_size))
        step = compute - backward + seconds
    alone = 3 * job.flops * total / machine.speed
    return Row(world_size, most, compute, step - compute, step,
               alone / (world_size * step), _memory(job, world_size),
               1e6 / total * world_size * step / 3600 * machine.price, cap, way)


def table(found, unit=""):
    """Return rows as the lines of a table. unit: of the price."""
    lines = ["devices  rows each   step (ms)   waits (ms)  efficiency  memory (GB)  "
             f"{'cost of 10^6 rows':>17}  bucket (MB)  way"]
    for r in found:
        cap = "-" if r.cap is None else f"{r.cap / 1e6:g}"
        lines.append(
            f"{r.world_size:7,}  {r.rows:9,}  {_short(1e3 * r.step):>10}  "
            f"{_short(1e3 * r.exposed):>11}  {r.efficiency:10.1%}  "
            f"{_short(r.memory / 1e9):>11}  {_short(r.cost) + unit:>17}  "
            f"{cap:>11}  {r.way or '-'}")
    return "\n".join(lines)


def _ways(machine, world_size):
    if machine.per_node and world_size > machine.per_node:
        return ("ring", "two-level")
    return machine.ways


def _allreduce(machine, world_size, way):
    def seconds(size):
        return cheapest([way], world_size, size, machine.link, machine.between,
                        machine.per_node)[0]
    return seconds


def _memory(job, world_size):
    """Return bytes: weights, gradients, the optimizer's states; DDP's buckets."""
    kept = 2 + job.states + (world_size > 1)
    return job.params * job.itemsize * kept


def _check(job, machine, world_size):
    if job.batch_size and job.batch_size < world_size:
        raise ValueError(f"a minibatch of {job.batch_size} rows leaves some of "
                         f"{world_size} devices without a row")
    over = machine.per_node and world_size > machine.per_node
    if over and world_size % machine.per_node:
        raise ValueError(f"{world_size} devices do not fill nodes of "
                         f"{machine.per_node}")


def _short(number):
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
