"""What nn.DataParallel does in a step: who sends when, how long, and which loss is right.

dataparallel    the bars of a step of DataParallel, with or without NCCL
ring            the bars of a step that keeps its weights, with a ring all-reduce
ratio           how many times the ring's step takes DataParallel, with NCCL
draw            such steps on one axis of time
sending         how long a step sends, on 2 to 8 devices
replicas        torch's own replicas of a module, made on a CPU
copies          how often all weights were copied straight from the module
sentences       a small language model, and sentences of unequal lengths
losses          the loss of each sentence, and its number of tokens
off             how far ways to join the losses are off, in ten seeds
"""

from collections import namedtuple
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from course.lab import send_log
from course.lab.figures import plot
from manual_dp import ring_allreduce, try_devices

# what: a word, or "" for none; sent: a device sends it, or computes it. All times are
# in ticks: in one tick, a link carries all weights once.
Bar = namedtuple("Bar", "device start length what sent")
PAD = -100  # cross_entropy leaves out what has this target


def dataparallel(n, forward, nccl):
    """Return the bars of a step: weights, forward, backward, gradients.

    With NCCL, all links of a chain carry pieces at once; without, device 0 sends to one
    device after the other, and takes in their gradients one after another.
    """
    out = 1.0 if nccl else n - 1.0  # ticks for all weights
    bars = _compute(n, out, forward)
    end = out + 3 * forward
    for i in range(n - 1):
        if nccl:
            bars.append(Bar(i, 0.0, 1.0, "weights", True))
            bars.append(Bar(i + 1, end, 1.0, "gradients", True))
        else:
            bars.append(Bar(0, float(i), 1.0, "weights", True))
            bars.append(Bar(i + 1, end + i, 1.0, "gradients", True))
    return bars


def ring(n, forward):
    """Return the bars of a step whose weights are there: all send at once at its end."""
    length = 2 * (n - 1) / n
    sent = [Bar(i, 3 * forward, length, "gradients", True) for i in range(n)]
    return _compute(n, 0.0, forward) + sent


def _compute(n, start, forward):
    bars = []
    for device in range(n):
        bars.append(Bar(device, start, forward, "forward", False))
        bars.append(
            Bar(device, start + forward, 2 * forward, "backward", False)
        )
    return bars


def end(bars):
    """Return when the last bar ends."""
    return max(bar.start + bar.length for bar in bars)


def ratio(n, forward):
    """Return how many times the ring's step a step of DataParallel takes, with NCCL."""
    return end(dataparallel(n, forward, nccl=True)) / end(ring(n, forward))


def draw(steps):
    """Draw a panel for each label of `steps`, a dict from label to bars."""
    import matplotlib.pyplot as plt

    devices = 1 + max(bar.device for bars in steps.values() for bar in bars)
    longest = max(end(bars) for bars in steps.values())
    figure, grid = plt.subplots(
        len(steps),
        figsize=(6.4, len(steps) * (0.62 + 0.21 * devices)),
        dpi=110,
        sharex=True,
        layout="constrained",
    )
    for ax, (label, bars) in zip(grid, steps.items()):
        for bar in bars:
            colour = plot.COLOURS[bar.device % 8]
            ax.barh(
                bar.device,
                bar.length,
                left=bar.start,
                height=0.8,
                color=colour,
                alpha=0.35 if bar.sent else 1,
                edgecolor="white",
                lw=0.8,
            )
            _write(ax, bar, 5.6 * bar.length / longest)
        title = f"{label}: {end(bars):.3g} ticks"
        ax.set_title(title, loc="left", fontsize=11, color=plot.INK)
        ax.set_yticks(
            range(devices), [f"device {device}" for device in range(devices)]
        )
        ax.set(ylim=(devices - 0.5, -0.5), xlim=(0, longest))
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=plot.INK, labelsize=9)
        ax.grid(axis="x", color=plot.FAINT)
        ax.set_axisbelow(True)
    ax.set_xlabel("ticks", color=plot.INK, fontsize=11)
    return list(grid)


def _write(ax, bar, inches):
    """Write what a bar is, where it has room; gradients may pass its end a little."""
    need = 0.08 * len(bar.what)
    if inches > need:
        at, ha = bar.start + bar.length / 2, "center"
    elif bar.what == "gradients" and inches > 0.8 * need:
        at, ha = bar.start + 0.03, "left"
    else:
        return
    colour = plot.INK if bar.sent else "white"
    ax.text(
        at,
        bar.device,
        bar.what,
        ha=ha,
        va="center_baseline",
        fontsize=9,
        color=colour,
    )


