import pytest
import torch
from torch import nn

from manual_dp.models.resnet import Block, resnet18


def images(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator)


@pytest.mark.parametrize(
    "shape, classes",
    [
        ((2, 3, 32, 32), 10),
        ((1, 1, 28, 28), 7),
        ((1, 3, 224, 224), 10),
        ((2, 2, 8, 9), 3),
    ],
)
def test_images_become_scores(shape, classes):
    net = resnet18(classes, in_channels=shape[1]).eval()
    with torch.no_grad():
        assert net(images(*shape)).shape == (shape[0], classes)


def test_every_stage_after_the_first_halves_the_image():
    shapes, X = [], images(1, 3, 32, 32)
    for layer in resnet18():
        X = layer(X) if X.shape[-1] > 1 or X.dim() == 2 else X
        if isinstance(layer, Block):
            shapes.append(tuple(X.shape[1:]))
    assert (
        shapes
        == [(64, 32, 32)] * 2
        + [(128, 16, 16)] * 2
        + [(256, 8, 8)] * 2
        + [(512, 4, 4)] * 2
    )


def test_parameters_counted_by_hand():
    def block(a, b):
        # two 3x3 convolutions, each with a scale and a shift a channel; a 1x1 to reshape
        return 9 * a * b + 9 * b * b + 4 * b + (a * b + 2 * b if a != b else 0)

    expected = (
        9 * 3 * 64
        + 2 * 64
        + sum(
            block(a, b) + block(b, b)
            for a, b in ((64, 64), (64, 128), (128, 256), (256, 512))
        )
        + 512 * 10
        + 10
    )
    assert sum(p.numel() for p in resnet18().parameters()) == expected == 11_173_962


def test_eighteen_layers_have_weights():
    layers = [
        layer
        for layer in resnet18().modules()
        if isinstance(layer, nn.Linear)
        or isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (3, 3)
    ]
    assert len(layers) == 18


def test_a_block_whose_convolutions_give_zero_is_the_path_around_them():
    X = images(2, 4, 6, 6) - 0.5
    block = Block(4, 4)
    nn.init.zeros_(block.residual[-1].weight)  # the last normalization's scale
    assert torch.equal(block(X), X.relu())


def test_where_the_shape_changes_a_1x1_convolution_takes_x_along():
    X = images(2, 1, 4, 4)
    block = Block(1, 2, stride=2).eval()
    nn.init.zeros_(block.residual[-1].weight)
    with torch.no_grad():
        block.shortcut[0].weight.copy_(torch.tensor([1.0, 3.0]).view(2, 1, 1, 1))
        picked = X[:, :, ::2, ::2]
        expected = torch.cat([picked, 3 * picked], dim=1) / (1 + 1e-5) ** 0.5
        torch.testing.assert_close(block(X), expected)


def test_every_parameter_gets_a_gradient():
    net = resnet18()
    net(images(2, 3, 8, 8)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in net.parameters())
