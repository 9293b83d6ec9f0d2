"""What lesson 15 shows: training, memory and gradients with numbers of 16 bits.

network, batches  a small network for 8 x 8 digits, and the rows of each step
train             400 steps of Adam; the losses, and the share of new digits known
train_all         the same with weights, gradients and Adam's state in bfloat16
draw_ways         three ways to train, at two rates
table             five types, and what becomes of three numbers
kept              the bytes that autograd keeps of LeNet's forward
slower            how many times as long a product takes in bfloat16
draw_gradients    the gradients by their exponent, and what float16 makes of them
gradients_of      the gradients that an optimizer steps with
in_float16        a hundred steps in float16 with a scaler
draw_factors      the scale of each step, and which steps were skipped

python programs/sixteen_bits.py     the numbers of ten seeds, in some minutes
"""

import math
import sys
import time
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from course.lab.figures import plot
from manual_dp import load_data
from manual_dp.models.lenet import LeNet

INK, FAINT = plot.INK, plot.FAINT
BF16, FP16 = "#7a5ea8", "#a08a2c"
WAYS = "32 bits", "16 bits for products", "16 bits for all"


@cache
def digits():
    """Return 8 x 8 digits: X and y to train on, X and y of new ones."""
    found = []
    for part in load_data("digits", 32):
        found += [part.X[:, 0, 2:26:3, 2:26:3].flatten(1), part.y]
    return found


def network(seed):
    """Return a network of three layers, 64 to 10."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def batches(seed, steps=400):
    """Yield 32 random digits and their labels for each step."""
    X, y, _, _ = digits()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(X), (32,), generator=generator)
        yield X[rows], y[rows]


def known(model, dtype=torch.float32):
    """Return the share of new digits that the model names right."""
    _, _, X, y = digits()
    return (model(X.to(dtype)).argmax(1) == y).double().mean().item()


@cache
def train(seed, lr, dtype=torch.bfloat16, keep=None):
    """Take 400 steps; products have this dtype, weights and Adam's state float32.

    keep: called with each weight after each step; what it returns is the new weight.
    """
    model, losses = network(seed), []
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for X, y in batches(seed):
        mixed = dtype != torch.float32
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = F.cross_entropy(model(X), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for p in model.parameters() if keep else ():
            p.data = keep(p.data).float()
        losses.append(loss.item())
    return losses, known(model)


def train_all(seed, lr):
    """Take the same steps with all numbers in bfloat16 but those of the loss."""
    model, losses = network(seed).bfloat16(), []
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for X, y in batches(seed):
        loss = F.cross_entropy(model(X.bfloat16()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, known(model, torch.bfloat16)


def end(losses):
    """Return the mean of the last 20 losses."""
    return sum(losses[-20:]) / 20


def three_ways(seed, lr):
    """Return {way: (losses, share of new digits known)}."""
    runs = (
        train(seed, lr, torch.float32),
        train(seed, lr, keep=None),
        train_all(seed, lr),
    )
    return dict(zip(WAYS, runs))


def draw_ways(seed):
    """Train in three ways at two rates; print where they end, and draw the losses."""
    import matplotlib.pyplot as plt

    rates = 1e-3, 1e-4
    runs = [three_ways(seed, lr) for lr in rates]
    print("after 400 steps         rate 0.001         rate 0.0001")
    print("                        loss  new digits   loss  new digits")
    for way in WAYS:
        words = (
            f"{end(losses):7.2f} {share:8.0%}   "
            for losses, share in (run[way] for run in runs)
        )
        print(f"{way:20} ", *words)
    looks = (
        {"color": INK, "lw": 5, "alpha": 0.3},
        {"color": BF16, "lw": 1.5},
        {"color": BF16, "lw": 1.5, "ls": (0, (4, 2))},
    )
    axes = plot.axes("step", panels=2, width=6.4, height=2.9)
    for ax, lr, run in zip(axes, rates, runs):
        for look, way in zip(looks, WAYS):
            losses = torch.tensor(run[way][0]).unfold(0, 20, 1).mean(1)
            ax.plot(range(20, 401), losses, label=way, **look)
        ax.set_title(f"rate {lr:g}", loc="left", fontsize=11, color=INK)
        ax.set(ylim=(0, 2.5), xticks=range(0, 401, 100))
    axes[0].set_ylabel("loss, mean over 20 steps")
    axes[1].legend(frameon=False, fontsize=10, loc="lower left")
    plt.show()


TYPES = {  # sign, exponent, digits
    "float32": (1, 8, 23),
    "bfloat16": (1, 8, 7),
    "float16": (1, 5, 10),
    "float8_e5m2": (1, 5, 2),
    "float8_e4m3fn": (1, 4, 3),
}


def table():
    """Draw the bits of five types; print their range, and three numbers in each."""
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(figsize=(6.4, 1.9), dpi=110, layout="constrained")
    colours = "#6b7078", plot.COLOURS[5], "#b9c7c9"
    for row, (name, parts) in enumerate(TYPES.items()):
        left = 0
        for bits, colour in zip(parts, colours):
            for bit in range(bits):
                ax.barh(row, 0.9, left=left + bit, height=0.7, color=colour)
            left += bits
        look = {"ha": "right", "va": "center", "color": INK, "fontsize": 11}
        ax.text(-0.5, row, name, **look)
    for x, words in ((0.4, "sign"), (5, "exponent"), (20, "digits")):
        look = {"ha": "center", "va": "center", "color": INK, "fontsize": 11}
        ax.text(x, -0.9, words, **look)
    ax.set(xlim=(-8, 32), ylim=(4.5, -1.4))
    ax.axis("off")
    plt.show()

    print(
        "               largest  next after 1    100000    1.001      1e-08"
    )
    for name in TYPES:
        dtype = getattr(torch, name)
        info = torch.finfo(dtype)
        shown = (
            f"{torch.tensor(x).to(dtype).item():9.5g}"
            for x in (1e5, 1.001, 1e-8)
        )
        print(f"{name:13} {info.max:8.2g}  1 + {info.eps:<7.2g}", *shown)


def kept(rows, dtype):
    """Return the bytes that autograd keeps until LeNet's backward, weights not counted."""
    model, X = LeNet(), torch.rand(rows, 1, 28, 28)
    own, sizes = {p.data_ptr() for p in [*model.parameters(), X]}, {}

    def pack(tensor):
        if tensor.data_ptr() not in own:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        mixed = dtype != torch.float32
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            y = torch.zeros(rows, dtype=torch.long)
            loss = F.cross_entropy(model(X), y)
    del loss
    return sum(sizes.values())


