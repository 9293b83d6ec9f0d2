"""What the stored runs on CIFAR-10 say; what ResNet-50 computes; prices, drawn.

found          the stored runs of so many ranks and rows a step
print_ends     the accuracy after two epochs, a line for each setting
draw_ends      the same as dots
draw_curves    accuracy over epochs, and over steps
print_seconds  a step of ResNet-50 on 1 and 2 ranks, as it was measured
count          FLOP an image, bytes of gradients, pixels left, for three ResNet-50s
draw_prices    seconds an epoch, on 1 to 8 GPUs
"""

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course.lab.figures import plot
from manual_dp.files.vision import ensure_torchvision

RESULTS = Path(__file__).parent.parent / "results"
FILE, SECONDS = RESULTS / "cifar10-ranks.json", RESULTS / "cifar10.json"
# of the runs: ranks, rows a step, what it is called
SAME = [
    (1, 128, "1 rank, 128 images a step"),
    (2, 128, "2 ranks share the 128"),
    (4, 128, "4 ranks share the 128"),
]
MORE = [(2, 256, "2 ranks, 128 each"), (4, 512, "4 ranks, 128 each")]
CONTROL = [(1, 512, "1 rank, 512 images a step")]


def found(ranks, rows):
    """Return the stored runs of so many ranks, with so many rows a step."""
    runs = json.loads(FILE.read_text(encoding="utf-8"))["runs"]
    return [
        run
        for run in runs
        if (run["world_size"], run["batch_size"]) == (ranks, rows)
    ]


def _percent(ranks, rows):
    return [100 * run["right"][-1] for run in found(ranks, rows)]


def count():
    """Return {stem: (FLOP an image, bytes of gradients, pixels left on a side)}."""
    models, counts = ensure_torchvision().models, {}
    for stem, make in (
        ("torchvision", models.resnet50),
        ("cifar", models.resnet50),
        ("cifar, twice as wide", models.wide_resnet50_2),
    ):
        with torch.device("meta"):  # shapes, no numbers
            net, X = make(num_classes=10), torch.zeros(2, 3, 32, 32)
            if stem != "torchvision":
                net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
                net.maxpool = nn.Identity()
            with FlopCounterMode(display=False) as counter:
                net(X).sum().backward()
            left = nn.Sequential(*list(net.children())[:-2])(X)
        size = 4 * sum(p.numel() for p in net.parameters())
        counts[stem] = counter.get_total_flops() / 2, size, left.shape[-1]
    return counts


def print_seconds():
    """Print what a step of ResNet-50 took on 1 and 2 ranks, by two programs each."""
    rows = json.loads(SECONDS.read_text(encoding="utf-8"))["summary"]
    one, two = (
        sorted(
            row["seconds_a_step"]
            for row in rows
            if (row["model"], row["world_size"]) == ("resnet50", ranks)
        )
        for ranks in (1, 2)
    )
    for ranks, took in (("1 rank", one), ("2 ranks", two)):
        print(f"{ranks}: {took[0]:.2f} and {took[-1]:.2f} seconds a step")
    print(f"speed-up: {one[0] / two[-1]:.2f} to {one[-1] / two[0]:.2f}")


def print_ends(settings):
    """Print steps, rate and accuracies of each setting (ranks, rows, name)."""
    print("after two epochs          steps  rate   right, %: three seeds")
    for ranks, rows, name in settings:
        right = " ".join(
            f"{share:.1f}" for share in sorted(_percent(ranks, rows))
        )
        print(f"{name:27}{50_000 // rows * 2:4} {rows / 1280:5.1f}   {right}")


def draw_ends(settings):
    """Draw a dot for each run, a line for each setting (ranks, rows, name)."""
    ax = plot.axes(
        "right after two epochs, % of 10,000 new images",
        width=7.2,
        height=0.9 + 0.36 * len(settings),
    )
    for place, (ranks, rows, _) in enumerate(settings):
        right = _percent(ranks, rows)
        colour = plot.COLOURS[0 if rows == 128 else 1]
        ax.plot(right, [place] * len(right), "o", color=colour, alpha=0.8)
    ax.axvline(10, color=plot.INK, lw=1, ls="--")
    ax.text(11, -0.45, "chance", fontsize=10, color=plot.INK, va="center")
    names = [name for *_, name in settings]
    ax.set_yticks(range(len(settings)), names, fontsize=11)
    ax.set(xlim=(0, 80), ylim=(len(settings) - 0.4, -0.8))
    return ax


def draw_curves(settings):
    """Draw the runs of each setting over epochs, and over steps."""
    panels = plot.axes("", "", width=7.2, height=3, panels=2)
    for ax, by_steps in zip(panels, (False, True)):
        for (ranks, rows, name), colour, style in zip(
            settings, plot.COLOURS, ("-", "--", ":")
        ):
            for i, run in enumerate(found(ranks, rows)):
                x = [n / (rows if by_steps else 5e4) for n in run["images"]]
                right = [100 * share for share in run["right"]]
                ax.plot(
                    x,
                    right,
                    style,
                    color=colour,
                    lw=1.6,
                    label=None if i else name,
                )
        ax.axhline(10, color=plot.INK, lw=1, ls="--")
        ax.set(xlim=0, ylim=(0, 80))
        ax.set_xlabel("steps" if by_steps else "epochs")
    panels[0].set_ylabel("right, % of 10,000 new images")
    panels[1].legend(fontsize=9, frameon=False, loc=(0.33, 0.18))
    return panels


def draw_prices(cards, prices):
    """Draw seconds an epoch over 1, 2, 4 and 8 GPUs, a panel for each of `cards`.

    prices: {link: function(GPUs, TFLOP/s)}. The first line is wide: others may hide it.
    """
    panels = plot.axes("GPUs", "", width=7.2, height=3, panels=len(cards))
    for ax, tflops in zip(panels, cards):
        plot.lines(
            [1, 2, 4, 8],
            {
                link: [price(gpus, tflops) for gpus in (1, 2, 4, 8)]
                for link, price in prices.items()
            },
            "",
            "",
            log="xy",
            ax=ax,
        )
        ax.lines[0].set(lw=6, alpha=0.45)
        ax.set_title(f"{tflops} TFLOP/s", fontsize=11)
        ticks = [0.5, 1, 2, 5, 10, 20, 50]
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_ylim(0.4, 70)
    panels[0].set_ylabel("seconds an epoch")
    return panels
