"""What split_the_work cuts: the networks, and LeNet a layer at a time."""

import pytest
import torch
from programs import cuts
from programs.cuts import (
    NETWORKS,
    autoencoder,
    layer,
    minibatch,
    pipeline,
    speed_up,
)
from torch.utils.flop_counter import FlopCounterMode

from manual_dp import init_params, lenet, loss
from manual_dp.data import ensure_torchvision
from manual_dp.models.lenet import LeNet


def parameters():
    generator = torch.Generator().manual_seed(0)
    return init_params("he", generator, torch.float64)


def networks():
    ensure_torchvision()
    from torchvision.models import vgg16

    with torch.device("meta"):
        vgg = vgg16(init_weights=False)
    lenet = LeNet(init_params("he", torch.Generator().manual_seed(0)))
    return {"LeNet": (lenet, (1, 28, 28)), "VGG-16": (vgg, (3, 224, 224))}


def forward_flops(net, shape):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net.to("meta")(torch.zeros(1, *shape, device="meta"))
    return counter.get_total_flops()


def test_layers_have_the_weights_and_operations_of_the_network():
    # some seconds to import torchvision: only its VGG-16 has the true numbers
    for name, (net, shape) in networks().items():
        layers = NETWORKS[name]
        assert sum(layer.weights for layer in layers) == sum(
            p.numel() for p in net.parameters()
        )
        assert sum(layer.flops for layer in layers) == forward_flops(net, shape)


def test_the_transformers_weights_are_those_of_its_blocks():
    # attention has four matrices of 4,096 x 4,096, the two linear layers eight
    layers = NETWORKS["transformer"]
    assert [layer.weights for layer in layers] == [4096**2 * (4 + 8)] * 32


def flops_of_device_0(devices):
    """Return what the first of each layer's chunks costs, by torch's counter."""
    params, (h, _) = parameters(), minibatch(1)
    total = 0
    for i in range(0, 8, 2):
        W, b = params[i : i + 2]
        W_0, b_0 = W.chunk(devices, int(W.dim() == 2))[0], b.chunk(devices)[0]
        with FlopCounterMode(display=False) as counter:
            layer(h, W_0, b_0)
        total += counter.get_total_flops()
        h = layer(h, W, b)
    return total


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8, 16])
def test_a_cut_inside_layers_is_as_fast_as_its_largest_chunks(devices):
    once = flops_of_device_0(1) / flops_of_device_0(devices)
    assert speed_up(devices) == pytest.approx(once)


def test_layer_by_layer_is_lenet():
    params, (X, _) = parameters(), minibatch(3)
    h = X
    for i in range(0, 8, 2):
        h = layer(h, *params[i : i + 2])
    assert torch.equal(h, lenet(X, params))


def test_halves_of_the_outputs_are_computed_apart():
    params, (h, _) = parameters(), minibatch(3)
    for i in range(0, 8, 2):
        W, b = params[i : i + 2]
        halves = zip(W.chunk(2, int(W.dim() == 2)), b.chunk(2))
        parts = torch.cat([layer(h, *half) for half in halves], dim=1)
        h = layer(h, W, b)
        assert torch.allclose(parts, h, rtol=0, atol=1e-13)


def test_an_encoder_and_a_decoder_are_the_whole_network_and_send_the_code_twice():
    for images, code in ((16, 32), (3, 8)):
        assert autoencoder(images, code) == (2 * images * code * 8, 0)


def test_a_pipelines_devices_see_all_images_and_hold_a_part_of_the_weights():
    seen, held, off = pipeline(micro_batches=4)
    assert (seen, held) == ([16, 16], [25_250, 103_818]) and off < 1e-12


@pytest.mark.parametrize("images", [16, 15])
def test_replicas_of_a_pipeline_share_out_the_images_and_add_up_their_gradients(images):
    seen, held, off = pipeline(micro_batches=4, replicas=2, images=images)
    assert seen == [8, 8, images - 8, images - 8]
    assert held == [25_250, 103_818] * 2 and off < 1e-12


def test_a_pipeline_that_leaves_out_a_micro_batch_is_seen(monkeypatch):
    monkeypatch.setattr(cuts, "loss", lambda *args: loss(*args)[1:])
    assert pipeline(micro_batches=4)[2] > 1e-3
