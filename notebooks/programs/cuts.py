"""What split_the_work cuts: its networks, a layer at a time, and its two pictures.

NETWORKS         LeNet, VGG-16, a transformer: what each `Layer` computes and holds
minibatch        random images for LeNet, and labels
layer            compute one of LeNet's layers, or a half of it
autoencoder      an encoder on one device and a decoder on another: what crosses
pipeline         LeNet on two devices in micro-batches: what each sees and holds
speed_up         how many times as fast LeNet is, cut inside each layer
draw_cuts        who computes what, and how much crosses in a step
draw_megabytes   what crosses, against the images in the minibatch
"""

import math
from collections import namedtuple

import torch
from torch.nn import functional as F

from course.lab.figures import plot
from manual_dp import init_params, lenet, loss

# flops: of forward, for an image. outputs: the numbers that it hands on, for an image
Layer = namedtuple("Layer", "flops weights outputs")


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
    # 32 blocks of width 4,096, for texts of 2,048 words, without the embedding; a block
    # is attention and two linear layers, and its arithmetic that of Narayanan et al. 2021
    "transformer": [
        Layer(
            24 * 2048 * 4096**2 + 4 * 2048**2 * 4096,
            12 * 4096**2,
            2048 * 4096,
        )
    ]
    * 32,
}


def minibatch(n):
    """Return n random images in float64, and their labels."""
    generator = torch.Generator().manual_seed(n)
    X = torch.rand(n, 1, 28, 28, generator=generator, dtype=torch.float64)
    return X, torch.randint(10, (n,), generator=generator)


def layer(x, W, b):
    """Compute a layer of LeNet with its ReLU and pooling, or a half of its outputs."""
    if W.dim() == 4:
        return F.avg_pool2d(F.relu(F.conv2d(x, W, b)), 2)
    x = x.flatten(1) @ W + b
    return F.relu(x) if len(b) > 10 else x  # the ten scores stay as they are


def autoencoder(images=16, code=32):
    """Cut 784-128-code-128-784 at its code; return what crosses, and how far off it is.

    What crosses in a step is in bytes. The other number is the largest difference of a
    gradient from that of the whole network. The CPU plays both devices.
    """
    draw = torch.Generator().manual_seed(0)
    sizes = 784, 128, code, 128, 784
    params = [
        torch.randn(a, b, generator=draw, dtype=torch.float64) / a**0.5
        for a, b in zip(sizes, sizes[1:])
    ]
    X = torch.rand(images, 784, generator=draw, dtype=torch.float64)
    W1, W2, W3, W4 = (W.requires_grad_() for W in params)

    def encode(X):
        return F.relu(X @ W1) @ W2

    def decode(h):
        return F.relu(h @ W3) @ W4

    loss = (decode(encode(X)) - X).square().sum()
    whole = torch.autograd.grad(loss, params)

    h = encode(X)  # on device 0
    there = h.detach().clone().requires_grad_()  # sent to device 1
    (decode(there) - X).square().sum().backward()
    back = there.grad.clone()  # sent to device 0
    h.backward(back)
    off = max((W.grad - g).abs().max().item() for W, g in zip(params, whole))
    return there.nbytes + back.nbytes, off


def pipeline(micro_batches, replicas=1, images=16):
    """Compute LeNet's gradient with two layers on each of two devices, in pieces.

    Each replica of the pipeline has two devices, and a share of the images. Return, of
    each device, how many images it sees and how many weights it holds; and how far the
    sum of the replicas' gradients is from that of one device. The CPU plays all.
    """
    draw = torch.Generator().manual_seed(0)
    params = [
        p.requires_grad_() for p in init_params("he", draw, torch.float64)
    ]
    X, y = minibatch(images)
    whole = torch.autograd.grad(loss(lenet(X, params), y).sum(), params)

    seen, held, total = [], [], [torch.zeros_like(p) for p in params]
    for own_X, own_y in zip(X.chunk(replicas), y.chunk(replicas)):
        own = [p.detach().clone().requires_grad_() for p in params]
        first, last = own[:4], own[4:]
        pieces = zip(own_X.chunk(micro_batches), own_y.chunk(micro_batches))
        for piece, labels in pieces:
            h = layer(layer(piece, *first[:2]), *first[2:])  # on device 0
            there = h.detach().clone().requires_grad_()  # sent to device 1
            scores = layer(layer(there, *last[:2]), *last[2:])
            loss(scores, labels).sum().backward()
            h.backward(there.grad)  # sent to device 0
        seen += [len(own_X)] * 2
        held += [sum(p.numel() for p in part) for part in (first, last)]
        for grad, p in zip(total, own):  # the all-reduce of the replicas
            grad += p.grad
    off = max((a - b).abs().max().item() for a, b in zip(total, whole))
    return seen, held, off


def speed_up(devices):
    """Return how many times as fast LeNet is if each layer's outputs are cut.

    Arithmetic: `chunk` cuts them, what is sent takes no time, and in each layer all
    wait for the device with the most of them.
    """
    layers, outputs = NETWORKS["LeNet"], (20, 50, 128, 10)
    fullest = [
        layer.flops * math.ceil(each / devices) / each
        for layer, each in zip(layers, outputs)
    ]
    return sum(layer.flops for layer in layers) / sum(fullest)


def draw_cuts(megabytes, images):
    """Draw the three cuts of LeNet; megabytes: {cut: what crosses in a step}."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1,
        3,
        figsize=(6.4, 2.7),
        dpi=110,
        sharey=True,
        layout="constrained",
    )
    first = -(-images // 2)  # the images of device 0
    for ax, (cut, size) in zip(axes, megabytes.items()):
        for column in range(4):
            for rank in (0, 1):
                if cut == "by data":
                    low, high = ((0, first), (first, images))[rank]
                    box = (column, low), 0.92, high - low
                else:
                    box = (column + 0.46 * rank, 0), 0.46, images
                owner = column // 2 if cut == "by layer" else rank
                colour = plot.COLOURS[owner]
                ax.add_patch(plt.Rectangle(*box, lw=0, color=colour))
        ax.set(xlim=(0, 3.92), ylim=(images, 0), yticks=[0, first, images])
        ax.set_title(f"{cut}\n{size:.2f} MB cross", fontsize=10)
        ax.set_xticks(
            [0.46, 1.46, 2.46, 3.46],
            ["conv 1", "conv 2", "linear 1", "linear 2"],
            fontsize=7,
        )
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("images")
    figure.supxlabel("layers", fontsize=10)
    plt.show()


def draw_megabytes(sizes, megabytes):
    """Draw {cut: megabytes in a step} against the images; mark where lines cross."""
    import matplotlib.pyplot as plt

    ax = plot.axes("images in the minibatch", "megabytes in a step")
    for (cut, row), style in zip(megabytes.items(), ("--", ":", "-")):
        ax.loglog(sizes, row, style, color=plot.INK, lw=2, label=cut)
    least, flat = megabytes["by layer"], megabytes["by data"][0]
    crossing = sizes[0] * flat / least[0]
    ax.axvline(crossing, color="#b5bac1", lw=1)
    words = f"from {math.ceil(crossing)} images on"
    ax.text(1.06 * crossing, 0.25, words, fontsize=9)
    ax.set_xticks(sizes, sizes)
    ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    ax.minorticks_off()
    ax.legend(frameon=False)
    plt.show()
