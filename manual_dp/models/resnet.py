"""ResNet-18, written plainly: eighteen layers with weights, 11.2 million numbers.

    resnet18    the network
    Block       two convolutions, and a path around them. He et al. 2015

For small images, as the book builds it (d2l.ai 13.2): the first convolution is 3x3 and
keeps the size, and no pooling follows. In shapes, for images of 32x32:

    X  (n, 3, 32, 32) -> (n, 64, 32, 32)          one convolution
       -> (n, 64, 32, 32) -> (n, 128, 16, 16)     two blocks each: four stages, and
       -> (n, 256, 8, 8) -> (n, 512, 4, 4)        each after the first halves the size
       -> (n, 512) -> (n, num_classes)            mean over places, linear

224x224 works as well, at 49 times the cost.
"""

from torch import nn
from torch.nn import functional as F


def resnet18(num_classes=10, in_channels=3):
    """Build ResNet-18 for images (n, in_channels, height, width), sizes from 8 on."""
    return nn.Sequential(
        *_convolution(in_channels, 64, 3),
        nn.ReLU(),
        Block(64, 64),
        Block(64, 64),
        Block(64, 128, stride=2),
        Block(128, 128),
        Block(128, 256, stride=2),
        Block(256, 256),
        Block(256, 512, stride=2),
        Block(512, 512),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, num_classes),
    )


class Block(nn.Module):
    """Add to X what two convolutions make of it.

    stride: of the first convolution; 2 halves height and width. Where that or the
    number of channels changes the shape, a 1x1 convolution reshapes X for the sum.
    """

    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(in_channels, channels, 3, stride),
            nn.ReLU(),
            *_convolution(channels, channels, 3),
        )
        self.shortcut = nn.Sequential()  # X as it is
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                *_convolution(in_channels, channels, 1, stride)
            )

    def forward(self, X):
        """Map (n, in_channels, h, w) to (n, channels, h / stride, w / stride)."""
        return F.relu(self.shortcut(X) + self.residual(X))


def _convolution(in_channels, channels, size, stride=1):
    # no bias: the normalization after it would take it away again
    return (
        nn.Conv2d(in_channels, channels, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels),
    )
