"""U-Net: a class for every pixel, from what is near it and from what is far around.

    UNet            down, up again, and across. Ronneberger, Fischer & Brox 2015
    double_conv     two 3x3 convolutions, each with its ReLU

Down, the image halves and the channels double: a pixel there has seen much around it.
Up, the size comes back; and at each size a skip connection hands over what was there
on the way down, where the edges still were sharp. In shapes, for width 8 and depth 2:

    X  (n, 1, 32, 32) -> (n, 8, 32, 32) ------ skip -----> (n, 8 + 8, 32, 32) -> y_hat
                              |                                 |
                         (n, 16, 16, 16) ---- skip ---> (n, 16 + 16, 16, 16)
                              |                                 |
                              +------> (n, 32, 8, 8) -----------+

Convolutions here keep the size, unlike the paper's: y_hat is as large as X. The way up
is a transposed convolution whose windows do not overlap: no sum depends on an order.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class UNet(nn.Module):
    """Map images to scores of each pixel for each class.

    width: channels of the first level; each of `depth` levels below has twice as many.
    norm: None; "batch", a batch norm after each 3x3 convolution; or what makes another
    layer of a number of channels, such as `nn.SyncBatchNorm` or a class of your own.
    generator: draws the weights (He et al. 2015), in float64, so that they are the same
    on every machine.
    """

    def __init__(
        self, in_channels=1, classes=2, width=8, depth=2, norm=None, generator=None
    ):
        super().__init__()
        _check(in_channels=in_channels, classes=classes, width=width, depth=depth)
        norm = _norm(norm)
        self.in_channels, self.side = in_channels, 2**depth
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double_conv(a, b, norm) for a, b in zip([in_channels, *widths], widths)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[:-1]
        )
        self.merge = nn.ModuleList(double_conv(2 * a, a, norm) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)
        self.apply(lambda layer: _draw(layer, generator))
        self.head.weight.data.mul_(0.1)  # at first all classes are about as likely

    def forward(self, X):
        """Map (n, in_channels, h, w) to (n, classes, h, w).

        Raises ValueError unless 2**depth divides h and w.
        """
        self._check_images(X)
        skips = []
        for level, block in enumerate(self.down):
            X = block(F.max_pool2d(X, 2) if level else X)
            skips.append(X)
        for level in reversed(range(len(self.up))):
            X = torch.cat([skips[level], self.up[level](X)], dim=1)
            X = self.merge[level](X)
        return self.head(X)

    def _check_images(self, X):
        if X.dim() != 4 or X.shape[1] != self.in_channels:
            raise ValueError(
                f"X must have shape (n, {self.in_channels}, h, w), got {tuple(X.shape)}"
            )
        h, w = X.shape[2:]
        if h < 1 or w < 1 or h % self.side or w % self.side:
            raise ValueError(
                f"X's height and width must be divisible by {self.side} "
                f"(2**depth), got {h} x {w}"
            )


def double_conv(in_channels, channels, norm=None):
    """Build two 3x3 convolutions that keep the size, each with its ReLU.

    norm: None, or what makes the layer that goes before each ReLU. The convolutions
    then have no bias: a normalization would take it away again.
    """
    layers = []
    for a in (in_channels, channels):
        layers += [nn.Conv2d(a, channels, 3, padding=1, bias=norm is None)]
        layers += [norm(channels)] if norm else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers)


@torch.no_grad()
def _draw(layer, generator):
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        return
    # a transposed convolution without overlap sums over channels alone
    taps = 1 if isinstance(layer, nn.ConvTranspose2d) else layer.weight[0, 0].numel()
    reach = math.sqrt(6 / (layer.in_channels * taps))  # uniform, variance 2 / fan in
    W = torch.rand(layer.weight.shape, generator=generator, dtype=torch.float64)
    layer.weight.copy_((2 * W - 1) * reach)
    if layer.bias is not None:
        layer.bias.zero_()


def _norm(norm):
    if norm == "batch":
        return nn.BatchNorm2d
    if norm is not None and not callable(norm):
        raise ValueError(
            'norm must be None, "batch" or what makes a layer of a number '
            f"of channels, got {norm!r}"
        )
    return norm


def _check(**sizes):
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