def slower(times=9):
    """Return how many times as long as in float32 a product takes in bfloat16, and where."""
    device, side = (
        ("cuda", 4096) if torch.cuda.is_available() else ("cpu", 256)
    )
    clock = time.perf_counter if device == "cuda" else time.process_time
    least = []
    for dtype in (torch.bfloat16, torch.float32):
        a, found = torch.rand(side, side).to(device, dtype), []
        for _ in range(times):
            start = clock()
            a @ a
            if device == "cuda":
                torch.cuda.synchronize()  # a GPU computes while Python goes on
            found.append(clock() - start)
        least.append(min(found))
    return f"{least[0] / least[1]:.1f} on a {device.upper().replace('CUDA', 'GPU')}"


@cache
def gradients(seed, steps=800):
    """Return the gradients in float64 after 800 steps, without those that are zero."""
    model = network(seed).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for X, y in batches(seed, steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X.double()), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    X, y, _, _ = digits()
    F.cross_entropy(model(X[:256].double()), y[:256]).backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    return flat[flat != 0]


def in_half(grads, power):
    """Return the shares that are zero and infinite in float16, times 2 ** power."""
    half = (grads * 2.0**power).half()
    return [part.double().mean().item() for part in (half == 0, half.isinf())]


def draw_gradients(seed):
    """Sort the gradients by exponent; print what float16 makes of them."""
    import matplotlib.pyplot as plt

    grads = gradients(seed)
    print("of the gradients, in float16")
    for power in (0, 16, 24):
        zero, infinite = in_half(grads, power)
        times = "as they are:" if not power else f"times {2**power:,}:"
        print(f"{times:18} {zero:5.1%} zero, {infinite:5.1%} infinite")

    _, axes = plt.subplots(
        2, figsize=(6.4, 3.9), dpi=110, sharex=True, layout="constrained"
    )
    zones = (
        (-50, -26, "become zero", "#f3d5d5"),
        (-25, -15, "fewer digits", FAINT),
        (16, 30, "infinite", "#f3d5d5"),
    )
    for ax, power in zip(axes, (0, 16)):
        exponents = torch.log2((grads * 2.0**power).abs()).floor()
        bins = range(-50, 31)
        ax.hist(exponents.numpy(), bins=bins, color=FP16, align="left")
        for left, right, words, colour in zones:
            ax.axvspan(left - 0.5, right + 0.5, color=colour, zorder=0)
            ax.text(
                (left + right) / 2,
                0.9,
                words,
                ha="center",
                fontsize=10,
                transform=ax.get_xaxis_transform(),
                color=INK,
            )
        title = f"times {2**power:,}" if power else "gradients as they are"
        ax.set_title(title, loc="left", fontsize=11, color=INK)
        ax.set(xlim=(-50.5, 30.5), ylim=(0.7, 9000), ylabel="how many")
        ax.set_yscale("log")
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].set_xlabel("exponent: the size is 2 to the power of ...")
    plt.show()


def gradients_of(optimizer):
    """Return the gradients of all weights that have one."""
    return [
        p.grad
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]


def in_float16(scaler, seed, steps=100):
    """Train in float16 with this scaler; return the weights, and each step's factor."""
    model, factors = network(seed), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for X, y in batches(seed, steps):
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(X), y)
        factors.append(scaler.scale(torch.ones(())).item())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if hasattr(scaler, "update"):
            scaler.update()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights, factors


