import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from manual_dp import allreduce, pack_grads, split_batch, try_devices
from manual_dp.models.blobs import load_blobs
from manual_dp.models.segment import iou, overlap, pixel_loss
from manual_dp.models.unet import UNet, double_conv


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def unet(*args, seed=0, **kwargs):
    return UNet(*args, **kwargs, generator=seeded(seed))


def images(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=seeded()) - 0.5


# the network


@pytest.mark.parametrize(
    "shape, classes, width, depth",
    [
        ((2, 1, 32, 32), 2, 8, 2),
        ((1, 3, 8, 24), 5, 2, 3),
        ((3, 2, 2, 2), 1, 1, 1),
        ((0, 1, 8, 8), 2, 4, 2),
    ],
)
def test_each_pixel_gets_a_score_for_each_class(shape, classes, width, depth):
    net = unet(shape[1], classes, width, depth).double()
    assert net(images(*shape)).shape == (shape[0], classes, *shape[2:])


def test_parameters_counted_by_hand():
    def convs(a, b):
        return 9 * a * b + b + 9 * b * b + b

    down = convs(3, 8) + convs(8, 16) + convs(16, 32)
    up = (32 * 16 * 4 + 16) + convs(32, 16) + (16 * 8 * 4 + 8) + convs(16, 8)
    expected = down + up + 8 * 5 + 5
    assert sum(p.numel() for p in unet(3, 5, 8, 2).parameters()) == expected


def convs(X, block):
    for layer in block[::2]:
        X = F.relu(F.conv2d(X, layer.weight, layer.bias, padding=1))
    return X


def test_a_unet_of_depth_1_written_out():
    net = unet(2, 3, 4, 1).double()
    X = images(2, 2, 6, 4)
    skip = convs(X, net.down[0])
    # the largest of each 2 x 2
    half = skip.view(2, 4, 3, 2, 2, 2).amax((3, 5))
    below = convs(half, net.down[1])
    # each pixel becomes 2 x 2, by a matrix for each of the four places
    up = torch.einsum("ncij,cdab->ndiajb", below, net.up[0].weight).reshape(2, 4, 6, 4)
    joined = torch.cat([skip, up + net.up[0].bias.view(-1, 1, 1)], dim=1)
    expected = torch.einsum(
        "ncij,dcab->ndij", convs(joined, net.merge[0]), net.head.weight
    ) + net.head.bias.view(-1, 1, 1)
    torch.testing.assert_close(net(X), expected, rtol=0, atol=1e-13)


def reach(net, side=64):
    """Return how many pixels wide the region is that one pixel's score depends on."""
    X = images(1, 1, side, side).requires_grad_()
    net(X)[0, 0, side // 2, side // 2].backward()
    columns = X.grad[0, 0].abs().sum(0).nonzero()
    return int(columns.max() - columns.min()) + 1


def test_without_the_way_up_a_pixel_knows_only_what_the_skip_connection_brings():
    net = unet(width=4, depth=2).double()
    whole = reach(net)
    for up in net.up:
        nn.init.zeros_(up.weight)
    assert reach(net) == 9  # four 3x3 convolutions, two before the skip and two after
    assert whole > 30


def test_every_parameter_gets_a_gradient():
    net = unet(norm="batch", depth=3)
    net(images(4, 1, 16, 16).float()).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in net.parameters())


# its weights


