"""The three cuts of split_the_work: their networks and their prices, by hand."""

import pytest
import torch
from programs.cuts import CUTS, NETWORKS, Device, Layer, by_layer, cut, inside_a_layer
from torch.utils.flop_counter import FlopCounterMode

from course.lab.links import Link
from manual_dp import init_params
from manual_dp.data import ensure_torchvision
from manual_dp.models.lenet import LeNet

FREE = Device(1e12, 0.0, 1e30, Link("", 0.0, 1e30, ""))
FOUR = [Layer(1e9, 10**6, 1000)] * 4


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


@pytest.mark.parametrize("name", ["by data", "inside a layer"])
def test_over_a_free_link_arithmetic_is_divided(name):
    assert CUTS[name](FOUR, 8, 4, FREE).seconds == pytest.approx(3 * 1e9 * 8 / 1e12)


def test_a_pipeline_is_idle_as_lesson_1_says():
    cost = by_layer(FOUR, 16, 4, FREE)  # 16 micro-batches of a row, 4 stages
    assert cost.idle / cost.seconds == pytest.approx(3 / (16 + 3))
    assert by_layer(FOUR, 8, 5, FREE) is None


def test_what_each_cut_holds():
    held = {name: way(FOUR, 8, 4, FREE).memory for name, way in CUTS.items()}
    assert held == {
        "by data": 16 * 4e6 + 2 * 4000 * 4,
        "by layer": 16 * 1e6 + 8 * 1000 * 4,
        "inside a layer": 16 * 1e6 + 8 * 4000 * 4,
    }


def test_no_operation_is_shorter_than_its_launch():
    slow = FREE._replace(launch=1.0)
    assert inside_a_layer(FOUR, 8, 4, slow).seconds == pytest.approx(3 * 4 * 1.0)


@pytest.mark.parametrize(
    "flops, wanted",
    [
        ([1, 1, 1, 1], [2, 2]),
        ([5, 1, 1, 1], [1, 3]),
        ([3, 1, 1], [1, 1, 1]),
        ([2, 2], [2]),
    ],
)
def test_the_largest_stage_is_as_small_as_it_can_be(flops, wanted):
    found = cut([Layer(number, 1, 1) for number in flops], len(wanted))
    assert [len(stage) for stage in found] == wanted
