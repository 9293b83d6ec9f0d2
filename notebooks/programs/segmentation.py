"""A small task for wrong_programs.py: mark the bright blobs in an image.

    blobs        images, and a mask for each: 1 where a blob is, 0 elsewhere
    UNet         the network. Ronneberger, Fischer & Brox 2015
    pixel_loss   cross-entropy, summed over the pixels of each image
    overlap      numbers of pixels, to be added up over minibatches
    iou          both / either, of such numbers. Jaccard 1912

An image is noise of three grain sizes, and on it 1 to 3 soft ellipses of any
place, size, tilt and brightness. The ground is in places as bright as a blob:
a threshold finds the blobs badly, a network that looks around each pixel
finds them well.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

MOST = 3  # blobs in an image
# noise: pixels between two random numbers, share of the brightness
GRAINS = [(8, 0.5), (4, 0.2), (1, 0.1)]


def blobs(rows, seed=0, size=16):
    """Generate `rows` images and their masks: X, y.

    X: (rows, size, size) float64, between 0 and 1; 8 divides size.
    y: (rows, size, size) int64: 1 where a blob has half of its brightness.
    seed: of a generator of the function's own. Other `rows`, other images.
    """
    generator = torch.Generator().manual_seed(seed)

    # Only +, -, *, / of float64 lead from torch.rand to a pixel. Every
    # machine rounds these in one way; sin and exp it does not.
    def draw(low, high, *shape):
        values = torch.rand(
            rows, *shape, dtype=torch.float64, generator=generator
        )
        return low + (high - low) * values

    X = sum(share * _texture(draw, size, grain) for grain, share in GRAINS)
    y = torch.zeros_like(X, dtype=torch.bool)
    count = draw(1, MOST + 1, 1, 1).floor()
    for i in range(MOST):
        distance = _ellipse(draw, size)
        present = count > i
        edge = distance * distance * distance * distance
        # half of the light at distance 1
        light = draw(0.35, 0.7, 1, 1) / (1 + edge * edge) * present
        X = X + light * (1 - X)  # never above 1
        y |= (distance <= 1) & present
    return X, y.long()


def _ellipse(draw, size):
    """Return each pixel's squared distance from a centre.

    It is 1 on the edge of an ellipse.
    """
    at = torch.arange(size, dtype=torch.float64)
    dx = at - draw(0.1, 0.9, 1, 1) * size
    dy = at[:, None] - draw(0.1, 0.9, 1, 1) * size
    half = draw(-1, 1, 1, 1)  # the tangent of half the tilt
    cos = (1 - half * half) / (1 + half * half)
    sin = 2 * half / (1 + half * half)
    along = (cos * dx + sin * dy) / (draw(0.1, 0.24, 1, 1) * size)
    across = (cos * dy - sin * dx) / (draw(0.1, 0.24, 1, 1) * size)
    return along * along + across * across


def _texture(draw, size, grain):
    """Return noise from 0 to 1: a random number each `grain` pixels."""
    cells = size // grain + 1
    noise = _stretch(draw(0, 1, cells, cells), grain)
    return _stretch(noise.transpose(1, 2), grain)


def _stretch(values, grain):
    """Put `grain` pixels between neighbours of the last dimension."""
    part = torch.arange(grain, dtype=torch.float64) / grain
    here, there = values[..., :-1, None], values[..., 1:, None]
    return (here + (there - here) * part).flatten(-2)


class UNet(nn.Module):
    """Map images (n, 1, h, w) to scores (n, 2, h, w): two for each pixel.

    Down, the image halves twice and its channels double: a pixel there has
    seen much around it. Up, the size comes back; and at each size a skip
    connection hands over what was there on the way down, where the edges
    still were sharp. In shapes, for width 4 and 16 x 16 pixels:

        (n, 1, 16, 16) -> (n, 4, 16, 16) -- skip --> (n, 4 + 4, 16, 16) -> y_hat
                               |                           |
                          (n, 8, 8, 8) ---- skip ---> (n, 8 + 8, 8, 8)
                               |                           |
                               +------> (n, 16, 4, 4) -----+

    4 divides h and w. norm: None, "batch", or a function that makes a layer
    for a number of channels. generator: draws the weights, in float64, so
    that they are the same on every machine.
    """

    def __init__(self, width=4, norm=None, generator=None):
        super().__init__()
        if norm == "batch":
            norm = nn.BatchNorm2d
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            _double_conv(a, b, norm) for a, b in zip([1, *widths], widths)
        )
        # its windows do not overlap: no sum depends on an order
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[:-1]
        )
        self.merge = nn.ModuleList(
            _double_conv(2 * a, a, norm) for a in widths[:-1]
        )
        self.head = nn.Conv2d(width, 2, 1)
        self.apply(lambda layer: _draw_weights(layer, generator))
        # at first both classes are about as likely
        self.head.weight.data.mul_(0.1)

    def forward(self, X):
        """Go down, keep what is there at each size, and come up again."""
        skips = []
        for level, block in enumerate(self.down):
            X = block(F.max_pool2d(X, 2) if level else X)
            skips.append(X)
        for level in reversed(range(len(self.up))):
            X = torch.cat([skips[level], self.up[level](X)], dim=1)
            X = self.merge[level](X)
        return self.head(X)


def _double_conv(in_channels, channels, norm):
    """Build two 3x3 convolutions that keep the size, each with its ReLU.

    With a norm they have no bias: the norm would take it away again.
    """
    layers = []
    for a in (in_channels, channels):
        layers.append(nn.Conv2d(a, channels, 3, padding=1, bias=norm is None))
        if norm:
            layers.append(norm(channels))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@torch.no_grad()
def _draw_weights(layer, generator):
    """Draw a convolution's weights, with variance 2 / fan in. He et al. 2015."""
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        return
    taps = layer.weight[0, 0].numel()
    if isinstance(layer, nn.ConvTranspose2d):
        taps = 1  # without overlap, it sums over channels alone
    reach = math.sqrt(6 / (layer.in_channels * taps))
    W = torch.rand(
        layer.weight.shape, generator=generator, dtype=torch.float64
    )
    layer.weight.copy_((2 * W - 1) * reach)
    if layer.bias is not None:
        layer.bias.zero_()


def pixel_loss(y_hat, y):
    """Return the cross-entropy of each image, summed over its pixels: n values.

    y_hat: (n, classes, h, w) scores. y: (n, h, w) int64.
    """
    return F.cross_entropy(y_hat, y, reduction="none").sum((1, 2))


@torch.no_grad()
def overlap(y_hat, y):
    """Count for each class the pixels in both masks, in y_hat's, and in y's.

    y_hat, y: as `pixel_loss`; a pixel goes to the class with the highest
    score. Returns (3, classes) int64. The mean of scores of parts is not the
    score of the whole: add these tables up, then ask for `iou`, once.
    """
    classes = torch.arange(y_hat.shape[1]).view(-1, 1, 1, 1)
    found, there = y_hat.argmax(dim=1) == classes, y == classes
    return torch.stack(
        [mask.sum((1, 2, 3)) for mask in (found & there, found, there)]
    )


def iou(counts):
    """Return each class's pixels in both masks over those in either: float64.

    counts: a sum of `overlap`s. NaN for a class that is in no mask.
    """
    both, found, there = counts.double()
    return both / (found + there - both)