def test_weights_are_drawn_by_the_generator_alone():
    first = unet().state_dict()
    torch.rand(3)  # somebody else draws
    again, other = unet().state_dict(), unet(seed=1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_weights_are_uniform_with_variance_two_over_fan_in():
    net = unet(width=32, depth=1)
    for layer, fan_in, share in [
        (net.down[0][2], 9 * 32, 1),
        (net.up[0], 64, 1),
        (net.head, 32, 0.1),
    ]:
        reach = share * math.sqrt(6 / fan_in)
        W = layer.weight.detach().double()
        assert 0.9 * reach < W.max() <= reach and -reach <= W.min() < -0.9 * reach
        assert layer.bias.abs().max() == 0
    W = net.merge[0][0].weight
    assert W.var().item() == pytest.approx(2 / (9 * 64), rel=0.05)


# normalization


def test_without_norm_there_is_nothing_but_parameters():
    assert list(unet().buffers()) == []


def test_batch_norm_stands_between_each_convolution_and_its_relu():
    block = unet(norm="batch").merge[1]
    assert [type(layer) for layer in block] == 2 * [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert block[0].bias is None and block[3].bias is None
    assert [
        layer.num_features
        for layer in unet(norm="batch").modules()
        if isinstance(layer, nn.BatchNorm2d)
    ] == 2 * [8] + 2 * [16] + 2 * [32] + (2 * [8] + 2 * [16])


class Halved(nn.Module):
    """A normalization of our own: half of everything."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels

    def forward(self, X):
        assert X.shape[1] == self.channels
        return X / 2


def test_any_layer_made_of_a_number_of_channels_can_be_the_norm():
    X = images(1, 3, 4, 4)
    block = double_conv(3, 5, Halved).double()
    expected = F.relu(F.conv2d(X, block[0].weight, padding=1) / 2)
    expected = F.relu(F.conv2d(expected, block[3].weight, padding=1) / 2)
    torch.testing.assert_close(block(X), expected, rtol=0, atol=1e-13)
    net = unet(norm=Halved)
    assert sum(isinstance(layer, Halved) for layer in net.modules()) == 10
    assert net(images(1, 1, 8, 8).float()).shape == (1, 2, 8, 8)


# what is refused


@pytest.mark.parametrize(
    "shape, message",
    [
        ((1, 1, 30, 32), r"divisible by 4 \(2\*\*depth\), got 30 x 32"),
        ((1, 1, 32, 31), r"divisible by 4 \(2\*\*depth\), got 32 x 31"),
        ((1, 1, 0, 4), r"divisible by 4 \(2\*\*depth\), got 0 x 4"),
        ((1, 3, 32, 32), r"X must have shape \(n, 1, h, w\), got \(1, 3, 32, 32\)"),
        ((2, 1, 32), r"X must have shape \(n, 1, h, w\), got \(2, 1, 32\)"),
    ],
)
def test_refuses_images_of_another_shape(shape, message):
    with pytest.raises(ValueError, match=message):
        unet().double()(images(*shape))


@pytest.mark.parametrize("name", ["in_channels", "classes", "width", "depth"])
@pytest.mark.parametrize("value", [0, 2.0, True, None])
def test_refuses_sizes_that_make_no_network(name, value):
    message = f"{name} must be an integer >= 1, got {value}"
    with pytest.raises(ValueError, match=message):
        UNet(**{name: value})


@pytest.mark.parametrize("norm", ["layer", 3, False])
def test_refuses_a_norm_that_it_cannot_make(norm):
    with pytest.raises(ValueError, match=f'norm must be None, "batch" .* got {norm!r}'):
        UNet(norm=norm)


# training


def apart(weights, others):
    return max((p - q).abs().max().item() for p, q in zip(weights, others))


def test_two_replicas_learn_to_find_blobs():
    # the recipe of models/segment.py, cut short: 3 epochs of 16
    train_iter, test_iter = load_blobs(10)
    nets = [unet() for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), 2e-4, momentum=0.9) for net in nets]
    for _ in range(3):
        for X, y in train_iter:
            X_shards, y_shards = split_batch(4 * (X - 0.4), y, try_devices(2))
            grads = [pack_grads(list(net.parameters())) for net in nets]
            for net, X_shard, y_shard in zip(nets, X_shards, y_shards):
                pixel_loss(net(X_shard), y_shard).sum().backward()
            allreduce(grads)
            for grad, optimizer in zip(grads, optimizers):
                grad /= len(X)
                optimizer.step()
    assert apart(*([p.detach() for p in net.parameters()] for net in nets)) == 0
    counts = sum(overlap(nets[0](4 * (X - 0.4)), y) for X, y in test_iter)
    assert iou(counts)[1] > 0.6  # predicting no blob is 0, blobs everywhere 0.17