def sending(module, X, y):
    """Return {way: ticks in which weights and gradients are sent, on 2 to 8 devices}.

    Counted in a step without NCCL, on device 0's link, where all goes one after another;
    in a ring, what a device sends, since it receives at the same time. NVIDIA's count is
    that of a broadcast and a reduce.
    """
    weights = sum(p.nbytes for p in module.parameters())
    found = {"without NCCL": [], "with NCCL": [], "ring all-reduce": []}
    for n in range(2, 9):
        devices = try_devices(n)
        log = send_log.crossing(
            module, devices, X[:n], y[:n], F.cross_entropy
        )
        sent = {what: size for what, size, _ in send_log.transfers(log)}
        found["without NCCL"].append(
            (sent["weights"] + sent["gradients"]) / weights
        )
        found["with NCCL"].append(2.0)
        flat = [
            torch.zeros(weights // 8, dtype=torch.float64) for _ in devices
        ]
        log = send_log.sends(ring_allreduce, flat, "gradients")
        sent, _ = send_log.totals(log, n)
        found["ring all-reduce"].append(max(sent) / weights)
    return found


def replicas(module, n):
    """Return what torch's replicate makes of a module on `n` devices, all on the CPU.

    Its one line for GPUs, which sends tensors, is replaced: device 0 keeps the tensors
    themselves, as on GPUs, and the others get copies.
    """
    import importlib

    own = importlib.import_module("torch.nn.parallel.replicate")

    def send(tensors, devices, detach=False):
        made = [tensors]
        for _ in devices[1:]:
            made.append([t.detach() if detach else t for t in tensors])
            made[-1] = [t.clone() for t in made[-1]]
        return made

    with mock.patch.object(own, "_broadcast_coalesced_reshape", send):
        return own.replicate(module, range(n))


def copies(outputs, module):
    """Count how often all weights were copied straight from `module` for `outputs`."""
    found, seen, stack = 0, set(), [outputs.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        below = [step for step, _ in node.next_functions]
        if "Copy" in node.name() or "Clone" in node.name():
            found += sum(
                step.name().endswith("AccumulateGrad") for step in below
            )
        stack += below
    return found / len([*module.parameters()])


class Next(nn.Module):
    """Guess the next word of 50 from the word that stands there."""

    def __init__(self, generator):
        super().__init__()
        for name in ("table", "scores"):
            draw = torch.randn(
                50, 8, generator=generator, dtype=torch.float64
            )
            setattr(self, name, nn.Parameter(draw))

    def forward(self, words):
        """Return 50 scores for each word."""
        return self.table[words] @ self.scores.T


def sentences(seed, rows=32, most=20):
    """Return a model, and words and targets of `rows` sentences of 3 to `most` words.

    Sentences are filled up to `most` places; what is filled up has the target PAD.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Next(generator)
    words = torch.randint(50, (rows, most), generator=generator)
    targets = torch.randint(50, (rows, most), generator=generator)
    lengths = torch.randint(3, most + 1, (rows, 1), generator=generator)
    targets[torch.arange(most) >= lengths] = PAD
    return model, words, targets


def losses(model, words, targets):
    """Return for each row the sum of its tokens' losses, and how many these are."""
    scores = model(words).transpose(1, 2)
    lost = F.cross_entropy(
        scores, targets, ignore_index=PAD, reduction="none"
    )
    return lost.sum(1), (targets != PAD).sum(1)


def off(join, n, seeds=10):
    """Return {way: how far its gradient is off, as a part of the right one, a seed each}.

    join: makes {way: loss} of (sums, counts), lists with a tensor for each device.
    """
    found = {}
    for seed in range(seeds):
        model, words, targets = sentences(seed)

        def gradient(loss, model=model):
            grads = torch.autograd.grad(
                loss, [*model.parameters()], retain_graph=True
            )
            return torch.cat([grad.flatten() for grad in grads])

        scores = model(words).transpose(1, 2)
        right = gradient(F.cross_entropy(scores, targets, ignore_index=PAD))
        rows = -(-len(words) // n)
        parts = zip(words.split(rows), targets.split(rows))
        sums, counts = zip(*(losses(model, *part) for part in parts))
        for way, loss in join(sums, counts).items():
            wrong = (gradient(loss) - right).norm() / right.norm()
            found.setdefault(way, []).append(wrong.item())
    return found
