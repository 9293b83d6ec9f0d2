"""Which memory is alive during a step of training, and which operation made it?

Record      a meter: torch calls it after each operation, it counts what is alive
watch       take one step with Adam, when it has its state; return the record
draw        the record as a picture: a colour for each operation
draw_ways   the memory of several ways to take one step, in one picture
flop        the floating-point operations of a step
minibatch   images, or rows of numbers, and their labels
Block       a block of a transformer
Thin        a layer, then tanh
an_image    what one more image adds to the peak of a U-Net's step

python programs/memory_of_a_step.py   what the lesson says of other sizes; a few minutes
"""

import weakref
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from course.lab.figures import plot
from manual_dp.models.lenet import LeNet
from manual_dp.models.resnet import resnet18
from programs.segmentation import UNet

FIXED = "weights, Adam's state"
SMALL = "all that is smaller"


class Record(TorchDispatchMode):
    """Note after each operation how many bytes are alive, by the operation that made them.

    A tensor smaller than `least` bytes counts as SMALL. The meter knows a tensor only
    once an operation has touched it, and does not see what an operation needs for a
    moment inside of itself.
    """

    def __init__(self, least=0):
        super().__init__()
        self.least, self.made, self.alive = (
            least,
            weakref.WeakKeyDictionary(),
            Counter(),
        )
        self.begin()

    def begin(self):
        """Forget what was noted, but not what is alive."""
        self.rows, self.marks = [], {"forward": 0}

    def mark(self, phase):
        """Note that a phase begins, if it has not begun."""
        self.marks.setdefault(phase, len(self.rows))

    def name(self, tensor, name):
        """Say who made the memory under a tensor, unless somebody has said so."""
        memory = tensor.untyped_storage()  # two tensors may share it
        if memory in self.made:
            return
        size = memory.nbytes()
        if size < self.least and name != FIXED:
            name = SMALL
        self.made[memory] = name
        self.alive[name] += size
        weakref.finalize(memory, self.alive.subtract, {name: size})

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if (
            torch._C._current_graph_task_id() != -1
        ):  # it is backward() that calls
            self.mark("backward")
        result = operation(*args, **(kwargs or {}))
        for x in tree_leaves((args, kwargs, result)):
            if isinstance(x, torch.Tensor):
                self.name(x, str(operation).split(".")[1])
        self.rows.append(dict(self.alive))
        return result

    @property
    def levels(self):
        """Return the bytes alive after each operation."""
        return [sum(row.values()) for row in self.rows]

    @property
    def peak(self):
        """Return the most of them."""
        return max(self.levels)

    @property
    def when(self):
        """Return the phase of the peak."""
        place = self.levels.index(self.peak)
        return [name for name, at in self.marks.items() if at <= place][-1]

    @property
    def after_forward(self):
        """Return the bytes alive when forward ends, without FIXED ones."""
        row = self.rows[self.marks["backward"] - 1]
        return sum(row.values()) - row[FIXED]


def watch(net, step, X, y, least=0):
    """Take a step with Adam, which has its state already; return the record.

    step(net, X, y) does forward and backward.
    """
    optimizer = torch.optim.Adam(net.parameters())
    for p in net.parameters():  # Adam makes its state in its first step
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    with Record(least) as record:
        for p in net.parameters():
            for x in (p, *optimizer.state[p].values()):
                record.name(x, FIXED)
        step(net, X, y)
        record.mark("update")
        optimizer.step()
    return record


