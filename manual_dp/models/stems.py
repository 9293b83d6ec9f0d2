"""torchvision's ResNets, and the first layers that suit small images.

    build         ResNet-18 or ResNet-50, with one stem or the other. He et al. 2016
    cifar_stem    put the stem for small images into a ResNet

The stem is what comes before the blocks. torchvision's was made for photographs of 224
pixels: a 7x7 convolution and a pooling, each of which halves the image. Height and
width after the stem, and after the last block:

    torchvision   7x7, stride 2, then pooling    224 -> 56 ... 7    32 -> 8 ... 1
    cifar         3x3, stride 1, no pooling                         32 -> 32 ... 4

From 32x32 torchvision's stem leaves one place of each channel: where nothing is left to
tell apart, a batch norm of one row has nothing to normalise, and training raises.
"""

import torch
from torch import nn

from manual_dp.files.vision import ensure_torchvision

NAMES = ("resnet18", "resnet50")
STEMS = ("torchvision", "cifar")


def build(name="resnet50", stem="torchvision", num_classes=10, seed=0):
    """Return torchvision's ResNet of that name, untrained.

    seed: draws the weights, as torchvision draws them, and leaves torch's own random
    state as it was. Raises ValueError for a name or a stem that is not there.
    """
    _check(name, stem)
    models = ensure_torchvision().models
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = getattr(models, name)(weights=None, num_classes=num_classes)
        return cifar_stem(net) if stem == "cifar" else net


def cifar_stem(net):
    """Replace the first convolution by one of 3x3 that keeps the size; do not pool."""
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()
    return net


def _check(name, stem):
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if stem not in STEMS:
        raise ValueError(f"stem must be one of {', '.join(STEMS)}, got {stem!r}")