def draw_factors(factors):
    """Draw the factor of each step, and a cross where a step was skipped."""
    import matplotlib.pyplot as plt

    powers = [int(math.log2(factor)) for factor in factors]
    pairs = zip(powers, powers[1:])
    skipped = [i for i, (a, b) in enumerate(pairs) if b < a]
    ax = plot.axes("step", "factor", height=2.6)
    ax.step(range(len(powers)), powers, where="post", color=FP16)
    ax.plot(
        skipped,
        [powers[i] for i in skipped],
        "x",
        color="#8c2f2f",
        label=f"skipped: {len(skipped)} of {len(powers)} steps",
    )
    ticks = range(min(powers), max(powers) + 1, 2)
    ax.set_yticks(ticks, [f"$2^{{{power}}}$" for power in ticks])
    ax.legend(frameon=False, fontsize=10)
    plt.show()


def at_random(w, dropped=16):
    """Round float32 numbers up or down at random, so that the mean is right.

    dropped: the bits that go; 16 leaves those of bfloat16.
    """
    bits = w.view(torch.int32)
    bits = bits + torch.randint(2**dropped, w.shape, dtype=torch.int32)
    return (bits & -(2**dropped)).view(torch.float32)


def unmoved(seed, lr=1e-4):
    """Return the share of bfloat16 weights that Adam's first step should move and does not."""
    model = network(seed).bfloat16()
    before = [p.detach().clone() for p in model.parameters()]
    X, y = next(batches(seed))
    F.cross_entropy(model(X.bfloat16()).float(), y).backward()
    torch.optim.Adam(model.parameters(), lr).step()
    stays = [
        (p == old)[p.grad != 0] for p, old in zip(model.parameters(), before)
    ]
    return torch.cat(stays).double().mean().item()


def ring(seed, ranks, mixed=False):
    """Return how far a mean in bfloat16 is off: around a ring, in a tree, once."""
    generator = torch.Generator().manual_seed(seed)
    shape, wide = (ranks, 200), torch.float64
    if mixed:
        grads = torch.randn(shape, generator=generator, dtype=wide)
    else:
        grads = 0.5 + torch.rand(shape, generator=generator, dtype=wide)
    parcels = (grads / ranks).bfloat16()
    partial = parcels[0]
    for parcel in parcels[1:]:
        partial = partial + parcel
    tree = parcels
    while len(tree) > 1:
        tree = tree[::2] + tree[1::2]
    once = parcels.double().sum(0).bfloat16()
    right = grads.mean(0)
    return [
        ((found.double() - right).norm() / right.norm()).item()
        for found in (partial, tree[0], once)
    ]


def spread(values, form="{:.2f}"):
    """Return "lowest to highest"."""
    return " to ".join(
        form.format(value) for value in (min(values), max(values))
    )


def main(seeds=range(10)):
    """Print what the lesson says about ten seeds."""
    for lr in (1e-3, 1e-4):
        runs = [three_ways(seed, lr) for seed in seeds]
        for way in WAYS:
            ends = [end(run[way][0]) for run in runs]
            shares = [run[way][1] for run in runs]
            share = spread(shares, "{:.0%}")
            print(f"rate {lr:g}, {way}: loss {spread(ends)}, {share} known")
        wide = [end(run[WAYS[0]][0]) for run in runs]
        keeps = {
            "rounded to the nearest": torch.Tensor.bfloat16,
            "rounded at random": at_random,
            "20 bits dropped": lambda w: at_random(w, 20),
            "22 bits dropped": lambda w: at_random(w, 22),
            "23 bits dropped": lambda w: at_random(w, 23),
        }
        for name, keep in keeps.items():
            ends = [end(train(seed, lr, keep=keep)[0]) for seed in seeds]
            far = [a - b for a, b in zip(ends, wide)]
            print(f"  weights {name}: {spread(ends)}, ", end="")
            print(f"{spread(far, '{:+.3f}')} from 32 bits", flush=True)
    shares = spread([unmoved(seed) for seed in seeds], "{:.1%}")
    print(f"bfloat16 weights that a first step leaves as they are: {shares}")
    for power in (-10, 0, 8, 16, 24):  # -10: divided among 1,024 ranks
        shares = zip(*(in_half(gradients(seed), power) for seed in seeds))
        zero, infinite = (spread(part, "{:.1%}") for part in shares)
        print(
            f"float16, times 2 ** {power}: {zero} zero, {infinite} infinite"
        )
    for ranks in (8, 64, 256, 1024):
        for mixed in (False, True):
            found = zip(*(ring(seed, ranks, mixed) for seed in seeds))
            words = [spread(part, "{:.1%}") for part in found]
            kind = "mixed signs" if mixed else "0.5 to 1.5"
            print(
                f"{ranks} ranks, {kind}: ring, tree, once", *words, sep=" | "
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