def draw(record):
    """Draw what is alive: operation by operation, the three phases equally wide."""
    import matplotlib.pyplot as plt

    x = plot.phases([*record.marks.values(), len(record.rows)])
    peak = record.rows[record.levels.index(record.peak)]
    names = [
        name
        for row in record.rows
        for name in row
        if name not in (FIXED, SMALL)
    ]
    names = [
        FIXED,
        SMALL,
        *sorted(
            dict.fromkeys(names),
            key=lambda name: peak.get(name, 0),
            reverse=True,
        ),
    ]
    ax = plot.axes("", "MB alive", height=3.6, width=6.4)
    rows = [[row.get(name, 0) / 1e6 for row in record.rows] for name in names]
    grey = ["#8b9199", "#c9cdd3"]
    ax.stackplot(
        x, rows, labels=names, colors=grey + plot.COLOURS, lw=0, step="post"
    )
    for edge in (1, 2):
        ax.axvline(edge, color="#b5bac1", lw=0.8)
    for at, words, place in (
        (record.levels.index(record.peak), "the peak", (8, -2)),
        (record.marks["backward"] - 1, "forward ends", (-62, 18)),
    ):
        ax.annotate(
            f"{words}: {record.levels[at] / 1e6:.1f}",
            (x[at], record.levels[at] / 1e6),
            place,
            textcoords="offset points",
        )
    ax.set_xticks([0.5, 1.5, 2.5], list(record.marks), fontsize=11)
    ax.tick_params(axis="x", length=0)
    ax.set(xlim=(0, 3), ylim=(0, 1.12 * record.peak / 1e6))
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], loc=(0.67, 0.2), frameon=False)
    plt.show()


def draw_ways(records):
    """Draw the memory of {way: record} in forward and backward, a line for each."""
    import matplotlib.pyplot as plt

    ax = plot.axes("operations of forward and backward", "MB alive", height=3)
    for (name, record), colour in zip(records.items(), (plot.COLOURS[3:])):
        turn, levels = record.marks["backward"] - 1, record.levels
        line = [level / 1e6 for level in levels[: record.marks["update"]]]
        ax.plot(line, color=colour, lw=1.6, label=name)
        ax.plot(turn, line[turn], "o", color=colour, ms=5)
    fixed = record.rows[0][FIXED] / 1e6
    ax.axhspan(0, fixed, color=plot.FAINT, lw=0)
    ax.text(8, 0.3 * fixed, FIXED)
    ax.set(ylim=(0, None), xlim=(0, None))
    ax.legend(frameon=False)
    plt.show()


def flop(step, net, X, y):
    """Return the floating-point operations of forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step(net, X, y)
    return counter.get_total_flops()


def minibatch(n, *shape, **where):
    """Return n rows of this shape, and a label below 10 for each."""
    return torch.rand(n, *shape, **where), torch.randint(10, (n,), **where)


class Block(nn.Module):
    """A block of a transformer: attention, then two layers, 4 times wider between.

    A row is a word; each `words` rows are a text, whose words look at one another.
    """

    def __init__(self, width, words=32, heads=4):
        super().__init__()
        self.text = (-1, words, 3, heads, width // heads)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.up, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, X):
        """Keep 16 numbers for each one of X, and a few more."""
        heads = (
            self.qkv(self.norms[0](X)).view(self.text).permute(2, 0, 3, 1, 4)
        )
        Y = F.scaled_dot_product_attention(*heads).transpose(1, 2)
        X = X + self.out(Y.reshape(X.shape))
        return X + self.down(F.gelu(self.up(self.norms[1](X))))


class Thin(nn.Module):
    """A layer, then tanh."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, X):
        """Keep one number for each one of X: tanh's backward asks for its output."""
        return torch.tanh(self.layer(X))


def usual(net, X, y):
    """Do forward and backward, with nothing saved."""
    F.cross_entropy(net(X), y).backward()


def segments(every):
    """Return a step like `usual` that keeps the input of each `every` layers only."""

    def step(net, X, y):
        for i in range(0, len(net), every):
            X = checkpoint(net[i : i + every], X, use_reentrant=False)
        F.cross_entropy(X, y).backward()

    return step


def layers(layer, n, width=64):
    """Return n of them, the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(*[layer(width) for _ in range(n)])


def line(net, n, *shape, **where):
    """Return the fixed part of the peak, and that of a row, from n and 2 n rows."""
    one, two = (
        watch(net, usual, *minibatch(rows, *shape, **where)).peak
        for rows in (n, 2 * n)
    )
    return one - (two - one), (two - one) / n


def an_image(size, width=64):
    """Return the bytes that an image of size x size adds to the peak of a U-Net's step.

    width: its channels at full size. Nothing is computed: tensors on "meta" have
    shapes and no numbers.
    """
    with torch.device("meta"):
        net = UNet(width)
        one, two = (
            watch(
                net,
                usual,
                torch.rand(n, 1, size, size),
                torch.randint(2, (n, size, size)),
            ).peak
            for n in (4, 8)
        )
    return (two - one) / 4


def best(layer, n, rows, width=64):
    """Return the number of layers in a segment whose peak is lowest, and all peaks."""
    batch, peaks = minibatch(rows, width), {}
    for every in [k for k in range(1, n + 1) if n % k == 0]:
        peaks[every] = watch(
            layers(layer, n, width), segments(every), *batch
        ).peak
    return min(peaks, key=peaks.get), peaks


def kept(width, n, rows):
    """Return what a block keeps more if there are n + 1, in sizes of its input."""
    X, y = minibatch(rows, width)
    one, two = (
        watch(layers(Block, k, width), usual, X, y) for k in (n, n + 1)
    )
    return (two.after_forward - one.after_forward) / X.nbytes


def forward_alone(net, X, grad):
    """Return the bytes alive when forward ends, and at its peak."""
    with torch.set_grad_enabled(grad), Record() as record:
        for p in net.parameters():
            p.detach()  # an operation, so that the meter knows it
        scores = net(X)
        torch.empty(0)  # one more, so that it counts after forward
    del scores
    return record.levels[-1], record.peak


def main(depth=12, words=(32, 64, 128, 512, 2048)):
    """Print what the lesson says of other sizes than those on its page."""
    lenet, blocks = LeNet(), layers(Block, depth)
    with torch.device("meta"):
        resnet = resnet18()
    print(
        "the line: fixed part and part of a row, in MB, from n and 2 n rows"
    )
    for n in 1, 8, 16, 64, 128, 200:
        print(f"  {n:3} LeNet: %.3f %.4f" % mega(line(lenet, n, 1, 28, 28)))
    for n in 4, 16, 32, 64:
        where = line(resnet, n, 3, 224, 224, device="meta")
        print(f"  {n:3} ResNet-18: %.1f %.2f" % mega(where))
    print("an image adds to the U-Net's peak, in MB")
    for size in 128, 256, 512, 1024:
        print(f"  {an_image(size) / 1e6:.0f}: {size} x {size}")
    print("a block keeps, in sizes of its input")
    for width, n, rows in (
        (64, 1, 1024),
        (64, 5, 64),
        (128, 2, 256),
        (512, 1, 96),
    ):
        print(
            f"  {kept(width, n, rows):.2f}: width {width}, {n} blocks, {rows} words"
        )
    print(
        "which number of layers in a segment has the lowest peak, and the peaks in MB"
    )
    for layer, n, rows, width in (
        *((Thin, n, 1024, 64) for n in (9, 16, 36, 64)),
        *((Block, n, 256, 32) for n in (6, 12, 16)),
        *((Block, n, 2048, 16) for n in (32, 34)),  # many words
    ):
        every, peaks = best(layer, n, rows, width)
        told = ", ".join(
            f"{k}: {peak / 1e6:.2f}" for k, peak in peaks.items()
        )
        print(f"  {every} of {n} {layer.__name__}: {told}")
    print(f"{depth} blocks, peaks in MB without and with checkpoints")
    for rows in words:
        batch = minibatch(rows, 64)
        before, after = (
            watch(layers(Block, depth), way, *batch)
            for way in (usual, segments(1))
        )
        told = f"{before.peak / 1e6:.2f} {after.peak / 1e6:.2f}"
        print(f"  {rows:4} words: {told}, in {before.when} and {after.when}")
    print("forward alone, in MB when it ends and at its peak")
    for name, net, shape in (
        ("LeNet, 128 images", lenet, (128, 1, 28, 28)),
        (f"{depth} blocks, 1,024 words", blocks, (1024, 64)),
    ):
        for grad in True, False:
            end, peak = forward_alone(net, torch.rand(shape), grad)
            told = f"{end / 1e6:.1f} {peak / 1e6:.1f}"
            print(f"  {told}: {name}, gradients {'on' if grad else 'off'}")


def mega(sizes):
    """Return sizes in units of a million."""
    return tuple(size / 1e6 for size in sizes)


if __name__ == "__main__":
    main()
